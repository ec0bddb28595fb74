package status

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"proa/internal/kubelet/cri"
)

var now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// ready lists the ids of containers that are started and ready.
type ready string

func (r ready) Started(id string) bool { return strings.Contains(string(r), id) }
func (r ready) Ready(id string) bool   { return strings.Contains(string(r), id) }

func running(name string) *cri.Container {
	return &cri.Container{ID: name + "1", Name: name, SandboxID: "b", State: runtimeapi.ContainerState_CONTAINER_RUNNING, Started: now}
}

func exited(name string, code int32) *cri.Container {
	return &cri.Container{ID: name + "1", Name: name, SandboxID: "b", State: runtimeapi.ContainerState_CONTAINER_EXITED, ExitCode: code, Started: now, Finished: now}
}

func runtimePod(containers ...*cri.Container) *cri.Pod {
	return &cri.Pod{Containers: containers, Sandboxes: []*runtimeapi.PodSandboxStatus{{Id: "b", Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.5"}}}}
}

func podOf(policy corev1.RestartPolicy, names ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Generation: 3}, Spec: corev1.PodSpec{RestartPolicy: policy}}
	for _, n := range names {
		name, isInit := strings.CutPrefix(n, "init:")
		side, isSide := strings.CutPrefix(n, "side:")
		switch {
		case isInit:
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: name})
		case isSide:
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: side, RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)})
		default:
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: n})
		}
	}
	return p
}

// summary prints phase, conditions with reason, and container states.
func summary(s corev1.PodStatus) string {
	out := []string{string(s.Phase)}
	for _, c := range s.Conditions {
		if c.Type == corev1.PodScheduled {
			continue
		}
		v := string(c.Type) + "=" + string(c.Status)
		if c.Reason != "" {
			v += "/" + c.Reason
		}
		out = append(out, v)
	}
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for _, c := range list {
			switch {
			case c.State.Running != nil:
				out = append(out, c.Name+":running")
			case c.State.Terminated != nil:
				out = append(out, c.Name+":terminated")
			default:
				out = append(out, c.Name+":"+c.State.Waiting.Reason)
			}
		}
	}
	return strings.Join(out, " ")
}

func TestGenerate(t *testing.T) {
	tests := []struct {
		name    string
		pod     *corev1.Pod
		rt      *cri.Pod
		ready   ready
		waiting map[string]Waiting
		stopped bool
		end     *End
		want    string
	}{
		{"a pod without a sandbox is pending", podOf("Always", "a"), &cri.Pod{}, "", nil, false, nil,
			"Pending PodReadyToStartContainers=False Initialized=True Ready=False/ContainersNotReady ContainersReady=False/ContainersNotReady a:ContainerCreating"},
		{"a pod runs when all containers do", podOf("Always", "a"), runtimePod(running("a")), "a1", nil, false, nil,
			"Running PodReadyToStartContainers=True Initialized=True Ready=True ContainersReady=True a:running"},
		{"one that is not ready keeps the pod from being so", podOf("Always", "a", "b"), runtimePod(running("a"), running("b")), "a1", nil, false, nil,
			"Running PodReadyToStartContainers=True Initialized=True Ready=False/ContainersNotReady ContainersReady=False/ContainersNotReady a:running b:running"},
		{"init containers come first", podOf("Always", "init:i", "a"), runtimePod(running("i")), "", nil, false, nil,
			"Pending PodReadyToStartContainers=True Initialized=False/ContainersNotInitialized Ready=False/ContainersNotReady ContainersReady=False/ContainersNotReady i:running a:PodInitializing"},
		{"a container in backoff leaves the pod running", podOf("Always", "a"), runtimePod(exited("a", 1)), "", map[string]Waiting{"a": {"CrashLoopBackOff", "m"}}, false, nil,
			"Running PodReadyToStartContainers=True Initialized=True Ready=False/ContainersNotReady ContainersReady=False/ContainersNotReady a:CrashLoopBackOff"},
		{"an image error keeps it pending", podOf("Always", "a"), runtimePod(), "", map[string]Waiting{"a": {"ErrImagePull", "m"}}, false, nil,
			"Pending PodReadyToStartContainers=True Initialized=True Ready=False/ContainersNotReady ContainersReady=False/ContainersNotReady a:ErrImagePull"},
		{"the phase ends only when all has stopped", podOf("Never", "a"), runtimePod(exited("a", 0)), "", nil, false, nil,
			"Running PodReadyToStartContainers=True Initialized=True Ready=False/ContainersNotReady ContainersReady=False/ContainersNotReady a:terminated"},
		{"success", podOf("Never", "a"), runtimePod(exited("a", 0)), "", nil, true, nil,
			"Succeeded PodReadyToStartContainers=True Initialized=True/PodCompleted Ready=False/PodCompleted ContainersReady=False/PodCompleted a:terminated"},
		{"failure", podOf("Never", "a"), runtimePod(exited("a", 2)), "", nil, true, nil,
			"Failed PodReadyToStartContainers=True Initialized=True Ready=False/PodFailed ContainersReady=False/PodFailed a:terminated"},
		{"an evicted pod failed whatever its containers said", podOf("Never", "a"), runtimePod(exited("a", 0)), "", nil, true, &End{Reason: "Evicted"},
			"Failed PodReadyToStartContainers=True Initialized=True Ready=False/PodFailed ContainersReady=False/PodFailed a:terminated"},
		{"a sidecar's exit code does not count", podOf("Never", "side:s", "a"), runtimePod(exited("s", 137), exited("a", 0)), "", nil, true, nil,
			"Succeeded PodReadyToStartContainers=True Initialized=True/PodCompleted Ready=False/PodCompleted ContainersReady=False/PodCompleted s:terminated a:terminated"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := Generate(Input{Pod: tt.pod, Runtime: tt.rt, Waiting: tt.waiting, Health: tt.ready, Started: now, Now: now, Stopped: tt.stopped, End: tt.end, RuntimeName: "containerd"})
			if got := summary(s); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if s.ObservedGeneration != 3 || s.StartTime == nil || s.QOSClass != corev1.PodQOSBestEffort {
				t.Errorf("status %+v", s)
			}
		})
	}
}

func TestAnEndedPhaseStays(t *testing.T) {
	p := podOf("Always", "a")
	p.Status.Phase = corev1.PodFailed
	s := Generate(Input{Pod: p, Runtime: runtimePod(running("a")), Health: ready("a1"), Now: now})
	if s.Phase != corev1.PodFailed {
		t.Errorf("phase %s", s.Phase)
	}
}

func TestReadinessGates(t *testing.T) {
	p := podOf("Always", "a")
	p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/lb"}, {ConditionType: "example.com/no"}}
	p.Status.Conditions = []corev1.PodCondition{{Type: "example.com/lb", Status: corev1.ConditionFalse}}
	s := Generate(Input{Pod: p, Runtime: runtimePod(running("a")), Health: ready("a1"), Now: now})
	for _, c := range s.Conditions {
		if c.Type != corev1.PodReady {
			continue
		}
		want := `the status of pod readiness gate "example.com/lb" is not "True", but False, corresponding condition of pod readiness gate "example.com/no" does not exist.`
		if c.Status != corev1.ConditionFalse || c.Reason != "ReadinessGatesNotReady" || c.Message != want {
			t.Errorf("condition %+v", c)
		}
	}
}

func TestTransitionTimesMoveOnlyWithTheStatus(t *testing.T) {
	p := podOf("Always", "a")
	first := Generate(Input{Pod: p, Runtime: runtimePod(running("a")), Health: ready(""), Now: now})
	p.Status = first
	second := Generate(Input{Pod: p, Runtime: runtimePod(running("a")), Health: ready("a1"), Now: now.Add(time.Minute)})
	for i, c := range second.Conditions {
		moved := !c.LastTransitionTime.Equal(&first.Conditions[i].LastTransitionTime)
		if changed := c.Status != first.Conditions[i].Status; moved != changed {
			t.Errorf("%s: status changed %v, time moved %v", c.Type, changed, moved)
		}
	}
}

func TestPatchHoldsOnlyTheDifference(t *testing.T) {
	p := podOf("Always", "a")
	p.UID = "u"
	p.Status = Generate(Input{Pod: p, Runtime: runtimePod(running("a")), Health: ready(""), Now: now})
	if _, same, err := diff(p, &p.Status); err != nil || !same {
		t.Errorf("equal statuses differ: %v %v", same, err)
	}
	next := p.Status.DeepCopy()
	next.Phase = corev1.PodRunning
	next.PodIP = "10.0.0.9"
	data, same, err := diff(p, next)
	if err != nil || same {
		t.Fatal(same, err)
	}
	var got map[string]map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if len(got["status"]) != 1 || got["status"]["podIP"] != "10.0.0.9" || got["metadata"]["uid"] != "u" {
		t.Errorf("patch %s", data)
	}
}

func TestMergeKeepsWhatOthersWrote(t *testing.T) {
	old := &corev1.PodStatus{Phase: corev1.PodSucceeded, NominatedNodeName: "n", Conditions: []corev1.PodCondition{
		{Type: "example.com/gate", Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	got := merge(old, &corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
		{Type: "example.com/gate", Status: corev1.ConditionFalse}, {Type: corev1.PodReady, Status: corev1.ConditionFalse}}})
	if got.Phase != corev1.PodSucceeded || got.NominatedNodeName != "n" || got.Conditions[0].Status != corev1.ConditionTrue || got.Conditions[1].Status != corev1.ConditionFalse {
		t.Errorf("merged %+v", got)
	}
}

func TestStopSignalsThatWereAskedFor(t *testing.T) {
	pod := podOf(corev1.RestartPolicyAlways, "a", "b")
	pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{StopSignal: ptr.To(corev1.SIGRTMINPLUS1)}
	a, b := running("a"), running("b")
	a.StopSignal, b.StopSignal = runtimeapi.Signal_SIGNAL_SIGRTMINPLUS1, runtimeapi.Signal_SIGNAL_SIGQUIT
	s := Generate(Input{Pod: pod, Runtime: runtimePod(a, b), Health: ready("a1 b1"), Now: now, Started: now})
	if got := s.ContainerStatuses[0].StopSignal; got == nil || *got != corev1.SIGRTMINPLUS1 {
		t.Errorf("the signal asked for is said to be %v", got)
	}
	if got := s.ContainerStatuses[1].StopSignal; got != nil {
		t.Errorf("the image's signal is said: %s", *got)
	}
}

func TestResourcesOfThePodAsAWhole(t *testing.T) {
	of := func(cpu string) *corev1.ResourceRequirements {
		l := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		return &corev1.ResourceRequirements{Requests: l, Limits: l}
	}
	tests := []struct {
		name                    string
		given, inForce, said    *corev1.ResourceRequirements
		wantGiven, wantResource string
	}{
		{"those in force may lag behind", of("2"), of("1"), of("1"), "2", "1"},
		{"a new life keeps what the last one said", of("2"), nil, of("1"), "2", "1"},
		{"a pod without them says nothing", nil, nil, of("1"), "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pod := podOf(corev1.RestartPolicyAlways, "a")
			pod.Spec.Resources, pod.Status.Resources = tt.given, tt.said
			s := Generate(Input{Pod: pod, Runtime: runtimePod(running("a")), Health: ready("a1"), Now: now, Started: now, Resources: tt.inForce})
			given, resources := "", ""
			if s.AllocatedResources != nil {
				given = s.AllocatedResources.Cpu().String()
			}
			if s.Resources != nil {
				resources = s.Resources.Limits.Cpu().String()
			}
			if given != tt.wantGiven || resources != tt.wantResource {
				t.Errorf("allocated %q, in force %q; want %q, %q", given, resources, tt.wantGiven, tt.wantResource)
			}
		})
	}
}
