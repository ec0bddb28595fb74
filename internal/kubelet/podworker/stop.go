package podworker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"proa/internal/kubelet/cri"
	"proa/internal/kubelet/criconfig"
	"proa/internal/kubelet/events"
)

// minStop is the least time between SIGTERM and SIGKILL, in seconds.
const minStop = 2

// running lists the pod's containers that may have a process, as kills without
// a message of their own.
func running(pod *corev1.Pod, rt *cri.Pod) []kill {
	specs := map[string]*corev1.Container{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			specs[list[i].Name] = &list[i]
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		specs[c.Name] = &c
	}
	var out []kill
	for _, c := range rt.Containers {
		if c.Running() || c.State == runtimeapi.ContainerState_CONTAINER_UNKNOWN {
			out = append(out, kill{container: c, spec: specs[c.Name]})
		}
	}
	return out
}

// killAll stops containers side by side. Their preStop hooks begin at once;
// sidecars are asked to stop only after the regular containers and the sidecars
// declared after them have stopped, or when the grace period is over.
func (p *worker) killAll(ctx context.Context, pod *corev1.Pod, kills []kill) {
	order := map[string]int{} // sidecars by position; others stop first
	for i := range pod.Spec.InitContainers {
		if isSidecar(&pod.Spec.InitContainers[i]) {
			order[pod.Spec.InitContainers[i].Name] = i + 1
		}
	}
	whole := len(kills) > 1
	stopped := make(map[string]chan struct{}, len(kills))
	for _, k := range kills {
		stopped[k.container.ID] = make(chan struct{})
	}
	var wg sync.WaitGroup
	for _, k := range kills {
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer close(stopped[k.container.ID])
			var turn []chan struct{}
			if pos := order[k.container.Name]; whole && pos > 0 {
				for _, o := range kills {
					if op := order[o.container.Name]; op == 0 || op > pos {
						turn = append(turn, stopped[o.container.ID])
					}
				}
			}
			p.stop(ctx, pod, turn, k, p.graceFor(pod, k))
		}()
	}
	wg.Wait()
}

func (p *worker) graceFor(pod *corev1.Pod, k kill) int64 {
	p.mu.Lock()
	e := p.ending
	p.mu.Unlock()
	switch {
	case e != nil && e.grace != nil:
		return *e.grace
	case k.grace != nil && pod.DeletionTimestamp == nil:
		return *k.grace
	}
	return graceOf(pod)
}

// stop ends one container: preStop hook, its turn, SIGTERM, and SIGKILL when the
// rest of the grace period has passed.
func (p *worker) stop(ctx context.Context, pod *corev1.Pod, turn []chan struct{}, k kill, grace int64) {
	clk := p.w.c.Clock
	begin := clk.Now()
	message := k.message
	if message == "" {
		message = "Stopping container " + k.container.Name
	}
	about := &corev1.Container{Name: k.container.Name}
	if k.spec != nil {
		about = k.spec
	}
	p.w.c.Recorder.Event(events.Container(pod, about), corev1.EventTypeNormal, "Killing", message)
	p.preStop(ctx, pod, p.rt.Load(), k, grace)
	timeout := clk.After(time.Duration(grace)*time.Second - clk.Since(begin))
	for _, c := range turn {
		select {
		case <-c:
		case <-timeout:
		case <-ctx.Done():
			return
		}
	}
	left := max(grace-int64(clk.Since(begin)/time.Second), minStop)
	_, err := p.w.c.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: k.container.ID, Timeout: left})
	if err != nil && !cri.IsNotFound(err) && ctx.Err() == nil {
		p.w.c.Log.Warn("stop container", "container", k.container.ID, "err", err)
	}
}

func (p *worker) stopSandboxes(ctx context.Context, rt *cri.Pod) error {
	var errs []error
	for _, b := range rt.Sandboxes {
		if b.State != runtimeapi.PodSandboxState_SANDBOX_READY {
			continue
		}
		if _, err := p.w.c.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: b.Id}); err != nil && !cri.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("stop sandbox %s: %w", b.Id, err))
		}
	}
	return errors.Join(errs...)
}

// wind takes a pod down as far as its ending says, continuing where an earlier
// step stopped.
func (p *worker) wind(ctx context.Context, pod *corev1.Pod, e *ending) error {
	if !p.isTerminated() {
		if err := p.terminatePod(ctx, pod, e); err != nil {
			return err
		}
	}
	switch {
	case e.removed:
		if err := p.remove(ctx, pod); err != nil {
			return err
		}
		return errRemoved
	case pod.DeletionTimestamp != nil:
		p.w.c.Status.Remove(pod)
	}
	return nil
}

func (p *worker) isTerminated() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.terminated
}

func (p *worker) terminatePod(ctx context.Context, pod *corev1.Pod, e *ending) error {
	rt, err := p.look(ctx, pod)
	if err != nil {
		return err
	}
	p.w.c.Probes.Sync(pod, rt)
	if len(rt.Containers) == 0 && len(rt.Sandboxes) == 0 && len(pod.Spec.Containers) == 0 {
		rt = &cri.Pod{UID: pod.UID}
	}
	kills := running(pod, rt)
	if len(kills) > 0 {
		if !e.removed {
			p.report(pod, rt, false, nil)
		}
		p.killAll(ctx, pod, kills)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	p.w.c.Probes.Stop(pod.UID)
	if err := p.stopSandboxes(ctx, rt); err != nil {
		p.w.c.Recorder.Eventf(pod, corev1.EventTypeWarning, "FailedKillPod", "error killing pod: %v", err)
		return err
	}
	if rt, err = p.look(ctx, pod); err != nil {
		return err
	}
	if rt.Alive() {
		return fmt.Errorf("containers of pod %s still run", criconfig.FullName(pod))
	}
	clear(p.waiting)
	if p.w.c.Devices != nil { // before others are told that the pod needs them no more
		if err := p.w.c.Devices.Release(ctx, pod.UID); err != nil {
			return fmt.Errorf("release devices: %w", err)
		}
	}
	p.mu.Lock()
	p.told = true
	p.mu.Unlock()
	if !e.removed {
		p.report(pod, rt, true, e.end)
	}
	if err := p.w.c.Volumes.Unmount(ctx, pod.UID); err != nil {
		return fmt.Errorf("unmount volumes: %w", err)
	}
	if p.w.c.Cgroups != nil {
		if err := p.w.c.Cgroups.Remove(pod.UID); err != nil {
			return fmt.Errorf("remove cgroup: %w", err)
		}
	}
	p.mu.Lock()
	p.terminated = true
	p.mu.Unlock()
	p.w.retryResizes()
	return nil
}

// remove takes away what a terminated pod left: containers, sandboxes, logs and
// its directory.
func (p *worker) remove(ctx context.Context, pod *corev1.Pod) error {
	if err := p.discard(ctx, pod); err != nil {
		return err
	}
	return p.w.c.Volumes.RemovePodDir(pod.UID)
}

// ClearEnded removes what pods that have ended left in the runtime, their logs too,
// although the API still has the pods.
func (w *Workers) ClearEnded(ctx context.Context) error {
	w.mu.Lock()
	var ended []*worker
	for _, p := range w.pods {
		if p.isTerminated() {
			ended = append(ended, p)
		}
	}
	w.mu.Unlock()
	var errs []error
	for _, p := range ended {
		errs = append(errs, p.discard(ctx, p.current()))
	}
	return errors.Join(errs...)
}

// discard removes a terminated pod's containers, sandboxes and logs.
func (p *worker) discard(ctx context.Context, pod *corev1.Pod) error {
	rt, err := p.look(ctx, pod)
	if err != nil {
		return err
	}
	for _, b := range rt.Sandboxes { // with their containers
		if _, err := p.w.c.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: b.Id}); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("remove sandbox %s: %w", b.Id, err)
		}
	}
	for _, c := range rt.Containers { // those without a sandbox
		if _, err := p.w.c.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.ID}); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("remove container %s: %w", c.ID, err)
		}
	}
	for _, c := range rt.Containers {
		p.unlink(pod, c.Name, c.ID)
	}
	if err := os.RemoveAll(criconfig.LogDirectory(p.w.c.Node.LogDir, pod)); err != nil {
		return fmt.Errorf("remove logs: %w", err)
	}
	return nil
}
