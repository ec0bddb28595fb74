package podworker

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/kubelet/cri"
	"proa/internal/kubelet/events"
	"proa/internal/kubelet/probe"
)

// hookAgent is the user agent of HTTP hooks.
const hookAgent = "kube-lifecycle/1.37"

// hook runs a lifecycle handler to its end, or the context's.
func (p *worker) hook(ctx context.Context, pod *corev1.Pod, rt *cri.Pod, spec *corev1.Container, id string, h *corev1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		out, code, err := p.w.c.Runtime.Command(ctx, id, h.Exec.Command, 0)
		if err != nil {
			return err
		}
		if code != 0 {
			return fmt.Errorf("command '%s' exited with %d: %s", strings.Join(h.Exec.Command, " "), code, out)
		}
		return nil
	case h.HTTPGet != nil:
		host := pod.Status.HostIP
		if ips := rt.IPs(); len(ips) > 0 {
			host = ips[0]
		} else if ips := p.w.c.HostIPs(); host == "" && len(ips) > 0 {
			host = ips[0]
		}
		return httpHook(ctx, h.HTTPGet, spec, host)
	case h.Sleep != nil:
		select {
		case <-ctx.Done():
		case <-p.w.c.Clock.After(time.Duration(h.Sleep.Seconds) * time.Second):
		}
		return nil
	}
	return fmt.Errorf("invalid handler")
}

func httpHook(ctx context.Context, a *corev1.HTTPGetAction, spec *corev1.Container, host string) error {
	req, err := probe.Request(ctx, a, spec, host, hookAgent)
	if err != nil {
		return err
	}
	client := probe.Client(0)
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	// The answer does not matter; reading some of it lets the server finish.
	_, err = io.CopyN(io.Discard, resp.Body, 10<<10)
	resp.Body.Close()
	if err == io.EOF {
		return nil
	}
	return err
}

// postStart runs the hook of a container that just started. When it fails the
// container is stopped, and restarts after its policy.
func (p *worker) postStart(ctx context.Context, pod *corev1.Pod, rt *cri.Pod, spec *corev1.Container, id string) (time.Duration, *startError) {
	err := p.hook(ctx, pod, rt, spec, id, spec.Lifecycle.PostStart)
	if err == nil || ctx.Err() != nil {
		return 0, nil
	}
	p.w.c.Recorder.Event(events.Container(pod, spec), corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
	p.w.c.Log.Warn("postStart hook", "pod", pod.Namespace+"/"+pod.Name, "container", spec.Name, "err", err)
	p.stop(ctx, pod, nil, kill{container: &cri.Container{ID: id, Name: spec.Name}, spec: spec, message: "FailedPostStartHook"}, graceOf(pod))
	return 0, &startError{"PostStartHookError", "PostStartHook failed"}
}

// preStop runs a container's hook within its grace period.
func (p *worker) preStop(ctx context.Context, pod *corev1.Pod, rt *cri.Pod, k kill, grace int64) {
	if k.spec == nil || k.spec.Lifecycle == nil || k.spec.Lifecycle.PreStop == nil || rt == nil || grace <= 0 {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.hook(ctx, pod, rt, k.spec, k.container.ID, k.spec.Lifecycle.PreStop) }()
	var err error
	select {
	case err = <-done:
	case <-p.w.c.Clock.After(time.Duration(grace) * time.Second):
		cancel()
		<-done
		err = fmt.Errorf("preStop hook did not end within the grace period of %d s", grace)
	}
	if err != nil && ctx.Err() == nil {
		p.w.c.Recorder.Event(events.Container(pod, k.spec), corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
		p.w.c.Log.Warn("preStop hook", "pod", pod.Namespace+"/"+pod.Name, "container", k.spec.Name, "err", err)
	}
}
