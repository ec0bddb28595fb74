// Package criconfig turns pods into the messages a CRI runtime is asked with:
// sandbox configuration, container configuration, security contexts, resources,
// DNS. Its functions are pure: what they need of the node comes in as Node.
package criconfig

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	sysctls "k8s.io/component-helpers/node/util/sysctl"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"proa/internal/kubelet/cri"
)

// Node is what the configuration of a pod takes from the node it runs on.
type Node struct {
	LogDir          string // root of the pods' log directories
	LinkDir         string // where each log has a link that is named after pod and container; empty: nowhere
	SeccompDir      string // where Localhost seccomp profiles lie
	SeccompDefault  bool   // RuntimeDefault for containers that name no profile
	ClusterDNS      []string
	ClusterDomain   string
	ResolvConf      ResolvConf // the host's
	MemoryCapacity  int64      // bytes; OOM scores are shares of it
	HugePageSizes   []string   // as runtimes spell them: 2MB, 1GB
	EnforceCPUQuota bool
	DefaultSysctls  map[string]string // of pods that do not set them
	KillTogether    bool              // out of memory kills all of a container; cgroup v2 only
	// CgroupParent is the pod's cgroup, as the runtime wants it spelled.
	CgroupParent func(*corev1.Pod) string
}

// LogDirectory is where a pod's log files go: <namespace>_<name>_<uid>.
func LogDirectory(root string, pod *corev1.Pod) string {
	return filepath.Join(root, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
}

// UserNamespace is the range of host ids a pod's ids 0..Length-1 map to.
type UserNamespace struct{ HostID, Length uint32 }

// Sandbox configures the pod's sandbox. Attempt counts the pod's sandboxes from
// 0; userns is nil for a pod in the host's user namespace. A full name that is too
// long for the kernel is an error.
func Sandbox(n *Node, pod *corev1.Pod, attempt uint32, userns *UserNamespace) (*runtimeapi.PodSandboxConfig, error) {
	dns := DNS(n, pod)
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		Labels:       cri.SandboxLabels(pod),
		Annotations:  pod.Annotations,
		LogDirectory: LogDirectory(n.LogDir, pod),
		DnsConfig:    dns,
		PortMappings: portMappings(pod),
		Linux:        linuxSandbox(n, pod, userns),
	}
	if pod.Spec.HostNetwork {
		return cfg, nil
	}
	var err error
	cfg.Hostname, err = kernelName(pod, n.ClusterDomain)
	return cfg, err
}

func linuxSandbox(n *Node, pod *corev1.Pod, userns *UserNamespace) *runtimeapi.LinuxPodSandboxConfig {
	sec := &runtimeapi.LinuxSandboxSecurityContext{
		Privileged:       hasPrivileged(pod),
		NamespaceOptions: namespaces(pod, "", userns),
		Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	lin := &runtimeapi.LinuxPodSandboxConfig{SecurityContext: sec, Sysctls: map[string]string{}, Resources: podResources(pod), Overhead: overhead(pod)}
	if n.CgroupParent != nil {
		lin.CgroupParent = n.CgroupParent(pod)
	}
	for name, value := range n.DefaultSysctls {
		if !pod.Spec.HostNetwork || !ofNetwork(name) {
			lin.Sysctls[strings.ReplaceAll(name, "/", ".")] = value
		}
	}
	sc := pod.Spec.SecurityContext
	if sc == nil {
		return lin
	}
	sec.RunAsUser, sec.RunAsGroup = int64Value(sc.RunAsUser), int64Value(sc.RunAsGroup)
	sec.SupplementalGroups = groups(pod)
	sec.SupplementalGroupsPolicy = groupsPolicy(sc)
	sec.SelinuxOptions = selinux(sc.SELinuxOptions)
	if sc.SeccompProfile != nil {
		sec.Seccomp = seccomp(n, sc.SeccompProfile)
	}
	for _, s := range sc.Sysctls {
		lin.Sysctls[strings.ReplaceAll(s.Name, "/", ".")] = s.Value
	}
	return lin
}

// ofNetwork reports whether a sysctl belongs to the network namespace.
func ofNetwork(sysctl string) bool {
	ns, _, _ := sysctls.GetNamespace(sysctl)
	return ns == sysctls.NetNamespace
}

// portMappings lists the host ports for networks configured from elsewhere: a
// CNI configuration that declares the portMappings capability gets them from the
// runtime. This project's own does not declare it, because its service proxy
// programs host ports, so there they have no effect.
func portMappings(pod *corev1.Pod) []*runtimeapi.PortMapping {
	if pod.Spec.HostNetwork {
		return nil
	}
	var out []*runtimeapi.PortMapping
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, p := range list[i].Ports {
				if p.HostPort == 0 {
					continue
				}
				out = append(out, &runtimeapi.PortMapping{
					ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP, Protocol: protocol(p.Protocol),
				})
			}
		}
	}
	return out
}

func protocol(p corev1.Protocol) runtimeapi.Protocol {
	switch p {
	case corev1.ProtocolUDP:
		return runtimeapi.Protocol_UDP
	case corev1.ProtocolSCTP:
		return runtimeapi.Protocol_SCTP
	}
	return runtimeapi.Protocol_TCP
}

const (
	maxHostname   = 63 // bytes of a DNS label
	maxKernelName = 64 // bytes of the kernel's host name
)

// Names are what a pod is called in DNS and in its hosts file: its host name and,
// with a subdomain, its domain. An override stands alone: it has no domain.
func Names(pod *corev1.Pod, clusterDomain string) (host, domain string) {
	if o := pod.Spec.HostnameOverride; o != nil {
		return shorten(*o), ""
	}
	host = shorten(cmp.Or(pod.Spec.Hostname, pod.Name))
	if pod.Spec.Subdomain == "" {
		return host, ""
	}
	return host, strings.Join([]string{pod.Spec.Subdomain, pod.Namespace, "svc", clusterDomain}, ".")
}

func shorten(name string) string {
	if len(name) <= maxHostname {
		return name
	}
	return strings.TrimRight(name[:maxHostname], "-.")
}

// kernelName is the host name inside the sandbox: with setHostnameAsFQDN the full one.
func kernelName(pod *corev1.Pod, clusterDomain string) (string, error) {
	host, domain := Names(pod, clusterDomain)
	if domain == "" || !ptr.Deref(pod.Spec.SetHostnameAsFQDN, false) {
		return host, nil
	}
	full := host + "." + domain
	if len(full) > maxKernelName {
		return "", fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (%d characters is the max, %d characters requested)", full, maxKernelName, len(full))
	}
	return full, nil
}

// FullName is how event and error texts name a pod: name_namespace(uid).
func FullName(pod *corev1.Pod) string {
	return fullName(pod.Name, pod.Namespace, pod.UID)
}

func fullName(name, namespace string, uid types.UID) string {
	return name + "_" + namespace + "(" + string(uid) + ")"
}

func int64Value(v *int64) *runtimeapi.Int64Value {
	if v == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *v}
}
