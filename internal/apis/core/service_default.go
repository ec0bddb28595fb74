package core

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// affinitySeconds is how long a client keeps its endpoint.
const affinitySeconds = int32(3 * 60 * 60)

func defaultService(s *corev1.Service) {
	spec := &s.Spec
	setIfEmpty(&spec.SessionAffinity, corev1.ServiceAffinityNone)
	switch spec.SessionAffinity {
	case corev1.ServiceAffinityNone:
		spec.SessionAffinityConfig = nil
	case corev1.ServiceAffinityClientIP:
		if c := spec.SessionAffinityConfig; c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
			spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(affinitySeconds)}}
		}
	}
	setIfEmpty(&spec.Type, corev1.ServiceTypeClusterIP)
	for i := range spec.Ports {
		p := &spec.Ports[i]
		setIfEmpty(&p.Protocol, corev1.ProtocolTCP)
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	if isExternal(s) {
		setIfEmpty(&spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if spec.InternalTrafficPolicy == nil && spec.Type != corev1.ServiceTypeExternalName {
		spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster)
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		if spec.AllocateLoadBalancerNodePorts == nil {
			spec.AllocateLoadBalancerNodePorts = new(true)
		}
		for i := range s.Status.LoadBalancer.Ingress {
			if in := &s.Status.LoadBalancer.Ingress[i]; in.IP != "" && in.IPMode == nil {
				in.IPMode = new(corev1.LoadBalancerIPModeVIP)
			}
		}
	}
}

// isExternal: traffic reaches the service from outside of the cluster.
func isExternal(s *corev1.Service) bool {
	t := s.Spec.Type
	return t == corev1.ServiceTypeNodePort || t == corev1.ServiceTypeLoadBalancer ||
		t == corev1.ServiceTypeClusterIP && len(s.Spec.ExternalIPs) > 0
}

// patchAllocated keeps what was allocated when a client that never saw it
// updates a service that still needs it.
func patchAllocated(s, old *corev1.Service) {
	needsIP := func(s *corev1.Service) bool { return s.Spec.Type != corev1.ServiceTypeExternalName }
	if needsIP(old) && needsIP(s) {
		setIfEmpty(&s.Spec.ClusterIP, old.Spec.ClusterIP)
		if len(s.Spec.ClusterIPs) == 0 {
			s.Spec.ClusterIPs = old.Spec.ClusterIPs
		}
		if s.Spec.ClusterIP != old.Spec.ClusterIP && slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) {
			s.Spec.ClusterIPs = []string{s.Spec.ClusterIP} // an old client's change of the one it knows
		}
	}
	if needsNodePorts(old) && needsNodePorts(s) {
		keepNodePorts(s, old)
	}
	if needsHealthPort(old) && needsHealthPort(s) && s.Spec.HealthCheckNodePort == 0 {
		s.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
}

// keepNodePorts gives ports without a node port that of the old port of the same
// name, unless the update uses it elsewhere.
func keepNodePorts(s, old *corev1.Service) {
	before, used := map[string]int32{}, map[int32]bool{}
	for _, p := range old.Spec.Ports {
		before[p.Name] = p.NodePort
	}
	for _, p := range s.Spec.Ports {
		used[p.NodePort] = true
	}
	for i := range s.Spec.Ports {
		if p := &s.Spec.Ports[i]; p.NodePort == 0 && !used[before[p.Name]] {
			p.NodePort = before[p.Name]
		}
	}
}

func needsNodePorts(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer
}

func needsHealthPort(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// dropTypeDependentFields clears what belonged to the type the service had, where
// the update left it as it was: a client changes the type alone and means that.
func dropTypeDependentFields(s, old *corev1.Service) {
	if old == nil {
		return
	}
	wasExternalName, isExternalName := old.Spec.Type == corev1.ServiceTypeExternalName, s.Spec.Type == corev1.ServiceTypeExternalName
	if !wasExternalName && isExternalName {
		if sameIPs(s, old) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil
		}
		if slices.Equal(s.Spec.IPFamilies, old.Spec.IPFamilies) {
			s.Spec.IPFamilies = nil
		}
		if equalPtr(s.Spec.IPFamilyPolicy, old.Spec.IPFamilyPolicy) {
			s.Spec.IPFamilyPolicy = nil
		}
	}
	if needsNodePorts(old) && !needsNodePorts(s) && sameNodePorts(s, old) {
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].NodePort = 0
		}
	}
	if needsHealthPort(old) && !needsHealthPort(s) && s.Spec.HealthCheckNodePort == old.Spec.HealthCheckNodePort {
		s.Spec.HealthCheckNodePort = 0
	}
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer && old.Spec.Type == corev1.ServiceTypeLoadBalancer {
		if equalPtr(s.Spec.AllocateLoadBalancerNodePorts, old.Spec.AllocateLoadBalancerNodePorts) {
			s.Spec.AllocateLoadBalancerNodePorts = nil
		}
		if equalPtr(s.Spec.LoadBalancerClass, old.Spec.LoadBalancerClass) {
			s.Spec.LoadBalancerClass = nil
		}
	}
	if isExternal(old) && !isExternal(s) && s.Spec.ExternalTrafficPolicy == old.Spec.ExternalTrafficPolicy {
		s.Spec.ExternalTrafficPolicy = ""
	}
}

func sameIPs(s, old *corev1.Service) bool {
	if s.Spec.ClusterIP != old.Spec.ClusterIP || len(s.Spec.ClusterIPs) != len(old.Spec.ClusterIPs) {
		return false
	}
	for i := range s.Spec.ClusterIPs {
		if s.Spec.ClusterIPs[i] != old.Spec.ClusterIPs[i] {
			return false
		}
	}
	return true
}

// sameNodePorts: every node port of the update was there before.
func sameNodePorts(s, old *corev1.Service) bool {
	before := map[int32]bool{0: true}
	for _, p := range old.Spec.Ports {
		before[p.NodePort] = true
	}
	for _, p := range s.Spec.Ports {
		if !before[p.NodePort] {
			return false
		}
	}
	return true
}

func equalPtr[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}
