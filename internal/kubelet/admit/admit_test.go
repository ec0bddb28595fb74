package admit

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func request(name corev1.ResourceName, q string) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{name: resource.MustParse(q)}}}}}}
}

func with(change func(*corev1.PodSpec)) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{}}}}
	change(&p.Spec)
	return p
}

func hostPort(ip string, port int32) *corev1.Pod {
	return with(func(s *corev1.PodSpec) {
		s.Containers[0].Ports = []corev1.ContainerPort{{HostIP: ip, HostPort: port, Protocol: corev1.ProtocolTCP}}
	})
}

func sysctl(name string, hostNetwork bool) *corev1.Pod {
	return with(func(s *corev1.PodSpec) {
		s.HostNetwork = hostNetwork
		s.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: name}}}
	})
}

func TestPod(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("3")}}}
	node.Labels = map[string]string{"zone": "a"}
	node.Spec.Taints = []corev1.Taint{{Key: "sick", Effect: corev1.TaintEffectNoExecute}}
	tolerant := func(p *corev1.Pod) *corev1.Pod {
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		return p
	}
	tests := []struct {
		name   string
		pod    *corev1.Pod
		others []*corev1.Pod
		want   string // reason and message
	}{
		{"a pod that fits", tolerant(request("cpu", "1")), nil, ""},
		{"too much cpu", tolerant(request("cpu", "1")), []*corev1.Pod{request("cpu", "1500m")},
			"OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu, requested: 1000, used: 1500, capacity: 2000"},
		{"too much memory", tolerant(request("memory", "2Gi")), nil,
			"OutOfmemory: Pod was rejected: Node didn't have enough resource: memory, requested: 2147483648, used: 0, capacity: 1073741824"},
		{"too many pods", tolerant(with(func(*corev1.PodSpec) {})), []*corev1.Pod{{}, {}, {}},
			"OutOfpods: Pod was rejected: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"},
		{"another zone", tolerant(with(func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"zone": "b"} })), nil,
			"NodeAffinity: Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"},
		{"an untolerated taint", with(func(*corev1.PodSpec) {}), nil,
			"TaintToleration: Pod was rejected: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"},
		{"a taken host port", tolerant(hostPort("", 80)), []*corev1.Pod{hostPort("127.0.0.1", 80)},
			"NodePorts: Pod was rejected: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"},
		{"the same port of another address", tolerant(hostPort("127.0.0.2", 80)), []*corev1.Pod{hostPort("127.0.0.1", 80)}, ""},
		{"a safe sysctl", tolerant(sysctl("kernel.shm_rmid_forced", false)), nil, ""},
		{"an unsafe sysctl", tolerant(sysctl("kernel.msgmax", false)), nil,
			`SysctlForbidden: Pod was rejected: forbidden sysctl: "kernel.msgmax" not allowlisted`},
		{"an allowed unsafe sysctl", tolerant(sysctl("net.core.somaxconn", false)), nil, ""},
		{"a net sysctl on the host's network", tolerant(sysctl("net.ipv4.tcp_syncookies", true)), nil,
			`SysctlForbidden: Pod was rejected: forbidden sysctl: "net.ipv4.tcp_syncookies" not allowed with host net enabled`},
		{"another system", with(func(s *corev1.PodSpec) { s.OS = &corev1.PodOS{Name: corev1.Windows} }), nil,
			"PodOSNotSupported: Pod was rejected: Failed to admit pod as the OS field doesn't match node OS"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if end := (Rules{UnsafeSysctls: []string{"net.core.*"}}).Pod(node, tt.pod, tt.others); end != nil {
				got = end.Reason + ": " + end.Message
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestPressureKeepsPodsAway(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{
		Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("3"), corev1.ResourceMemory: resource.MustParse("1Gi")}}}
	memory, disk := []corev1.NodeConditionType{corev1.NodeMemoryPressure}, []corev1.NodeConditionType{corev1.NodeDiskPressure}
	both := append(disk, memory...)
	tolerant := with(func(s *corev1.PodSpec) {
		s.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists}}
	})
	bestEffort, burstable := with(func(*corev1.PodSpec) {}), request("memory", "1Mi")
	vital := with(func(s *corev1.PodSpec) { s.Priority = ptr.To[int32](2_000_001_000) })
	for _, tt := range []struct {
		name  string
		short []corev1.NodeConditionType
		pod   *corev1.Pod
		want  string
	}{
		{"best effort under memory pressure", memory, bestEffort, "[MemoryPressure]"},
		{"best effort that tolerates memory pressure", memory, tolerant, ""},
		{"burstable under memory pressure", memory, burstable, ""},
		{"burstable under disk pressure", disk, burstable, "[DiskPressure]"},
		{"burstable under pressure of both", both, burstable, "[DiskPressure MemoryPressure]"},
		{"best effort that tolerates but one pressure of both", both, tolerant, "[DiskPressure MemoryPressure]"},
		{"critical under disk pressure", disk, vital, ""},
		{"best effort without pressure", nil, bestEffort, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if end := (Rules{Pressure: func() []corev1.NodeConditionType { return tt.short }}).Pod(node, tt.pod, nil); end != nil {
				got = end.Reason + ": " + end.Plain()
			}
			want := tt.want
			if want != "" {
				want = "Evicted: The node had condition: " + want + ". "
			}
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
