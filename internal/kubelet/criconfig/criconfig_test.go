package criconfig

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

func podWith(change func(*corev1.PodSpec)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}, Spec: corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst, Containers: []corev1.Container{{Name: "c"}}}}
	if change != nil {
		change(&p.Spec)
	}
	return p
}

func TestDNS(t *testing.T) {
	host, err := ParseResolvConf(strings.NewReader("# comment\nsearch old\nnameserver 1.1.1.1\nsearch corp. lan\noptions timeout:2\n"))
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "cluster.local", ResolvConf: host}
	tests := []struct {
		name string
		pod  *corev1.Pod
		want string
	}{
		{"cluster names come before the host's", podWith(nil),
			"10.96.0.10 | ns.svc.cluster.local svc.cluster.local cluster.local corp lan | ndots:5"},
		{"a pod on the host's network uses the host's", podWith(func(s *corev1.PodSpec) { s.HostNetwork = true }),
			"1.1.1.1 | corp lan | timeout:2"},
		{"unless it asks for the cluster's", podWith(func(s *corev1.PodSpec) { s.HostNetwork, s.DNSPolicy = true, corev1.DNSClusterFirstWithHostNet }),
			"10.96.0.10 | ns.svc.cluster.local svc.cluster.local cluster.local corp lan | ndots:5"},
		{"Default is the host's", podWith(func(s *corev1.PodSpec) { s.DNSPolicy = corev1.DNSDefault }), "1.1.1.1 | corp lan | timeout:2"},
		{"None is what the pod says", podWith(func(s *corev1.PodSpec) {
			s.DNSPolicy = corev1.DNSNone
			s.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"9.9.9.9"}, Searches: []string{"x"}, Options: []corev1.PodDNSConfigOption{{Name: "edns0"}}}
		}), "9.9.9.9 | x | edns0"},
		{"dnsConfig adds, and replaces options of the same name", podWith(func(s *corev1.PodSpec) {
			s.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"9.9.9.9", "10.96.0.10"}, Searches: []string{"lan", "x"}, Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: ptr.To("2")}}}
		}), "10.96.0.10 9.9.9.9 | ns.svc.cluster.local svc.cluster.local cluster.local corp lan x | ndots:2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := DNS(n, tt.pod)
			got := strings.Join(c.Servers, " ") + " | " + strings.Join(c.Searches, " ") + " | " + strings.Join(c.Options, " ")
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
	if again := DNS(n, podWith(nil)); len(n.ResolvConf.Searches) != 2 || len(again.Searches) != 5 {
		t.Errorf("a pod changed the host's configuration: %+v", n.ResolvConf)
	}
}

func FuzzParseResolvConf(f *testing.F) {
	f.Add("nameserver 1.1.1.1\noptions\nsearch")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseResolvConf(strings.NewReader(s))
		if err == nil {
			limited := DNS(&Node{ResolvConf: c}, podWith(func(s *corev1.PodSpec) { s.DNSPolicy = corev1.DNSDefault }))
			if len(limited.Servers) > maxNameservers || len(strings.Join(limited.Searches, " ")) > maxSearchesBytes {
				t.Errorf("limits exceeded: %+v", limited)
			}
		}
	})
}

func TestNamesOfAPod(t *testing.T) {
	sub := func(s *corev1.PodSpec) { s.Hostname, s.Subdomain, s.SetHostnameAsFQDN = "h", "sub", ptr.To(true) }
	for _, tt := range []struct {
		name                 string
		pod                  *corev1.Pod
		host, domain, kernel string
	}{
		{"the pod's name", podWith(nil), "p", "", "p"},
		{"the hostname", podWith(func(s *corev1.PodSpec) { s.Hostname = "h" }), "h", "", "h"},
		{"a domain with the subdomain", podWith(func(s *corev1.PodSpec) { s.Subdomain = "sub" }), "p", "sub.ns.svc.cluster.local", "p"},
		{"the full name where asked", podWith(sub), "h", "sub.ns.svc.cluster.local", "h.sub.ns.svc.cluster.local"},
		{"no full name without a subdomain", podWith(func(s *corev1.PodSpec) { s.SetHostnameAsFQDN = ptr.To(true) }), "p", "", "p"},
		{"an override stands alone", podWith(func(s *corev1.PodSpec) { sub(s); s.HostnameOverride = ptr.To("o.example") }), "o.example", "", "o.example"},
	} {
		host, domain := Names(tt.pod, "cluster.local")
		kernel, err := kernelName(tt.pod, "cluster.local")
		if host != tt.host || domain != tt.domain || kernel != tt.kernel || err != nil {
			t.Errorf("%s: host %q, domain %q, kernel %q (%v)", tt.name, host, domain, kernel, err)
		}
	}
	p := podWith(nil)
	p.Name = strings.Repeat("a", 62) + ".b"
	if got, _ := Names(p, ""); got != strings.Repeat("a", 62) {
		t.Errorf("cut to %q", got)
	}
}

func TestAFullNameTooLongForTheKernelIsAnError(t *testing.T) {
	domain := ".s.ns.svc.c"
	for length, fits := range map[int]bool{maxKernelName: true, maxKernelName + 1: false} {
		pod := podWith(func(s *corev1.PodSpec) {
			s.Hostname, s.Subdomain, s.SetHostnameAsFQDN = strings.Repeat("h", length-len(domain)), "s", ptr.To(true)
		})
		cfg, err := Sandbox(&Node{ClusterDomain: "c"}, pod, 0, nil)
		if (err == nil) != fits || fits && len(cfg.Hostname) != length {
			t.Errorf("%d bytes: %v", length, err)
		}
	}
}

func TestVerifyNonRoot(t *testing.T) {
	nonRoot := func(user *int64) *corev1.Pod {
		return podWith(func(s *corev1.PodSpec) {
			s.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: user}
		})
	}
	for _, tt := range []struct {
		name  string
		pod   *corev1.Pod
		image ImageUser
		want  string
	}{
		{"nothing asked", podWith(nil), ImageUser{UID: ptr.To[int64](0)}, ""},
		{"another user", nonRoot(ptr.To[int64](7)), ImageUser{UID: ptr.To[int64](0)}, ""},
		{"user 0", nonRoot(ptr.To[int64](0)), ImageUser{}, `container's runAsUser breaks non-root policy (pod: "p_ns(u)", container: c)`},
		{"an image of root", nonRoot(nil), ImageUser{UID: ptr.To[int64](0)}, `container has runAsNonRoot and image will run as root (pod: "p_ns(u)", container: c)`},
		{"an image with a name", nonRoot(nil), ImageUser{Name: "web"}, `container has runAsNonRoot and image has non-numeric user (web), cannot verify user is non-root (pod: "p_ns(u)", container: c)`},
	} {
		got := ""
		if err := VerifyNonRoot(tt.pod, &tt.pod.Spec.Containers[0], tt.image); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestResources(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	n := &Node{MemoryCapacity: 1 << 30, EnforceCPUQuota: true, HugePageSizes: []string{"2MB"}}
	p := podWith(func(s *corev1.PodSpec) {
		s.Containers[0].Resources = corev1.ResourceRequirements{Requests: list("250m", "256Mi"), Limits: list("1", "512Mi")}
		s.Containers[0].Resources.Limits["hugepages-2Mi"] = resource.MustParse("4Mi")
	})
	r := Resources(n, p, &p.Spec.Containers[0])
	if r.CpuShares != 256 || r.CpuQuota != 100_000 || r.MemoryLimitInBytes != 512<<20 || r.OomScoreAdj != 750 || r.HugepageLimits[0].Limit != 4<<20 {
		t.Errorf("burstable: %+v", r)
	}
	best := podWith(nil)
	if r := Resources(n, best, &best.Spec.Containers[0]); r.CpuShares != 2 || r.CpuQuota != 0 || r.OomScoreAdj != 1000 {
		t.Errorf("best effort: %+v", r)
	}
	g := podWith(func(s *corev1.PodSpec) {
		s.Containers[0].Resources = corev1.ResourceRequirements{Requests: list("1m", "1Mi"), Limits: list("1m", "1Mi")}
	})
	if r := Resources(n, g, &g.Spec.Containers[0]); r.CpuShares != 2 || r.CpuQuota != 1000 || r.OomScoreAdj != -997 {
		t.Errorf("guaranteed: %+v", r)
	}
}

func TestResourcesOfAPodAsAWhole(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	n := &Node{MemoryCapacity: 1 << 30, EnforceCPUQuota: true, HugePageSizes: []string{"2MB"}}
	p := podWith(func(s *corev1.PodSpec) {
		s.Resources = &corev1.ResourceRequirements{Requests: list("500m", "512Mi"), Limits: list("1", "768Mi")}
		s.Resources.Limits["hugepages-2Mi"] = resource.MustParse("4Mi")
		s.Containers[0].Resources = corev1.ResourceRequirements{Requests: list("100m", "256Mi"), Limits: list("200m", "256Mi")}
		s.Containers = append(s.Containers, corev1.Container{Name: "open"})
		s.Overhead = list("250m", "128Mi")
	})
	// Of the pod's request 256Mi are left for two containers.
	if r := Resources(n, p, &p.Spec.Containers[0]); r.CpuShares != 102 || r.CpuQuota != 20_000 || r.MemoryLimitInBytes != 256<<20 || r.OomScoreAdj != 625 {
		t.Errorf("a container with limits: %+v", r)
	}
	if r := Resources(n, p, &p.Spec.Containers[1]); r.CpuShares != 1024 || r.CpuQuota != 100_000 || r.MemoryLimitInBytes != 768<<20 || r.OomScoreAdj != 875 || r.HugepageLimits[0].Limit != 4<<20 {
		t.Errorf("a container without: %+v", r)
	}
	if req, lim := PodTotals(p); req.Cpu().MilliValue() != 750 || req.Memory().Value() != 640<<20 || lim.Cpu().MilliValue() != 1250 || lim.Memory().Value() != 896<<20 {
		t.Errorf("the pod's group: %v %v", req, lim)
	}
	cfg, err := Sandbox(n, p, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r, over := cfg.Linux.Resources, cfg.Linux.Overhead; r.CpuShares != 512 || r.MemoryLimitInBytes != 768<<20 || over.CpuQuota != 25_000 || over.MemoryLimitInBytes != 128<<20 {
		t.Errorf("the sandbox: %+v, overhead %+v", r, over)
	}
	p.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}
	if _, lim := PodTotals(p); lim.Cpu().MilliValue() != 1250 || !lim.Memory().IsZero() {
		t.Errorf("with a limit of cpu alone: %v", lim)
	}
}

func TestSecurity(t *testing.T) {
	p := podWith(func(s *corev1.PodSpec) {
		s.HostPID = true
		s.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](1), FSGroup: ptr.To[int64](9), SupplementalGroups: []int64{8},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: ptr.To("../../x.json")}}
		s.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: ptr.To[int64](2), AllowPrivilegeEscalation: ptr.To(false),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
	})
	s := Security(&Node{SeccompDir: "/seccomp"}, p, &p.Spec.Containers[0], ImageUser{}, "", nil)
	if s.RunAsUser.Value != 2 || !s.NoNewPrivs || len(s.SupplementalGroups) != 2 || s.Capabilities.DropCapabilities[0] != "ALL" || len(s.MaskedPaths) == 0 {
		t.Errorf("security: %+v", s)
	}
	if s.NamespaceOptions.Pid != runtimeapi.NamespaceMode_NODE || s.NamespaceOptions.Network != runtimeapi.NamespaceMode_POD {
		t.Errorf("namespaces: %+v", s.NamespaceOptions)
	}
	if s.Seccomp.LocalhostRef != "/seccomp/x.json" {
		t.Errorf("seccomp profile outside its directory: %s", s.Seccomp.LocalhostRef)
	}
}

func TestSignals(t *testing.T) {
	for in, want := range map[corev1.Signal]runtimeapi.Signal{
		"SIGUSR1": runtimeapi.Signal_SIGNAL_SIGUSR1, "SIGRTMIN+3": runtimeapi.Signal_SIGNAL_SIGRTMINPLUS3, "SIGRTMAX-2": runtimeapi.Signal_SIGNAL_SIGRTMAXMINUS2,
	} {
		if got := signal(in); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
}
