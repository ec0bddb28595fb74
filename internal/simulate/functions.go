package simulate

import (
	corev1 "k8s.io/api/core/v1"

	"proa/internal/simulate/lifecycle"
)

// functions are those that KWOK's templates have about nodes and addresses.
func (s *Simulator) functions() map[string]any {
	return map[string]any{
		"NodeIP":   func() string { return s.config.NodeIP },
		"NodeName": func() string { return s.config.NodeIP }, // not the Node's: where its agent is
		"NodePort": func() int { return s.config.Port },
		"NodeIPWith": func(node string) string {
			if ips := s.nodeIPs(node); len(ips) > 0 {
				return ips[0]
			}
			return ""
		},
		"NodeIPsWith": s.nodeIPs,
		"PodIP":       func() string { return s.addrs.take(&corev1.Node{}) },
		"PodIPWith": func(node string, hostNetwork bool, uid, name, namespace string) string {
			if ips := s.podIPs(node, hostNetwork, namespace, name); len(ips) > 0 {
				return ips[0]
			}
			return ""
		},
		"PodIPsWith": func(node string, hostNetwork bool, uid, name, namespace string) []string {
			return s.podIPs(node, hostNetwork, namespace, name)
		},
		"Version": func() string { return lifecycle.Version },
	}
}

func (s *Simulator) nodeIPs(name string) []string {
	node, ok := s.nodes.Cached("", name)
	if !ok {
		return nil
	}
	var ips []string
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			ips = append(ips, a.Address)
		}
	}
	return ips
}

// podIPs are those that a pod has, or new ones.
func (s *Simulator) podIPs(node string, hostNetwork bool, namespace, name string) []string {
	if hostNetwork {
		return s.nodeIPs(node)
	}
	if pod, ok := s.pods.Cached(namespace, name); ok && pod.Status.PodIP != "" {
		return []string{pod.Status.PodIP}
	}
	on, ok := s.nodes.Cached("", node)
	if !ok {
		return nil
	}
	if ip := s.addrs.take(on); ip != "" {
		return []string{ip}
	}
	return nil
}
