package node

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func statusOf(runtimeOK, networkOK bool) *runtimeapi.StatusResponse {
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: "RuntimeReady", Status: runtimeOK, Reason: "R", Message: "m"},
		{Type: "NetworkReady", Status: networkOK, Reason: "NetworkPluginNotReady", Message: "cni plugin not initialized"},
	}}}
}

func TestReadiness(t *testing.T) {
	const network = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:cni plugin not initialized"
	for _, tt := range []struct {
		name string
		rt   *runtimeapi.StatusResponse
		want string
	}{
		{"ready", statusOf(true, true), ""},
		{"before the first answer", nil, "container runtime status check may not have completed yet"},
		{"without a network", statusOf(true, false), network},
		{"with nothing", statusOf(false, false), "[" + network + ", container runtime not ready: RuntimeReady=false reason:R message:m]"},
	} {
		if got := readiness(tt.rt, nil); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestConditions(t *testing.T) {
	got := map[corev1.NodeConditionType]string{}
	for _, c := range conditions([]corev1.NodeConditionType{corev1.NodeDiskPressure}, "why") {
		got[c.Type] = string(c.Status) + " " + c.Reason + " " + c.Message
	}
	for kind, want := range map[corev1.NodeConditionType]string{
		corev1.NodeMemoryPressure: "False KubeletHasSufficientMemory kubelet has sufficient memory available",
		corev1.NodeDiskPressure:   "True KubeletHasDiskPressure kubelet has disk pressure",
		corev1.NodePIDPressure:    "False KubeletHasSufficientPID kubelet has sufficient PID available",
		corev1.NodeReady:          "False KubeletNotReady why",
	} {
		if got[kind] != want {
			t.Errorf("%s: %q, want %q", kind, got[kind], want)
		}
	}
}

func TestSetConditionMovesTheTransitionOnlyWithTheStatus(t *testing.T) {
	s := &corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Foreign", Status: corev1.ConditionTrue}}}
	at := func(sec int64) metav1.Time { return metav1.NewTime(time.Unix(sec, 0)) }
	setCondition(s, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse}, at(1))
	setCondition(s, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse}, at(2))
	if c := condition(s, corev1.NodeReady); c.LastTransitionTime.Unix() != 1 || c.LastHeartbeatTime.Unix() != 2 {
		t.Errorf("same status: %+v", c)
	}
	setCondition(s, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}, at(3))
	if c := condition(s, corev1.NodeReady); c.LastTransitionTime.Unix() != 3 || len(s.Conditions) != 2 {
		t.Errorf("changed status: %+v", s.Conditions)
	}
}

func TestAllocatable(t *testing.T) {
	m := Machine{CPUs: 2, Memory: 1 << 30, Disk: 100 << 30, HugePages: map[string]int64{"2Mi": 64 << 20}}
	got := Allocatable(m.Capacity(110), corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), "nvidia.com/gpu": resource.MustParse("1")},
		corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("100Mi"), corev1.ResourceEphemeralStorage: resource.MustParse("10Gi")})
	for name, want := range map[corev1.ResourceName]string{
		corev1.ResourceCPU: "1500m", corev1.ResourceMemory: "860Mi", corev1.ResourceEphemeralStorage: "90Gi", corev1.ResourcePods: "110", "hugepages-2Mi": "64Mi",
	} {
		if q := got[name]; q.Cmp(resource.MustParse(want)) != 0 {
			t.Errorf("%s: %s, want %s", name, q.String(), want)
		}
	}
	if len(got) != 5 {
		t.Errorf("resources %v", got)
	}
	m.Disk = 0
	if q, shown := m.Capacity(110)[corev1.ResourceEphemeralStorage]; shown {
		t.Errorf("a disk that is not counted has %s", q.String())
	}
	if q := Allocatable(m.Capacity(110), corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")})[corev1.ResourceMemory]; q.Sign() != 0 {
		t.Errorf("more is reserved than there is, and %s are left", q.String())
	}
}

func TestReadMachine(t *testing.T) {
	m, err := ReadMachine(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if m.CPUs < 1 || m.Memory <= 0 || m.Disk <= 0 || !strings.Contains(m.KernelVersion, ".") {
		t.Errorf("machine %+v", m)
	}
}
