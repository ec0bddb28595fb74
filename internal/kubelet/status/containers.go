package status

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"proa/internal/kubelet/cri"
)

// unknownExit is the exit code of a container whose end nobody saw.
const unknownExit = 137

type generator struct{ in Input }

func (g *generator) containers(specs []corev1.Container, old []corev1.ContainerStatus, init bool) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for i := range specs {
		out = append(out, g.container(&specs[i], find(old, specs[i].Name), init))
	}
	return out
}

func (g *generator) ephemeral() []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for i := range g.in.Pod.Spec.EphemeralContainers {
		c := corev1.Container(g.in.Pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		s := g.container(&c, find(g.in.Pod.Status.EphemeralContainerStatuses, c.Name), false)
		s.Ready, s.Started = false, nil
		s.AllocatedResources, s.Resources = nil, nil
		out = append(out, s)
	}
	return out
}

func find(list []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	if i := slices.IndexFunc(list, func(s corev1.ContainerStatus) bool { return s.Name == name }); i >= 0 {
		return &list[i]
	}
	return nil
}

func (g *generator) container(spec *corev1.Container, old *corev1.ContainerStatus, init bool) corev1.ContainerStatus {
	c := g.in.Runtime.Container(spec.Name)
	var s corev1.ContainerStatus
	if c == nil {
		s = g.absent(spec, old)
	} else {
		s = g.present(spec, c, old)
	}
	if w, ok := g.in.Waiting[spec.Name]; ok && s.State.Running == nil && !g.in.Stopped {
		if s.State.Terminated != nil {
			s.LastTerminationState = corev1.ContainerState{Terminated: s.State.Terminated}
		}
		s.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: w.Reason, Message: w.Message}}
	}
	g.health(&s, c, spec, init)
	g.mounts(&s, spec)
	switch {
	case g.in.Stopped && old != nil: // health is not followed beyond the pod's end
		s.AllocatedResourcesStatus = old.AllocatedResourcesStatus
	case g.in.Devices != nil:
		s.AllocatedResourcesStatus = g.in.Devices(spec)
	}
	return s
}

// absent is the status of a container the runtime does not have: not made yet,
// removed after its end, or lost.
func (g *generator) absent(spec *corev1.Container, old *corev1.ContainerStatus) corev1.ContainerStatus {
	s := corev1.ContainerStatus{Name: spec.Name, Image: spec.Image, State: corev1.ContainerState{Waiting: g.defaultWaiting()}}
	if old == nil {
		return s
	}
	s.RestartCount, s.LastTerminationState = old.RestartCount, old.LastTerminationState
	switch {
	case old.State.Terminated != nil:
		s.State, s.ImageID, s.ContainerID, s.Image = old.State, old.ImageID, old.ContainerID, old.Image
	case old.State.Running != nil:
		lost := &corev1.ContainerStateTerminated{
			Reason: "ContainerStatusUnknown", ExitCode: unknownExit,
			Message:   "The container could not be located when the pod was terminated",
			StartedAt: old.State.Running.StartedAt, ContainerID: old.ContainerID,
		}
		if g.in.Stopped {
			s.State = corev1.ContainerState{Terminated: lost}
		} else {
			lost.Message = "The container could not be located when the pod was deleted.  The container used to be Running"
			s.LastTerminationState = corev1.ContainerState{Terminated: lost}
			s.RestartCount++
		}
	}
	return s
}

func (g *generator) defaultWaiting() *corev1.ContainerStateWaiting {
	if len(g.in.Pod.Spec.InitContainers) > 0 {
		return &corev1.ContainerStateWaiting{Reason: "PodInitializing"}
	}
	return &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
}

func (g *generator) present(spec *corev1.Container, c *cri.Container, old *corev1.ContainerStatus) corev1.ContainerStatus {
	s := corev1.ContainerStatus{
		Name: spec.Name, RestartCount: int32(c.RestartCount),
		Image: c.Image, ImageID: c.ImageRef, ContainerID: g.id(c),
		AllocatedResources: spec.Resources.Requests.DeepCopy(), User: user(c.User),
	}
	switch c.State {
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.Started)}
		s.Resources = resources(spec, c.Resources)
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		s.State.Waiting = g.defaultWaiting()
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		s.State.Terminated = g.terminated(c)
		s.Resources = spec.Resources.DeepCopy()
	default:
		s.State.Terminated = &corev1.ContainerStateTerminated{
			Reason: "ContainerStatusUnknown", ExitCode: unknownExit, ContainerID: g.id(c),
			Message: "The container could not be located when the pod was terminated",
		}
	}
	if p := g.in.Runtime.Previous(spec.Name); p.Exited() {
		s.LastTerminationState.Terminated = g.terminated(p)
	} else if old != nil && c.RestartCount > 0 {
		// The runtime may have lost the previous container; the API remembers it.
		s.LastTerminationState = old.LastTerminationState
		if old.State.Terminated != nil && old.ContainerID != s.ContainerID {
			s.LastTerminationState = old.State
		}
	}
	// A server whose gate ContainerStopSignals is off would drop what an image says,
	// and be told again at every look.
	if lc := spec.Lifecycle; lc != nil && lc.StopSignal != nil {
		if sig := signal(c.StopSignal); sig != "" {
			s.StopSignal = ptr.To(sig)
		}
	}
	return s
}

func (g *generator) id(c *cri.Container) string { return g.in.RuntimeName + "://" + c.ID }

func (g *generator) terminated(c *cri.Container) *corev1.ContainerStateTerminated {
	t := &corev1.ContainerStateTerminated{
		ExitCode: c.ExitCode, Reason: c.Reason, Message: c.Message,
		StartedAt: metav1.NewTime(c.Started), FinishedAt: metav1.NewTime(c.Finished), ContainerID: g.id(c),
	}
	if g.in.Message != nil {
		if m := g.in.Message(c); m != "" {
			t.Message = strings.TrimPrefix(c.Message+": "+m, ": ")
		}
	}
	return t
}

// health sets ready and started.
func (g *generator) health(s *corev1.ContainerStatus, c *cri.Container, spec *corev1.Container, init bool) {
	started := s.State.Running != nil && g.in.Health.Started(c.ID)
	s.Started = &started
	if init && !isSidecar(spec) {
		s.Ready = s.State.Terminated != nil && s.State.Terminated.ExitCode == 0
		return
	}
	s.Ready = started && g.in.Health.Ready(c.ID)
}

func isSidecar(c *corev1.Container) bool {
	return ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways
}

func (g *generator) mounts(s *corev1.ContainerStatus, spec *corev1.Container) {
	for _, m := range spec.VolumeMounts {
		vs := corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mode := ptr.Deref(m.RecursiveReadOnly, corev1.RecursiveReadOnlyDisabled)
			if mode == corev1.RecursiveReadOnlyIfPossible {
				mode = corev1.RecursiveReadOnlyEnabled
			}
			vs.RecursiveReadOnly = &mode
		}
		s.VolumeMounts = append(s.VolumeMounts, vs)
	}
}

// resources are those in force: what was asked for, with the limits the runtime
// reports.
func resources(spec *corev1.Container, actual *runtimeapi.LinuxContainerResources) *corev1.ResourceRequirements {
	r := spec.Resources.DeepCopy()
	if actual == nil {
		return r
	}
	if _, limited := r.Limits[corev1.ResourceMemory]; limited && actual.MemoryLimitInBytes > 0 {
		if r.Limits.Memory().Value() != actual.MemoryLimitInBytes {
			r.Limits[corev1.ResourceMemory] = *resource.NewQuantity(actual.MemoryLimitInBytes, resource.BinarySI)
		}
	}
	if _, limited := r.Limits[corev1.ResourceCPU]; limited && actual.CpuQuota > 0 && actual.CpuPeriod > 0 {
		// The kernel's smallest quota is 10m; below it the value asked for stands.
		if milli := actual.CpuQuota * 1000 / actual.CpuPeriod; milli != r.Limits.Cpu().MilliValue() && milli > 10 {
			r.Limits[corev1.ResourceCPU] = *resource.NewMilliQuantity(milli, resource.DecimalSI)
		}
	}
	return r
}

func user(u *runtimeapi.LinuxContainerUser) *corev1.ContainerUser {
	if u == nil {
		return nil
	}
	return &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: u.Uid, GID: u.Gid, SupplementalGroups: u.SupplementalGroups}}
}

// signal spells a CRI signal as the API does: SIGRTMIN+1.
func signal(s runtimeapi.Signal) corev1.Signal {
	if s == runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		return ""
	}
	name := strings.TrimPrefix(s.String(), "SIGNAL_")
	return corev1.Signal(strings.NewReplacer("PLUS", "+", "MINUS", "-").Replace(name))
}
