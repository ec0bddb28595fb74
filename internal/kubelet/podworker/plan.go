package podworker

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"proa/internal/apis/core"
	"proa/internal/kubelet/cri"
	"proa/internal/kubelet/probe"
)

// plan is what to do next for a pod that shall run. It is computed from the
// spec and the runtime's state alone, carried out, and computed again until
// nothing is left to do.
type plan struct {
	// finished: every container ended and none will start again. The pod's
	// sandbox and sidecars are to be stopped and the phase ends.
	finished bool
	// sandbox: a new sandbox is needed, numbered attempt; what the old one holds
	// is stopped first.
	sandbox bool
	attempt uint32
	kill    []kill
	start   []start
}

type kill struct {
	container *cri.Container
	spec      *corev1.Container
	message   string
	grace     *int64 // seconds, over the pod's; nil: the pod's
}

type start struct {
	spec *corev1.Container
	kind kind
}

type kind int

const (
	regular kind = iota
	initial
	ephemeral
)

// probes tells the results that decide about restarts.
type probes interface {
	Result(kind probe.Kind, containerID string) (probe.Result, bool)
}

// makePlan decides what a pod needs now.
func makePlan(pod *corev1.Pod, rt *cri.Pod, results probes) plan {
	p := planner{pod: pod, rt: rt, results: results}
	if changed, attempt := sandboxChanged(pod, rt); changed {
		return p.newSandbox(attempt)
	}
	for i := range pod.Spec.EphemeralContainers {
		c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		if rt.Container(c.Name) == nil {
			p.out.start = append(p.out.start, start{&c, ephemeral})
		}
	}
	if !p.initContainers() {
		return p.out
	}
	p.regular()
	return p.out
}

// sandboxChanged reports whether the pod needs a new sandbox, and its number.
func sandboxChanged(pod *corev1.Pod, rt *cri.Pod) (bool, uint32) {
	box := rt.Sandbox()
	if box == nil {
		return true, 0
	}
	next := box.Metadata.Attempt + 1
	ready := 0
	for _, b := range rt.Sandboxes {
		if b.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			ready++
		}
	}
	onHost := box.Linux.GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
	switch {
	case ready > 1, box.State != runtimeapi.PodSandboxState_SANDBOX_READY, onHost != pod.Spec.HostNetwork:
		return true, next
	case !pod.Spec.HostNetwork && len(rt.IPs()) == 0:
		return true, next
	}
	return false, 0
}

type planner struct {
	pod     *corev1.Pod
	rt      *cri.Pod
	results probes
	out     plan
}

// newSandbox plans for a pod without a usable sandbox. Containers follow once it
// is there. A pod that has run and may not run again is finished instead.
func (p *planner) newSandbox(attempt uint32) plan {
	if len(p.rt.Containers) > 0 {
		if initFailed(p.pod, p.rt) || (p.everStarted() && !p.anyToStart()) {
			return plan{finished: true}
		}
		if p.pod.Spec.RestartPolicy == corev1.RestartPolicyNever && attempt > 0 && !anyAlwaysRestarts(p.pod) {
			return plan{finished: true}
		}
	}
	return plan{sandbox: true, attempt: attempt}
}

func (p *planner) everStarted() bool {
	for i := range p.pod.Spec.Containers {
		if p.rt.Container(p.pod.Spec.Containers[i].Name) != nil {
			return true
		}
	}
	return false
}

func (p *planner) anyToStart() bool {
	for i := range p.pod.Spec.Containers {
		c := &p.pod.Spec.Containers[i]
		if cur := p.rt.Container(c.Name); cur == nil || cur.Running() || restarts(p.pod, c, cur) {
			return true
		}
	}
	return false
}

func anyAlwaysRestarts(pod *corev1.Pod) bool {
	for i := range pod.Spec.Containers {
		if rp := pod.Spec.Containers[i].RestartPolicy; rp != nil && *rp != corev1.ContainerRestartPolicyNever {
			return true
		}
	}
	return false
}

// initFailed reports whether an init container failed for good.
func initFailed(pod *corev1.Pod, rt *cri.Pod) bool {
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		cur := rt.Container(c.Name)
		if !isSidecar(c) && cur.Exited() && cur.ExitCode != 0 && !restarts(pod, c, cur) {
			return true
		}
	}
	return false
}

func isSidecar(c *corev1.Container) bool {
	return ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways
}

// restarts reports whether a container that is not running starts again, after
// its own rules and policy (KEP-5307), else the pod's.
func restarts(pod *corev1.Pod, c *corev1.Container, cur *cri.Container) bool {
	if cur == nil {
		return true
	}
	switch cur.State {
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return false
	case runtimeapi.ContainerState_CONTAINER_CREATED, runtimeapi.ContainerState_CONTAINER_UNKNOWN:
		return true
	}
	return core.ContainerRestarts(c, pod.Spec.RestartPolicy, cur.ExitCode)
}

// mayRestart is the policy for a container that is killed by the node.
func mayRestart(pod *corev1.Pod, c *corev1.Container) bool {
	if c.RestartPolicy != nil {
		return *c.RestartPolicy != corev1.ContainerRestartPolicyNever
	}
	return pod.Spec.RestartPolicy != corev1.RestartPolicyNever
}

// initContainers plans the init containers of the current sandbox and reports
// whether regular containers may run.
//
// Completed ones may have been removed from the runtime, so the search goes
// from the last to the first: whatever precedes one that has been started is
// taken for complete, except sidecars, which must keep running.
func (p *planner) initContainers() bool {
	specs := p.pod.Spec.InitContainers
	if len(specs) == 0 {
		return true
	}
	done := false // init containers after the one looked at need no start
	for i := range p.pod.Spec.Containers {
		if p.rt.Current(p.pod.Spec.Containers[i].Name) != nil {
			done = true
		}
	}
	ready, reached := done, done
	var starts []start
	for i := len(specs) - 1; i >= 0; i-- {
		c := &specs[i]
		cur := p.rt.Current(c.Name)
		if cur == nil {
			if reached && isSidecar(c) {
				starts = append(starts, start{c, initial})
			}
			continue
		}
		if reached && !isSidecar(c) {
			continue
		}
		complete, again, final := p.initContainer(c, cur)
		if final {
			p.out = plan{finished: true}
			return false
		}
		if again {
			starts = append(starts, start{c, initial})
		}
		if complete && !reached {
			if i == len(specs)-1 {
				ready = true
			} else {
				starts = append(starts, start{&specs[i+1], initial})
			}
		}
		reached = true
	}
	if !reached {
		starts = append(starts, start{&specs[0], initial})
	}
	slices.Reverse(starts)
	p.out.start = append(p.out.start, starts...)
	return ready
}

// initContainer looks at one started init container: whether the next may
// start, whether it has to start again, and whether its failure ends the pod.
func (p *planner) initContainer(c *corev1.Container, cur *cri.Container) (complete, again, final bool) {
	switch {
	case cur.Running() && !isSidecar(c):
		return false, false, false
	case cur.Running():
		if k, broken := p.broken(c, cur); broken {
			p.out.kill = append(p.out.kill, k)
			return false, true, false
		}
		r, has := p.results.Result(probe.Startup, cur.ID)
		if !has && c.StartupProbe != nil {
			return false, false, false // the probe has not begun
		}
		return !has || r == probe.Success, false, false
	case isSidecar(c):
		// A sidecar that had started counts as such while it restarts.
		return false, true, false
	case cur.Exited() && cur.ExitCode == 0:
		return true, false, false
	case restarts(p.pod, c, cur):
		return false, true, false
	}
	return false, false, true
}

// broken reports whether a running container must be replaced, and how.
func (p *planner) broken(c *corev1.Container, cur *cri.Container) (kill, bool) {
	k := kill{container: cur, spec: c}
	switch {
	case cur.Hash != "" && cur.Hash != cri.Hash(c):
		k.message = fmt.Sprintf("Container %s definition changed", c.Name)
	case p.failed(probe.Liveness, cur):
		k.message, k.grace = fmt.Sprintf("Container %s failed liveness probe", c.Name), probe.GracePeriod(c.LivenessProbe)
	case p.failed(probe.Startup, cur):
		k.message, k.grace = fmt.Sprintf("Container %s failed startup probe", c.Name), probe.GracePeriod(c.StartupProbe)
	default:
		return kill{}, false
	}
	return k, true
}

func (p *planner) failed(kind probe.Kind, cur *cri.Container) bool {
	r, has := p.results.Result(kind, cur.ID)
	return has && r == probe.Failure
}

// regular plans the containers of spec.containers.
func (p *planner) regular() {
	kept := 0
	for i := range p.pod.Spec.Containers {
		c := &p.pod.Spec.Containers[i]
		cur := p.rt.Container(c.Name)
		if !cur.Running() {
			if restarts(p.pod, c, cur) {
				p.out.start = append(p.out.start, start{c, regular})
			}
			continue
		}
		k, broken := p.broken(c, cur)
		if !broken {
			kept++
			continue
		}
		if mayRestart(p.pod, c) || cur.Hash != cri.Hash(c) {
			k.message += ", will be restarted"
			p.out.start = append(p.out.start, start{c, regular})
		} else {
			kept++ // until it has stopped
		}
		p.out.kill = append(p.out.kill, k)
	}
	if kept > 0 {
		return
	}
	for _, s := range p.out.start {
		if s.kind == regular {
			return
		}
	}
	p.out = plan{finished: true}
}
