package podworker

import (
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/kubelet/criconfig"
)

const hostsPath = "/etc/hosts"

// writeHosts writes a pod's hosts file: the pod's own names, or the node's file
// for a pod on the host's network, and hostAliases. An existing file keeps its
// inode, because containers have it mounted.
func writeHosts(file string, pod *corev1.Pod, ips []string, domain string) error {
	var b strings.Builder
	if pod.Spec.HostNetwork {
		host, err := os.ReadFile(hostsPath)
		if err != nil {
			return fmt.Errorf("read the node's hosts file: %w", err)
		}
		b.WriteString("# Kubernetes-managed hosts file (host network).\n")
		b.Write(host)
	} else {
		b.WriteString(ownHosts(pod, ips, domain))
	}
	if len(pod.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
		for _, a := range pod.Spec.HostAliases {
			fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
		}
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("write hosts file: %w", err)
	}
	return nil
}

func ownHosts(pod *corev1.Pod, ips []string, clusterDomain string) string {
	var b strings.Builder
	b.WriteString("# Kubernetes-managed hosts file.\n")
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	b.WriteString("fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
	host, domain := criconfig.Names(pod, clusterDomain)
	for _, ip := range ips {
		if domain != "" {
			fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, host, domain, host)
		} else {
			fmt.Fprintf(&b, "%s\t%s\n", ip, host)
		}
	}
	return b.String()
}
