package podworker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"proa/internal/kubelet/cri"
	"proa/internal/kubelet/probe"
)

// results answers for probes by container id.
type results map[string]probe.Result

func (r results) Result(kind probe.Kind, id string) (probe.Result, bool) {
	v, ok := r[string(kind)+"/"+id]
	return v, ok
}

// parse reads a pod: "always| init i, sidecar s, app a".
func parse(t *testing.T, text string) *corev1.Pod {
	t.Helper()
	policy, list, _ := strings.Cut(text, "|")
	pod := &corev1.Pod{}
	pod.Spec.RestartPolicy = map[string]corev1.RestartPolicy{
		"always": corev1.RestartPolicyAlways, "onfailure": corev1.RestartPolicyOnFailure, "never": corev1.RestartPolicyNever}[strings.TrimSpace(policy)]
	for _, item := range strings.Split(list, ",") {
		var kind, name string
		if _, err := fmt.Sscan(item, &kind, &name); err != nil {
			t.Fatalf("%q: %v", item, err)
		}
		c := corev1.Container{Name: name, Image: "image"}
		switch kind {
		case "init":
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		case "sidecar", "probed-sidecar":
			c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
			if kind == "probed-sidecar" {
				c.StartupProbe = &corev1.Probe{}
			}
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		case "app":
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		case "debug":
			pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name}})
		default:
			t.Fatalf("kind %q", kind)
		}
	}
	return pod
}

// state reads a runtime state, oldest first: "box, i=0, a=run, a=created". A
// number is an exit code; "box" starts a sandbox, "deadbox" one that stopped.
func state(t *testing.T, pod *corev1.Pod, text string) *cri.Pod {
	t.Helper()
	rt := &cri.Pod{}
	box := ""
	for i, item := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		if item == "box" || item == "deadbox" {
			box = fmt.Sprintf("b%d", len(rt.Sandboxes))
			s := &runtimeapi.PodSandboxStatus{Id: box, Metadata: &runtimeapi.PodSandboxMetadata{Attempt: uint32(len(rt.Sandboxes))},
				Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"}}
			if item == "deadbox" {
				s.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
			}
			rt.Sandboxes = append([]*runtimeapi.PodSandboxStatus{s}, rt.Sandboxes...)
			continue
		}
		name, what, _ := strings.Cut(item, "=")
		c := &cri.Container{ID: name, Name: name, SandboxID: box, Created: time.Unix(int64(i), 0), Hash: cri.Hash(&corev1.Container{Name: name, Image: "image"})}
		switch what {
		case "run":
			c.State = runtimeapi.ContainerState_CONTAINER_RUNNING
		case "changed":
			c.State, c.Hash = runtimeapi.ContainerState_CONTAINER_RUNNING, "other"
		case "created":
			c.State = runtimeapi.ContainerState_CONTAINER_CREATED
		default:
			c.State = runtimeapi.ContainerState_CONTAINER_EXITED
			if _, err := fmt.Sscan(what, &c.ExitCode); err != nil {
				t.Fatalf("%q: %v", item, err)
			}
		}
		rt.Containers = append([]*cri.Container{c}, rt.Containers...)
	}
	return rt
}

func (p plan) String() string {
	var out []string
	if p.finished {
		out = append(out, "finished")
	}
	if p.sandbox {
		out = append(out, fmt.Sprintf("sandbox %d", p.attempt))
	}
	for _, k := range p.kill {
		out = append(out, "kill "+k.container.Name)
	}
	for _, s := range p.start {
		out = append(out, "start "+s.spec.Name)
	}
	return strings.Join(out, ", ")
}

func TestPlan(t *testing.T) {
	tests := []struct {
		name, pod, state string
		results          results
		want             string
	}{
		{"a new pod gets a sandbox", "always|app a", "", nil, "sandbox 0"},
		{"containers follow the sandbox", "always|app a, app b", "box", nil, "start a, start b"},
		{"a running pod needs nothing", "always|app a", "box, a=run", nil, ""},
		{"an ended container restarts", "always|app a", "box, a=0", nil, "start a"},
		{"a failed container restarts on failure", "onfailure|app a", "box, a=1", nil, "start a"},
		{"a successful one does not", "onfailure|app a, app b", "box, a=0, b=run", nil, ""},
		{"a pod that never restarts is finished by any exit", "never|app a", "box, a=1", nil, "finished"},
		{"a pod is finished when the last container ended", "never|app a, app b", "box, a=1, b=run", nil, ""},
		{"a created container that did not start is made again", "never|app a", "box, a=created", nil, "start a"},
		{"a dead sandbox is replaced", "always|app a", "deadbox, a=137", nil, "sandbox 1"},
		{"a finished pod gets no new sandbox", "never|app a", "deadbox, a=0", nil, "finished"},
		{"a pod that succeeded gets no new sandbox", "onfailure|app a", "deadbox, a=0", nil, "finished"},
		{"a pod that failed gets one on failure", "onfailure|app a", "deadbox, a=1", nil, "sandbox 1"},
		{"init containers run again in a new sandbox", "always|init i, app a", "deadbox, i=0, a=137, box", nil, "start i"},

		{"the first init container starts alone", "always|init i, init j, app a", "box", nil, "start i"},
		{"a running init container is waited for", "always|init i, init j, app a", "box, i=run", nil, ""},
		{"the next follows a successful one", "always|init i, init j, app a", "box, i=0", nil, "start j"},
		{"apps follow the last", "always|init i, init j, app a", "box, i=0, j=0", nil, "start a"},
		{"removed init containers do not run again", "always|init i, init j, app a", "box, j=0", nil, "start a"},
		{"nor once an app has run", "always|init i, app a", "box, a=1", nil, "start a"},
		{"a failed init container is tried again", "always|init i, app a", "box, i=1", nil, "start i"},
		{"a failed init container ends a pod that never restarts", "never|init i, app a", "box, i=1", nil, "finished"},

		{"a running sidecar lets the next start", "always|sidecar s, init i, app a", "box, s=run", nil, "start i"},
		{"a sidecar with a startup probe holds the next back", "always|probed-sidecar s, init i, app a", "box, s=run", nil, ""},
		{"until the probe succeeds", "always|probed-sidecar s, init i, app a", "box, s=run", results{"Startup/s": probe.Success}, "start i"},
		{"a sidecar that ended restarts beside the others", "always|sidecar s, app a", "box, s=1, a=run", nil, "start s"},
		{"a lost sidecar restarts", "always|sidecar s, app a", "box, a=run", nil, "start s"},
		{"sidecars do not keep a finished pod alive", "never|sidecar s, app a", "box, s=run, a=0", nil, "finished"},
		{"a sidecar restarts in a pod that never restarts", "never|sidecar s, app a", "box, s=0, a=run", nil, "start s"},

		{"a container that fails liveness is replaced", "always|app a", "box, a=run", results{"Liveness/a": probe.Failure}, "kill a, start a"},
		{"and only killed where nothing restarts", "never|app a", "box, a=run", results{"Liveness/a": probe.Failure}, "kill a"},
		{"failed readiness changes nothing", "always|app a", "box, a=run", results{"Readiness/a": probe.Failure}, ""},
		{"a changed definition replaces the container", "always|app a", "box, a=changed", nil, "kill a, start a"},
		{"an ephemeral container starts once", "always|app a, debug d", "box, a=run", nil, "start d"},
		{"and never again", "always|app a, debug d", "box, a=run, d=0", nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pod := parse(t, tt.pod)
			if got := makePlan(pod, state(t, pod, tt.state), tt.results).String(); got != tt.want {
				t.Errorf("plan %q, want %q", got, tt.want)
			}
		})
	}
}

func TestContainerRestartRules(t *testing.T) {
	c := &corev1.Container{Name: "a", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyNever), RestartPolicyRules: []corev1.ContainerRestartRule{{
		Action:    corev1.ContainerRestartRuleActionRestart,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
	}}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways}}
	for code, want := range map[int32]bool{42: true, 1: false, 0: false} {
		cur := &cri.Container{State: runtimeapi.ContainerState_CONTAINER_EXITED, ExitCode: code}
		if got := restarts(pod, c, cur); got != want {
			t.Errorf("exit %d: restarts %v, want %v", code, got, want)
		}
	}
}
