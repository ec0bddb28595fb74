// Package admit decides whether this node takes a pod that was bound to it: the
// scheduler may have decided on an older picture, and some pods come without a
// scheduler. A refused pod fails with a reason of upstream's.
package admit

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	corehelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	"k8s.io/kubectl/pkg/util/qos"

	"proa/internal/kubelet/status"
)

// safeSysctls are namespaced and cannot harm other pods.
var safeSysctls = []string{
	"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports",
	"net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
	"net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time",
	"net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem",
}

// systemCritical is the priority from which a pod is critical.
const systemCritical = 2_000_000_000

// Evicted is the reason of pods that a node ends, or does not take, because it is short
// of something.
const Evicted = "Evicted"

// Rules of one node.
type Rules struct {
	// UnsafeSysctls are allowed besides the safe ones; a trailing * matches any rest.
	UnsafeSysctls []string
	// Pressure names what the node is short of: its pressure conditions. Nil: nothing.
	Pressure func() []corev1.NodeConditionType
}

// Pod says why node refuses pod beside the others it runs, or nil.
func (r Rules) Pod(node *corev1.Node, pod *corev1.Pod, others []*corev1.Pod) *status.End {
	for _, check := range []func() (string, string){
		func() (string, string) { return supportedOS(pod) },
		func() (string, string) { return r.sysctls(pod) },
		func() (string, string) { return r.pressure(pod) },
		func() (string, string) { return room(node, pod, others) },
		func() (string, string) { return placement(node, pod, others) },
	} {
		if reason, message := check(); reason != "" {
			return status.Rejected(reason, message)
		}
	}
	return nil
}

func supportedOS(pod *corev1.Pod) (string, string) {
	if pod.Spec.OS != nil && pod.Spec.OS.Name != corev1.Linux {
		return "PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"
	}
	for _, key := range []string{corev1.LabelOSStable, "beta.kubernetes.io/os"} {
		if v, ok := pod.Spec.NodeSelector[key]; ok && v != "linux" {
			return "PodOSSelectorNodeLabelDoesNotMatch", "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
		}
	}
	return "", ""
}

func (r Rules) sysctls(pod *corev1.Pod) (string, string) {
	if pod.Spec.SecurityContext == nil {
		return "", ""
	}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		name := strings.ReplaceAll(s.Name, "/", ".")
		switch {
		case pod.Spec.HostNetwork && strings.HasPrefix(name, "net."):
			return "SysctlForbidden", fmt.Sprintf("forbidden sysctl: %q not allowed with host net enabled", s.Name)
		case pod.Spec.HostIPC && (strings.HasPrefix(name, "kernel.shm") || strings.HasPrefix(name, "kernel.msg") || name == "kernel.sem" || strings.HasPrefix(name, "fs.mqueue.")):
			return "SysctlForbidden", fmt.Sprintf("forbidden sysctl: %q not allowed with host ipc enabled", s.Name)
		case !slices.Contains(safeSysctls, name) && !matchesAny(r.UnsafeSysctls, name):
			return "SysctlForbidden", fmt.Sprintf("forbidden sysctl: %q not allowlisted", s.Name)
		}
	}
	return "", ""
}

func matchesAny(patterns []string, name string) bool {
	for _, p := range patterns {
		p = strings.ReplaceAll(p, "/", ".")
		if prefix, wild := strings.CutSuffix(p, "*"); p == name || (wild && strings.HasPrefix(name, prefix)) {
			return true
		}
	}
	return false
}

// Critical reports whether a pod is one that the node or the cluster depends on.
func Critical(pod *corev1.Pod) bool {
	return pod.Spec.Priority != nil && *pod.Spec.Priority >= systemCritical || pod.Annotations[corev1.MirrorPodAnnotationKey] != ""
}

// pressure keeps pods off a node that is short of memory or disk.
func (r Rules) pressure(pod *corev1.Pod) (string, string) {
	if r.Pressure == nil {
		return "", ""
	}
	short := r.Pressure()
	if len(short) == 0 || Critical(pod) {
		return "", ""
	}
	if slices.Equal(short, []corev1.NodeConditionType{corev1.NodeMemoryPressure}) {
		taint := corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}
		if qos.GetPodQOS(pod) != corev1.PodQOSBestEffort || tolerates(pod, &taint) {
			return "", ""
		}
	}
	return Evicted, fmt.Sprintf("The node had condition: %v. ", short)
}

func tolerates(pod *corev1.Pod, taint *corev1.Taint) bool {
	return corehelper.TolerationsTolerateTaint(klog.Background(), pod.Spec.Tolerations, taint, true)
}

// room compares the pod's requests with what the others leave, whose specs say what
// they were given.
func room(node *corev1.Node, pod *corev1.Pod, others []*corev1.Pod) (string, string) {
	free := node.Status.Allocatable
	if limit := free.Pods().Value(); int64(len(others))+1 > limit {
		return outOf(corev1.ResourcePods, 1, int64(len(others)), limit)
	}
	used := corev1.ResourceList{}
	for _, o := range others {
		for name, q := range requests(o) {
			sum := used[name]
			sum.Add(q)
			used[name] = sum
		}
	}
	want := requests(pod)
	names := make([]string, 0, len(want))
	for name := range want {
		names = append(names, string(name))
	}
	sort.Strings(names)
	for _, n := range names {
		name := corev1.ResourceName(n)
		w, u, f := want[name], used[name], free[name]
		if w.IsZero() {
			continue
		}
		if name == corev1.ResourceCPU {
			if w.MilliValue() > f.MilliValue()-u.MilliValue() {
				return outOf(name, w.MilliValue(), u.MilliValue(), f.MilliValue())
			}
			continue
		}
		if w.Value() > f.Value()-u.Value() {
			return outOf(name, w.Value(), u.Value(), f.Value())
		}
	}
	return "", ""
}

// Resize says why a running pod cannot have the resources of its spec: because
// the node is too small, or because of the others.
func Resize(node *corev1.Node, pod *corev1.Pod, others []*corev1.Pod) (reason, message string) {
	want := requests(pod)
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		w, limit := want[name], node.Status.Allocatable[name]
		if w.Cmp(limit) <= 0 {
			continue
		}
		have, most := w.Value(), limit.Value()
		if name == corev1.ResourceCPU {
			have, most = w.MilliValue(), limit.MilliValue()
		}
		return corev1.PodReasonInfeasible, fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d", name, have, most)
	}
	if short, message := room(node, pod, others); short != "" {
		return corev1.PodReasonDeferred, message
	}
	return "", ""
}

func requests(pod *corev1.Pod) corev1.ResourceList {
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
}

func outOf(name corev1.ResourceName, want, used, limit int64) (string, string) {
	return "OutOf" + string(name),
		fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, want, used, limit)
}

// placement checks node selectors, NoExecute taints and host ports.
func placement(node *corev1.Node, pod *corev1.Pod, others []*corev1.Pod) (string, string) {
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !ok {
		return predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
	}
	for i := range node.Spec.Taints {
		t := &node.Spec.Taints[i]
		if t.Effect == corev1.TaintEffectNoExecute && !tolerates(pod, t) {
			return predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate")
		}
	}
	taken := map[string]bool{}
	for _, o := range others {
		for _, p := range hostPorts(o) {
			taken[p.key()] = true
			taken[p.any()] = true
		}
	}
	for _, p := range hostPorts(pod) {
		if taken[p.key()] || p.ip == "" && taken[p.any()] || taken[port{proto: p.proto, number: p.number}.key()] {
			return predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
		}
	}
	return "", ""
}

func predicate(name, why string) (string, string) {
	return name, fmt.Sprintf("Predicate %s failed: %s", name, why)
}

type port struct {
	ip     string // empty: all addresses
	proto  corev1.Protocol
	number int32
}

func (p port) key() string { return fmt.Sprintf("%s/%s/%d", p.ip, p.proto, p.number) }
func (p port) any() string { return fmt.Sprintf("any/%s/%d", p.proto, p.number) }

func hostPorts(pod *corev1.Pod) []port {
	var out []port
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			for _, cp := range list[i].Ports {
				if cp.HostPort == 0 {
					continue
				}
				p := port{ip: cp.HostIP, proto: cp.Protocol, number: cp.HostPort}
				if p.ip == "0.0.0.0" || p.ip == "::" {
					p.ip = ""
				}
				if p.proto == "" {
					p.proto = corev1.ProtocolTCP
				}
				out = append(out, p)
			}
		}
	}
	return out
}
