package podworker

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"proa/internal/kubelet/cri"
	"proa/internal/kubelet/criconfig"
	"proa/internal/kubelet/status"
)

// sync makes the runtime hold what a pod that shall run says. It returns when to
// look again though nothing happens; 0 for never.
func (p *worker) sync(ctx context.Context, pod *corev1.Pod) (time.Duration, error) {
	p.refresh(pod)
	p.allocate(p.current())
	pod = p.allocated()
	rt, err := p.look(ctx, pod)
	if err != nil {
		return 0, err
	}
	for {
		p.w.c.Probes.Sync(pod, rt)
		left, limited := p.deadline(pod)
		if limited && left <= 0 {
			return 0, p.expire(pod)
		}
		pl := makePlan(pod, rt, p.w.c.Probes)
		if pl.finished {
			p.terminate(ending{})
			return 0, nil
		}
		p.report(pod, rt, false, nil)
		if !pl.sandbox && len(pl.kill) == 0 && len(pl.start) == 0 {
			resized, err := p.resize(ctx, pod, rt)
			if err != nil {
				return 0, err
			}
			if !resized {
				return left, p.settle(ctx, pod, rt)
			}
			if rt, err = p.look(ctx, pod); err != nil {
				return 0, err
			}
			continue
		}
		acted, after, err := p.act(ctx, pod, rt, pl)
		if err != nil {
			return 0, err
		}
		if rt, err = p.look(ctx, pod); err != nil {
			return 0, err
		}
		if !acted {
			p.report(pod, rt, false, nil)
			if limited && (after == 0 || left < after) {
				after = left
			}
			return after, nil
		}
	}
}

// settle does what a pod needs that is as it should be: its cgroup and volumes
// are known to this process, and old containers are gone.
func (p *worker) settle(ctx context.Context, pod *corev1.Pod, rt *cri.Pod) error {
	p.prune(ctx, pod, rt)
	return p.prepare(ctx, pod)
}

// deadline is the time left of activeDeadlineSeconds.
func (p *worker) deadline(pod *corev1.Pod) (left time.Duration, limited bool) {
	if pod.Spec.ActiveDeadlineSeconds == nil {
		return 0, false
	}
	from := p.started
	if pod.Status.StartTime != nil {
		from = pod.Status.StartTime.Time
	}
	return time.Duration(*pod.Spec.ActiveDeadlineSeconds)*time.Second - p.w.c.Clock.Since(from), true
}

func (p *worker) expire(pod *corev1.Pod) error {
	const reason, message = "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
	p.w.c.Recorder.Event(pod, corev1.EventTypeNormal, reason, message)
	p.terminate(ending{end: &status.End{Reason: reason, Message: message}})
	return nil
}

// act carries out a plan. It reports whether anything was done, so that another
// look is due, and otherwise when the first of what waits may be tried again.
func (p *worker) act(ctx context.Context, pod *corev1.Pod, rt *cri.Pod, pl plan) (acted bool, after time.Duration, err error) {
	if pl.sandbox {
		return true, 0, p.newSandbox(ctx, pod, rt, pl.attempt)
	}
	if len(pl.kill) > 0 {
		p.killAll(ctx, pod, pl.kill)
		return true, 0, ctx.Err()
	}
	if err := p.prepare(ctx, pod); err != nil {
		return false, 0, err
	}
	for _, s := range pl.start {
		wait := p.retryAt[s.spec.Name].Sub(p.w.c.Clock.Now())
		if wait <= 0 {
			var failed *startError
			wait, failed = p.start(ctx, pod, rt, s)
			if ctx.Err() != nil {
				return false, 0, ctx.Err()
			}
			if failed == nil {
				p.succeeded(s.spec.Name)
				acted = true
				continue
			}
			wait = p.missed(s.spec.Name, failed, wait)
		}
		if after == 0 || wait < after {
			after = wait
		}
		if s.kind == initial {
			break // those after it wait for it
		}
	}
	return acted, after, nil
}

func (p *worker) succeeded(container string) {
	delete(p.waiting, container)
	delete(p.retryAt, container)
	delete(p.misses, container)
}

// missed records why a container did not start and when to try again, doubling
// the time where the reason names none.
func (p *worker) missed(container string, why *startError, wait time.Duration) time.Duration {
	p.waiting[container] = status.Waiting{Reason: why.reason, Message: why.message}
	p.misses[container]++
	if wait <= 0 {
		wait = retryDelay(p.misses[container])
	}
	p.retryAt[container] = p.w.c.Clock.Now().Add(wait)
	return wait
}

// refresh lets a changed pod try at once what failed before.
func (p *worker) refresh(pod *corev1.Pod) {
	if p.tried != nil && (p.tried.Generation != pod.Generation || !maps.Equal(p.tried.Annotations, pod.Annotations)) {
		clear(p.retryAt)
		clear(p.misses)
	}
	p.tried = pod
}

// prepare makes what containers of the pod need on the node: the pod's cgroup,
// its devices and its volumes. Once done it is repeated only when the pod's metadata, which
// volumes may show, changed.
func (p *worker) prepare(ctx context.Context, pod *corev1.Pod) error {
	if p.prepared != nil && maps.Equal(p.prepared.Labels, pod.Labels) && maps.Equal(p.prepared.Annotations, pod.Annotations) {
		return nil
	}
	if p.w.c.Cgroups != nil && p.prepared == nil {
		if err := p.w.c.Cgroups.Ensure(pod); err != nil {
			p.w.c.Recorder.Eventf(pod, corev1.EventTypeWarning, "FailedToCreatePodContainer", "unable to ensure pod container exists: %v", err)
			return err
		}
		p.inForce = pod.Spec.Resources
	}
	if p.w.c.Devices != nil && p.prepared == nil {
		if err := p.w.c.Devices.Prepare(ctx, pod); err != nil {
			if ctx.Err() == nil {
				p.w.c.Recorder.Eventf(pod, corev1.EventTypeWarning, "FailedPrepareDynamicResources", "Failed to prepare dynamic resources: %v", err)
			}
			return fmt.Errorf("prepare dynamic resources: %w", err)
		}
	}
	if err := p.w.c.Volumes.Mount(ctx, pod); err != nil {
		if ctx.Err() == nil {
			p.w.c.Recorder.Event(pod, corev1.EventTypeWarning, "FailedMount", err.Error())
		}
		return fmt.Errorf("mount volumes: %w", err)
	}
	p.prepared = pod
	return nil
}

// newSandbox replaces the pod's sandbox, whatever state it is in.
func (p *worker) newSandbox(ctx context.Context, pod *corev1.Pod, rt *cri.Pod, attempt uint32) error {
	c := &p.w.c
	if rt.Sandbox() != nil {
		c.Recorder.Event(pod, corev1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
		p.killAll(ctx, pod, running(pod, rt))
		if err := p.stopSandboxes(ctx, rt); err != nil {
			return err
		}
	}
	if !pod.Spec.HostNetwork && c.NetworkReady != nil {
		if err := c.NetworkReady(); err != nil {
			c.Recorder.Eventf(pod, corev1.EventTypeWarning, "NetworkNotReady", "network is not ready: %v", err)
			return fmt.Errorf("network is not ready: %w", err)
		}
	}
	if err := p.prepare(ctx, pod); err != nil {
		return err
	}
	if err := p.runSandbox(ctx, pod, attempt); err != nil {
		if ctx.Err() == nil {
			c.Recorder.Eventf(pod, corev1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: %v", err)
		}
		return fmt.Errorf("create sandbox: %w", err)
	}
	return nil
}

func (p *worker) runSandbox(ctx context.Context, pod *corev1.Pod, attempt uint32) error {
	userns, err := p.userNamespace(pod)
	if err != nil {
		return err
	}
	handler, err := p.handler(ctx, pod)
	if err != nil {
		return err
	}
	cfg, err := criconfig.Sandbox(p.w.c.Node, pod, attempt, userns)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cfg.LogDirectory, 0o755); err != nil {
		return fmt.Errorf("make log directory: %w", err)
	}
	_, err = p.w.c.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: handler})
	return err
}

func (p *worker) handler(ctx context.Context, pod *corev1.Pod) (string, error) {
	if pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName == "" || p.w.c.Handler == nil {
		return "", nil
	}
	return p.w.c.Handler(ctx, pod)
}

func (p *worker) userNamespace(pod *corev1.Pod) (*criconfig.UserNamespace, error) {
	if pod.Spec.HostUsers == nil || *pod.Spec.HostUsers {
		return nil, nil
	}
	if p.w.c.UserNamespace == nil {
		return nil, fmt.Errorf("user namespaces are not supported on this node")
	}
	return p.w.c.UserNamespace(pod)
}

// prune removes what is no longer needed of a live pod: of each container all
// but the newest and the one before it (whose log can still be asked for), and
// sandboxes that have been replaced.
func (p *worker) prune(ctx context.Context, pod *corev1.Pod, rt *cri.Pod) {
	seen := map[string]int{}
	used := map[string]bool{}
	for _, c := range rt.Containers {
		seen[c.Name]++
		if seen[c.Name] <= 2 || !c.Exited() {
			used[c.SandboxID] = true
			continue
		}
		if _, err := p.w.c.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.ID}); err != nil {
			p.w.c.Log.Warn("remove container", "container", c.ID, "err", err)
			continue
		}
		delete(p.messages, c.ID)
		removeLogs(c.LogPath)
		p.unlink(pod, c.Name, c.ID)
	}
	for i, b := range rt.Sandboxes {
		if i == 0 || used[b.Id] {
			continue
		}
		if _, err := p.w.c.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: b.Id}); err != nil {
			p.w.c.Log.Warn("remove sandbox", "sandbox", b.Id, "err", err)
		}
	}
}

// removeLogs deletes a container's log file and its rotated predecessors.
func removeLogs(path string) {
	if path == "" {
		return
	}
	rotated, _ := filepath.Glob(path + ".*") // the only error is a bad pattern
	for _, f := range append(rotated, path) {
		_ = os.Remove(f) // a file left behind goes with the pod's directory
	}
}
