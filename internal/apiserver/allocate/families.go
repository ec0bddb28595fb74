package allocate

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/core"
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
	if before != nil && keepsPreferred(svc, before) {
		return nil
	}
	selectorless := spec.ClusterIP == headless && len(spec.Selector) == 0
	switch {
	case spec.IPFamilyPolicy != nil:
	case before != nil && before.Spec.IPFamilyPolicy != nil:
		spec.IPFamilyPolicy = before.Spec.IPFamilyPolicy
	default:
		policy := corev1.IPFamilyPolicySingleStack
		if selectorless {
			policy = corev1.IPFamilyPolicyRequireDualStack
		}
		spec.IPFamilyPolicy = &policy
	}
	errs := core.ValidateServiceIPs(svc)
	if len(errs) > 0 {
		return invalid(svc, errs...)
	}
	if before != nil {
		errs = downgrade(spec, &before.Spec)
	}
	errs = append(errs, s.inferFamilies(spec)...)
	if len(errs) == 0 && selectorless {
		s.selectorlessFamilies(spec)
		return nil
	}
	if len(errs) == 0 {
		errs = s.completeFamilies(spec)
	}
	if len(errs) > 0 {
		return invalid(svc, errs...)
	}
	return nil
}

// downgrade drops the second address and family of a Service that an update made
// SingleStack and otherwise left alone. Another policy keeps both.
func downgrade(spec, before *corev1.ServiceSpec) (errs field.ErrorList) {
	if *spec.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack {
		if len(spec.ClusterIPs) > 1 && slices.Equal(spec.ClusterIPs, before.ClusterIPs) {
			spec.ClusterIPs = spec.ClusterIPs[:1]
		}
		if len(spec.IPFamilies) > 1 && slices.Equal(spec.IPFamilies, before.IPFamilies) {
			spec.IPFamilies = spec.IPFamilies[:1]
		}
		return nil
	}
	at := field.NewPath("spec", "ipFamilyPolicy")
	if len(spec.ClusterIPs) == 1 && len(before.ClusterIPs) > 1 && spec.ClusterIPs[0] == before.ClusterIPs[0] {
		errs = append(errs, field.Invalid(at, spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary cluster IP"))
	}
	if len(spec.IPFamilies) == 1 && len(before.IPFamilies) > 1 && spec.IPFamilies[0] == before.IPFamilies[0] {
		errs = append(errs, field.Invalid(at, spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary IP family"))
	}
	return errs
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

// inferFamilies holds the policy to what was asked for, and adds the families of
// the addresses that were.
func (s *Services) inferFamilies(spec *corev1.ServiceSpec) (errs field.ErrorList) {
	at := field.NewPath("spec")
	if *spec.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack {
		if len(spec.ClusterIPs) == 2 {
			errs = append(errs, field.Invalid(at.Child("ipFamilyPolicy"), spec.IPFamilyPolicy, "must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified"))
		}
		if len(spec.IPFamilies) == 2 {
			errs = append(errs, field.Invalid(at.Child("ipFamilyPolicy"), spec.IPFamilyPolicy, "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"))
		}
	}
	for i, ip := range spec.ClusterIPs {
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			break // headless
		}
		switch family := familyOf(addr); {
		case i < len(spec.IPFamilies):
		case s.serves(family):
			spec.IPFamilies = append(spec.IPFamilies, family)
		default:
			errs = append(errs, field.Invalid(at.Child("clusterIPs").Index(i), spec.ClusterIPs, fmt.Sprintf("%s is not configured on this cluster", family)))
		}
	}
	return errs
}

// completeFamilies holds policy and families to what the cluster has, and adds the
// default family, and the second one where policy and cluster allow it.
func (s *Services) completeFamilies(spec *corev1.ServiceSpec) (errs field.ErrorList) {
	at := field.NewPath("spec")
	if *spec.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack && len(s.families) < 2 {
		errs = append(errs, field.Invalid(at.Child("ipFamilyPolicy"), spec.IPFamilyPolicy, "this cluster is not configured for dual-stack services"))
	}
	for i, f := range spec.IPFamilies {
		if !s.serves(f) {
			errs = append(errs, field.Invalid(at.Child("ipFamilies").Index(i), f, "not configured on this cluster"))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []corev1.IPFamily{s.families[0]}
	}
	if *spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack && len(spec.IPFamilies) == 1 && len(s.families) == 2 {
		spec.IPFamilies = append(spec.IPFamilies, other(spec.IPFamilies[0]))
	}
	return nil
}
