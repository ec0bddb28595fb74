package allocate

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const headless = corev1.ClusterIPNone

// setFamilies completes clusterIPs, ipFamilies and ipFamilyPolicy so that each
// cluster IP to allocate has its family. Before is nil on create.
func (s *Services) setFamilies(svc, before *corev1.Service) error {
	spec := &svc.Spec
	if spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 && before == nil {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	if before != nil {
		if keepsPreferred(svc, before) {
			return nil
		}
		downgrade(spec, &before.Spec)
	}
	selectorless := spec.ClusterIP == headless && len(spec.Selector) == 0
	if spec.IPFamilyPolicy == nil {
		policy := corev1.IPFamilyPolicySingleStack
		if selectorless {
			policy = corev1.IPFamilyPolicyRequireDualStack
		}
		spec.IPFamilyPolicy = &policy
	}
	if selectorless {
		s.selectorlessFamilies(spec)
		return nil
	}
	if errs := s.inferFamilies(spec); len(errs) > 0 {
		return invalid(svc, errs...)
	}
	return nil
}

// downgrade drops the second family of a Service whose policy, and nothing else,
// an update made SingleStack.
func downgrade(spec, before *corev1.ServiceSpec) {
	single := func(p *corev1.IPFamilyPolicy) bool { return p != nil && *p == corev1.IPFamilyPolicySingleStack }
	if before.IPFamilyPolicy == nil || single(before.IPFamilyPolicy) || !single(spec.IPFamilyPolicy) {
		return
	}
	if len(spec.ClusterIPs) > 1 && slices.Equal(spec.ClusterIPs, before.ClusterIPs) {
		spec.ClusterIPs = spec.ClusterIPs[:1]
	}
	if len(spec.IPFamilies) > 1 && slices.Equal(spec.IPFamilies, before.IPFamilies) {
		spec.IPFamilies = spec.IPFamilies[:1]
	}
}

// keepsPreferred holds for a PreferDualStack Service whose IP fields an update
// leaves alone: it is not upgraded because the cluster became dual-stack.
func keepsPreferred(svc, before *corev1.Service) bool {
	a, b := &svc.Spec, &before.Spec
	prefer := func(p *corev1.IPFamilyPolicy) bool { return p != nil && *p == corev1.IPFamilyPolicyPreferDualStack }
	return before.Spec.Type != corev1.ServiceTypeExternalName && prefer(a.IPFamilyPolicy) && prefer(b.IPFamilyPolicy) &&
		slices.Equal(a.ClusterIPs, b.ClusterIPs) && slices.Equal(a.IPFamilies, b.IPFamilies)
}

// selectorlessFamilies lets a headless Service without selector have endpoints of
// any family, whatever the cluster has.
func (s *Services) selectorlessFamilies(spec *corev1.ServiceSpec) {
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []corev1.IPFamily{s.families[0]}
	}
	if len(spec.IPFamilies) == 1 && *spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack {
		spec.IPFamilies = append(spec.IPFamilies, other(spec.IPFamilies[0]))
	}
}

func other(f corev1.IPFamily) corev1.IPFamily {
	if f == corev1.IPv4Protocol {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

func (s *Services) inferFamilies(spec *corev1.ServiceSpec) (errs field.ErrorList) {
	at := field.NewPath("spec")
	for i, ip := range spec.ClusterIPs {
		if ip == headless || ip == "" {
			break
		}
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			break // validation says what is wrong with it
		}
		family := familyOf(addr)
		switch {
		case i >= len(spec.IPFamilies):
			spec.IPFamilies = append(spec.IPFamilies, family)
		case spec.IPFamilies[i] != family:
			errs = append(errs, field.Invalid(at.Child("clusterIPs").Index(i), spec.ClusterIPs,
				fmt.Sprintf("expected an %v value as indicated by `ipFamilies[%v]`", spec.IPFamilies[i], i)))
		}
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []corev1.IPFamily{s.families[0]}
	}
	for i, f := range spec.IPFamilies {
		if !s.serves(f) {
			errs = append(errs, field.Invalid(at.Child("ipFamilies").Index(i), f, "not configured on this cluster"))
		}
	}
	return append(errs, s.checkPolicy(spec)...)
}

// checkPolicy holds the policy to what was asked for and to what the cluster has,
// and adds the second family where both allow it.
func (s *Services) checkPolicy(spec *corev1.ServiceSpec) (errs field.ErrorList) {
	at := field.NewPath("spec", "ipFamilyPolicy")
	switch policy := *spec.IPFamilyPolicy; {
	case policy == corev1.IPFamilyPolicySingleStack:
		if len(spec.ClusterIPs) == 2 {
			errs = append(errs, field.Invalid(at, policy, "must be RequireDualStack or PreferDualStack when multiple 'clusterIPs' are specified"))
		}
		if len(spec.IPFamilies) == 2 {
			errs = append(errs, field.Invalid(at, policy, "must be RequireDualStack or PreferDualStack when multiple 'ipFamilies' are specified"))
		}
	case len(s.families) < 2 && policy == corev1.IPFamilyPolicyRequireDualStack:
		errs = append(errs, field.Invalid(at, policy, "this cluster is not configured for dual-stack services"))
	case len(s.families) == 2 && len(spec.IPFamilies) == 1:
		spec.IPFamilies = append(spec.IPFamilies, other(spec.IPFamilies[0]))
	}
	return errs
}
