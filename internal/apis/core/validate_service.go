package core

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"proa/internal/apis/validate"
)

const (
	maxAffinitySeconds = 24 * 60 * 60
)

var (
	serviceTypes = []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName}
	ipFamilies   = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
)

func validateService(s *corev1.Service) field.ErrorList {
	path, spec := field.NewPath("spec"), &s.Spec
	var errs field.ErrorList
	if len(spec.Ports) == 0 && !isHeadless(s) && spec.Type != corev1.ServiceTypeExternalName {
		errs = append(errs, field.Required(path.Child("ports"), ""))
	}
	errs = append(errs, validateByType(s, path)...)
	errs = append(errs, validateServicePorts(s, path.Child("ports"))...)
	errs = append(errs, validate.Labels(path.Child("selector"), spec.Selector)...)
	errs = append(errs, validateSessionAffinity(spec, path)...)
	errs = append(errs, ValidateServiceIPs(s)...)
	for i, ip := range spec.ExternalIPs {
		at := path.Child("externalIPs").Index(i)
		bad := validation.IsValidIPForLegacyField(at, ip, true, nil)
		if len(bad) == 0 {
			bad = ValidateEndpointIP(ip, at)
		}
		errs = append(errs, bad...)
	}
	errs = append(errs, validate.RequiredOneOf(path.Child("type"), spec.Type, serviceTypes...)...)
	errs = append(errs, validateLoadBalancer(s, path)...)
	errs = append(errs, validateTrafficPolicies(s, path)...)
	if d := spec.TrafficDistribution; d != nil {
		errs = append(errs, validate.Listed(path.Child("trafficDistribution"), *d,
			corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode)...)
	}
	return errs
}

func isHeadless(s *corev1.Service) bool {
	return s.Spec.ClusterIP == corev1.ClusterIPNone || len(s.Spec.ClusterIPs) == 1 && s.Spec.ClusterIPs[0] == corev1.ClusterIPNone
}

func validateByType(s *corev1.Service, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		if isHeadless(s) {
			errs = append(errs, field.Invalid(path.Child("clusterIPs").Index(0), corev1.ClusterIPNone, fmt.Sprintf("may not be set to 'None' for %s services", s.Spec.Type)))
		}
	case corev1.ServiceTypeExternalName:
		if len(s.Spec.ClusterIPs) > 0 || s.Spec.ClusterIP != "" {
			errs = append(errs, field.Forbidden(path.Child("clusterIPs"), "may not be set for ExternalName services"))
		}
		if len(s.Spec.IPFamilies) > 0 {
			errs = append(errs, field.Forbidden(path.Child("ipFamilies"), "may not be set for ExternalName services"))
		}
		if s.Spec.IPFamilyPolicy != nil {
			errs = append(errs, field.Forbidden(path.Child("ipFamilyPolicy"), "may not be set for ExternalName services"))
		}
		if name := strings.TrimSuffix(s.Spec.ExternalName, "."); name == "" {
			errs = append(errs, field.Required(path.Child("externalName"), ""))
		} else {
			errs = append(errs, validate.Subdomain(path.Child("externalName"), name)...)
		}
	}
	return errs
}

func validateServicePorts(s *corev1.Service, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names, ports, nodePorts := sets.New[string](), sets.New[string](), sets.New[string]()
	for i := range s.Spec.Ports {
		p, at := &s.Spec.Ports[i], path.Index(i)
		errs = append(errs, validateServicePort(p, len(s.Spec.Ports) > 1, isHeadless(s), names, at)...)
		key := fmt.Sprintf("%s/%d", p.Protocol, p.Port)
		if ports.Has(key) {
			errs = append(errs, field.Duplicate(at, corev1.ServicePort{Protocol: p.Protocol, Port: p.Port}))
		}
		ports.Insert(key)
		if p.NodePort == 0 {
			continue
		}
		if s.Spec.Type == corev1.ServiceTypeClusterIP || s.Spec.Type == corev1.ServiceTypeExternalName {
			errs = append(errs, field.Forbidden(at.Child("nodePort"), "may not be used when `type` is '"+string(s.Spec.Type)+"'"))
			continue
		}
		key = fmt.Sprintf("%s/%d", p.Protocol, p.NodePort)
		if nodePorts.Has(key) {
			errs = append(errs, field.Duplicate(at.Child("nodePort"), p.NodePort))
		}
		nodePorts.Insert(key)
	}
	return errs
}

func validateServicePort(p *corev1.ServicePort, named, headless bool, names sets.Set[string], at *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case named && p.Name == "":
		errs = append(errs, field.Required(at.Child("name"), ""))
	case p.Name != "":
		errs = append(errs, validate.Label(at.Child("name"), p.Name)...)
		if names.Has(p.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
		}
		names.Insert(p.Name)
	}
	errs = append(errs, validate.Port(at.Child("port"), p.Port)...)
	errs = append(errs, validate.RequiredOneOf(at.Child("protocol"), p.Protocol, protocols...)...)
	errs = append(errs, validate.PortNumOrName(at.Child("targetPort"), p.TargetPort)...)
	if p.AppProtocol != nil {
		errs = append(errs, validate.QualifiedName(at.Child("appProtocol"), *p.AppProtocol)...)
	}
	return errs
}

func validateSessionAffinity(s *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	errs := validate.RequiredOneOf(path.Child("sessionAffinity"), s.SessionAffinity, corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone)
	at := path.Child("sessionAffinityConfig")
	switch s.SessionAffinity {
	case corev1.ServiceAffinityClientIP:
		timeout := at.Child("clientIP", "timeoutSeconds")
		if c := s.SessionAffinityConfig; c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
			errs = append(errs, field.Required(at, fmt.Sprintf("when session affinity type is %s", corev1.ServiceAffinityClientIP)))
		} else if t := *c.ClientIP.TimeoutSeconds; t <= 0 || t > maxAffinitySeconds {
			errs = append(errs, field.Invalid(timeout, t, fmt.Sprintf("must be greater than 0 and less than %d", maxAffinitySeconds)))
		}
	case corev1.ServiceAffinityNone:
		if s.SessionAffinityConfig != nil {
			errs = append(errs, field.Forbidden(at, fmt.Sprintf("must not be set when session affinity is %s", corev1.ServiceAffinityNone)))
		}
	}
	return errs
}

// ValidateServiceIPs checks cluster IPs, families and policy against one another.
// Allocation asks before it begins, and the Service is checked with the rest.
func ValidateServiceIPs(s *corev1.Service) field.ErrorList {
	spec, path := &s.Spec, field.NewPath("spec")
	if spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	ips := path.Child("clusterIPs")
	var errs field.ErrorList
	switch first := spec.ClusterIP; {
	case first != "" && len(spec.ClusterIPs) == 0:
		errs = append(errs, field.Required(ips, ""))
	case first != "" && spec.ClusterIPs[0] != first:
		errs = append(errs, field.Invalid(ips, spec.ClusterIPs, "first value must match `clusterIP`"))
	case first == "" && len(spec.ClusterIPs) != 0:
		errs = append(errs, field.Invalid(ips, spec.ClusterIPs, "must be empty when `clusterIP` is not specified"))
	}
	families := sets.New[corev1.IPFamily]()
	for i, f := range spec.IPFamilies {
		at := path.Child("ipFamilies").Index(i)
		errs = append(errs, validate.OneOf(at, f, ipFamilies...)...)
		if families.Has(f) {
			errs = append(errs, field.Duplicate(at, f))
		}
		families.Insert(f)
	}
	if p := spec.IPFamilyPolicy; p != nil {
		errs = append(errs, validate.OneOf(path.Child("ipFamilyPolicy"), *p, corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack)...)
	}
	return append(errs, validateClusterIPs(spec, ips)...)
}

// validateClusterIPs looks at families of addresses only when all are addresses.
func validateClusterIPs(spec *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	valid := true
	for i, ip := range spec.ClusterIPs {
		var bad field.ErrorList
		switch {
		case i > 0 || ip != corev1.ClusterIPNone:
			bad = validation.IsValidIPForLegacyField(path.Index(i), ip, true, nil)
		case len(spec.ClusterIPs) > 1:
			bad = field.ErrorList{field.Invalid(path, spec.ClusterIPs, "'None' must be the first and only value")}
		}
		valid = valid && len(bad) == 0
		errs = append(errs, bad...)
	}
	if len(spec.ClusterIPs) > 2 {
		errs = append(errs, field.Invalid(path, spec.ClusterIPs, "may only hold up to 2 values"))
	}
	if !valid || spec.ClusterIP == corev1.ClusterIPNone {
		return errs
	}
	if len(spec.ClusterIPs) > 1 {
		if dual, err := netutils.IsDualStackIPStrings(spec.ClusterIPs); err == nil && !dual {
			errs = append(errs, field.Invalid(path, spec.ClusterIPs, "may specify no more than one IP for each IP family"))
		}
	}
	for i := range min(len(spec.ClusterIPs), len(spec.IPFamilies)) {
		ip, family := spec.ClusterIPs[i], spec.IPFamilies[i]
		if v6 := netutils.IsIPv6String(ip); slices.Contains(ipFamilies, family) && v6 != (family == corev1.IPv6Protocol) {
			errs = append(errs, field.Invalid(path.Index(i), ip, fmt.Sprintf("expected an %v value as indicated by `ipFamilies[%v]`", family, i)))
		}
	}
	return errs
}

func validateLoadBalancer(s *corev1.Service, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if ranges := s.Spec.LoadBalancerSourceRanges; len(ranges) > 0 {
		at := path.Child("LoadBalancerSourceRanges") // upstream's spelling
		if !isBalancer(s) {
			errs = append(errs, field.Forbidden(at, "may only be used when `type` is 'LoadBalancer'"))
		}
		for i, r := range ranges {
			errs = append(errs, validation.IsValidCIDRForLegacyField(at.Index(i), strings.TrimSpace(r), true, nil)...)
		}
	}
	if s.Spec.AllocateLoadBalancerNodePorts == nil && isBalancer(s) {
		errs = append(errs, field.Required(path.Child("allocateLoadBalancerNodePorts"), ""))
	}
	if s.Spec.AllocateLoadBalancerNodePorts != nil && !isBalancer(s) {
		errs = append(errs, field.Forbidden(path.Child("allocateLoadBalancerNodePorts"), "may only be used when `type` is 'LoadBalancer'"))
	}
	if c := s.Spec.LoadBalancerClass; c != nil {
		if !isBalancer(s) {
			errs = append(errs, field.Forbidden(path.Child("loadBalancerClass"), "may only be used when `type` is 'LoadBalancer'"))
		}
		errs = append(errs, validate.QualifiedName(path.Child("loadBalancerClass"), *c)...)
	}
	return errs
}

func validateTrafficPolicies(s *corev1.Service, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	external := path.Child("externalTrafficPolicy")
	switch p := s.Spec.ExternalTrafficPolicy; {
	case !isExternal(s) && p != "":
		errs = append(errs, field.Invalid(external, p, "may only be set for externally-accessible services"))
	case isExternal(s) && p == "":
		errs = append(errs, field.Required(external, "when service is externally accessible"))
	case p != "":
		errs = append(errs, validate.OneOf(external, p, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)...)
	}
	health := path.Child("healthCheckNodePort")
	switch n := s.Spec.HealthCheckNodePort; {
	case n != 0 && !needsHealthPort(s):
		errs = append(errs, field.Invalid(health, n, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"))
	case n != 0:
		errs = append(errs, validate.Port(health, n)...)
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return errs
	}
	internal := path.Child("internalTrafficPolicy")
	if p := s.Spec.InternalTrafficPolicy; p == nil {
		errs = append(errs, field.Required(internal, ""))
	} else {
		errs = append(errs, validate.OneOf(internal, *p, corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)...)
	}
	return errs
}

func validateServiceUpdate(s, old *corev1.Service) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	// An address may be given up or taken on with a change of type, not swapped.
	if old.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.Type != corev1.ServiceTypeExternalName {
		if !isHeadless(old) || !isHeadless(s) {
			errs = append(errs, validateClusterIPsUpdate(s, old, path)...)
		}
		if !isHeadless(old) && !isHeadless(s) {
			errs = append(errs, validateFamiliesUpdate(s, old, path)...)
		}
	}
	if isBalancer(s) && isBalancer(old) && !equalPtr(old.Spec.LoadBalancerClass, s.Spec.LoadBalancerClass) {
		errs = append(errs, field.Invalid(path.Child("loadBalancerClass"), s.Spec.LoadBalancerClass, "may not change once set"))
	}
	if needsHealthPort(s) && needsHealthPort(old) && s.Spec.HealthCheckNodePort != old.Spec.HealthCheckNodePort {
		errs = append(errs, field.Forbidden(path.Child("healthCheckNodePort"), "field is immutable"))
	}
	return append(errs, validateService(s)...)
}

func isBalancer(s *corev1.Service) bool { return s.Spec.Type == corev1.ServiceTypeLoadBalancer }

func isSingleStack(s *corev1.Service) bool {
	return s.Spec.IPFamilyPolicy != nil && *s.Spec.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack
}

// validateClusterIPsUpdate keeps the addresses a Service has. A second one may be
// taken on, or given up by asking for a single stack.
func validateClusterIPsUpdate(s, old *corev1.Service, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	ips, now, before := path.Child("clusterIPs"), s.Spec.ClusterIPs, old.Spec.ClusterIPs
	if len(now) == 0 && len(before) > 0 {
		errs = append(errs, field.Invalid(ips.Index(0), now, "primary clusterIP can not be unset"))
	}
	compared := min(len(now), len(before))
	if len(now) != len(before) {
		compared = min(compared, 1)
	}
	for i := range compared {
		if now[i] != before[i] {
			errs = append(errs, field.Invalid(ips.Index(i), now, "may not change once set"))
		}
	}
	if len(now) == 1 && len(before) > 1 && !isSingleStack(s) {
		errs = append(errs, field.Invalid(path.Child("ipFamilyPolicy"), s.Spec.IPFamilyPolicy, "must be set to 'SingleStack' when releasing the secondary clusterIP"))
	}
	return errs
}

// validateFamiliesUpdate keeps the families, as validateClusterIPsUpdate the addresses.
func validateFamiliesUpdate(s, old *corev1.Service, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	at, now, before := path.Child("ipFamilies").Index(0), s.Spec.IPFamilies, old.Spec.IPFamilies
	if len(now) == len(before) {
		for i := range now {
			if now[i] != before[i] {
				errs = append(errs, field.Invalid(at, now, "may not change once set"))
			}
		}
		return errs
	}
	if len(before) > len(now) && len(s.Spec.ClusterIPs) == 0 {
		errs = append(errs, field.Invalid(at, now, "primary ipFamily can not be unset"))
	}
	if len(now) > 0 && len(before) > 0 && now[0] != before[0] {
		errs = append(errs, field.Invalid(at, s.Spec.ClusterIPs, "may not change once set"))
	}
	if len(now) == 1 && len(before) > 1 && !isSingleStack(s) {
		errs = append(errs, field.Invalid(path.Child("ipFamilyPolicy"), s.Spec.IPFamilyPolicy, "must be set to 'SingleStack' when releasing the secondary ipFamily"))
	}
	return errs
}

func validateServiceStatusUpdate(s, _ *corev1.Service) field.ErrorList {
	path := field.NewPath("status", "loadBalancer", "ingress")
	var errs field.ErrorList
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer && len(s.Status.LoadBalancer.Ingress) > 0 {
		return append(errs, field.Forbidden(path, "may only be used when `spec.type` is 'LoadBalancer'"))
	}
	for i, in := range s.Status.LoadBalancer.Ingress {
		at := path.Index(i)
		if in.IP != "" {
			errs = append(errs, validation.IsValidIPForLegacyField(at.Child("ip"), in.IP, true, nil)...)
		}
		if in.IP == "" && in.IPMode != nil {
			errs = append(errs, field.Forbidden(at.Child("ipMode"), "may not be specified when `ip` is not set"))
		}
		if in.IP != "" && in.IPMode == nil {
			errs = append(errs, field.Required(at.Child("ipMode"), "must be specified when `ip` is set"))
		}
		if in.IPMode != nil {
			errs = append(errs, validate.OneOf(at.Child("ipMode"), *in.IPMode, corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPModeVIP)...)
		}
		if in.Hostname != "" {
			errs = append(errs, validate.Subdomain(at.Child("hostname"), in.Hostname)...)
			if _, err := netip.ParseAddr(in.Hostname); err == nil {
				errs = append(errs, field.Invalid(at.Child("hostname"), in.Hostname, "must be a DNS name, not an IP address"))
			}
		}
	}
	return errs
}

func serviceWarnings(s, _ *corev1.Service) []string {
	var warnings []string
	if len(s.Spec.ExternalIPs) > 0 {
		warnings = append(warnings, "spec.externalIPs is deprecated and may no longer be implemented in some clusters")
	}
	for i, ip := range s.Spec.ExternalIPs {
		if addr, err := netip.ParseAddr(ip); err == nil && addr.String() != ip {
			warnings = append(warnings, validation.GetWarningsForIP(field.NewPath("spec", "externalIPs").Index(i), ip)...)
		}
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName && len(s.Spec.ExternalIPs) > 0 {
		warnings = append(warnings, "spec.externalIPs is ignored when spec.type is \"ExternalName\"")
	}
	if s.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.ExternalName != "" {
		warnings = append(warnings, "spec.externalName is ignored when spec.type is not \"ExternalName\"")
	}
	if d := s.Spec.TrafficDistribution; d != nil && *d == corev1.ServiceTrafficDistributionPreferClose {
		warnings = append(warnings, "spec.trafficDistribution: \"PreferClose\" is deprecated, use \"PreferSameZone\" instead")
	}
	if isHeadless(s) {
		if s.Spec.LoadBalancerIP != "" {
			warnings = append(warnings, "spec.loadBalancerIP is ignored for headless services")
		}
		if len(s.Spec.ExternalIPs) > 0 {
			warnings = append(warnings, "spec.externalIPs is ignored for headless services")
		}
		if s.Spec.SessionAffinity != corev1.ServiceAffinityNone {
			warnings = append(warnings, "spec.SessionAffinity is ignored for headless services")
		}
	}
	return slices.Compact(warnings)
}
