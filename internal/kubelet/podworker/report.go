package podworker

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/kubelet/cri"
	"proa/internal/kubelet/probe"
	"proa/internal/kubelet/status"
)

// Started implements status.Health.
func (h health) Started(id string) bool {
	r, has := h.p.w.c.Probes.Result(probe.Startup, id)
	return !has || r == probe.Success || (r == probe.Unknown && h.before(id, func(s *corev1.ContainerStatus) bool { return s.Started != nil && *s.Started }))
}

// Ready implements status.Health.
func (h health) Ready(id string) bool {
	r, has := h.p.w.c.Probes.Result(probe.Readiness, id)
	return !has || r == probe.Success || (r == probe.Unknown && h.before(id, func(s *corev1.ContainerStatus) bool { return s.Ready }))
}

// before asks what the API last said of the same container.
func (h health) before(id string, say func(*corev1.ContainerStatus) bool) bool {
	for _, list := range [][]corev1.ContainerStatus{h.pod.Status.ContainerStatuses, h.pod.Status.InitContainerStatuses} {
		for i := range list {
			if list[i].State.Running != nil && strings.HasSuffix(list[i].ContainerID, "://"+id) {
				return say(&list[i])
			}
		}
	}
	return false
}

// report hands the pod's status to the writer. Stopped says that nothing of it
// runs or will run.
func (p *worker) report(pod *corev1.Pod, rt *cri.Pod, stopped bool, end *status.End) {
	base := pod
	if last := p.w.c.Status.Last(pod.UID); last != nil {
		// The object may be older than the last write: times of transition and
		// restart counts continue from what was written.
		base = status.Overlay(pod, last)
	}
	p.mu.Lock()
	pending := p.pending
	p.mu.Unlock()
	var devices func(*corev1.Container) []corev1.ResourceStatus
	if p.w.c.Devices != nil {
		devices = func(c *corev1.Container) []corev1.ResourceStatus { return p.w.c.Devices.Health(pod, c) }
	}
	p.w.c.Status.Set(pod, status.Generate(status.Input{
		Pod: base, Runtime: rt, Waiting: p.waiting, Health: health{p, base},
		HostIPs: p.w.c.HostIPs(), Started: p.started, Now: p.w.c.Clock.Now(),
		Stopped: stopped, End: end, Message: p.terminationMessage, RuntimeName: p.w.c.RuntimeName, Resources: p.inForce, Resize: pending, Devices: devices,
	}))
}

// terminationMessage reads a container's last words once and remembers them.
func (p *worker) terminationMessage(c *cri.Container) string {
	m, known := p.messages[c.ID]
	if !known {
		m = lastWords(c, p.current())
		p.messages[c.ID] = m
	}
	return m
}
