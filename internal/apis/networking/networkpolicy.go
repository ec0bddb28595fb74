package networking

import (
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/validate"
)

// NetworkPolicies is the networking.k8s.io/v1 networkpolicies resource.
var NetworkPolicies = apis.Resource{
	Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy", Plural: "networkpolicies", Short: []string{"netpol"},
	New: apis.New[networkingv1.NetworkPolicy], NewList: apis.NewList[networkingv1.NetworkPolicyList],
	Default:  apis.On(defaultNetworkPolicy),
	Validate: apis.Check(validateNetworkPolicy),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Pod-Selector", "string", networkingv1.NetworkPolicySpec{}.SwaggerDoc()["podSelector"]),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(p *networkingv1.NetworkPolicy, now time.Time) []any {
		return []any{p.Name, metav1.FormatLabelSelector(&p.Spec.PodSelector), apis.AgeOf(p, now)}
	}),
}

func defaultNetworkPolicy(p *networkingv1.NetworkPolicy) {
	for _, rule := range p.Spec.Ingress {
		defaultPolicyPorts(rule.Ports)
	}
	for _, rule := range p.Spec.Egress {
		defaultPolicyPorts(rule.Ports)
	}
	if len(p.Spec.PolicyTypes) == 0 {
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(p.Spec.Egress) > 0 {
			p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
}

func defaultPolicyPorts(ports []networkingv1.NetworkPolicyPort) {
	for i := range ports {
		if ports[i].Protocol == nil {
			ports[i].Protocol = new(corev1.ProtocolTCP)
		}
	}
}

func validateNetworkPolicy(p *networkingv1.NetworkPolicy) field.ErrorList {
	at, s := field.NewPath("spec"), &p.Spec
	errs := validate.Selector(at.Child("podSelector"), &s.PodSelector)
	for i, rule := range s.Ingress {
		rulePath := at.Child("ingress").Index(i)
		errs = append(errs, validatePolicyPorts(rule.Ports, rulePath.Child("ports"))...)
		errs = append(errs, validatePeers(rule.From, rulePath.Child("from"))...)
	}
	for i, rule := range s.Egress {
		rulePath := at.Child("egress").Index(i)
		errs = append(errs, validatePolicyPorts(rule.Ports, rulePath.Child("ports"))...)
		errs = append(errs, validatePeers(rule.To, rulePath.Child("to"))...)
	}
	types := at.Child("policyTypes")
	if len(s.PolicyTypes) > 2 {
		return append(errs, field.Invalid(types, s.PolicyTypes, "may not specify more than two policyTypes"))
	}
	for i, t := range s.PolicyTypes {
		errs = append(errs, validate.Listed(types.Index(i), t, networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress)...)
	}
	return errs
}

func validatePolicyPorts(ports []networkingv1.NetworkPolicyPort, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, p := range ports {
		path := at.Index(i)
		if p.Protocol != nil {
			errs = append(errs, validate.Listed(path.Child("protocol"), *p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)...)
		}
		if p.Port == nil {
			if p.EndPort != nil {
				errs = append(errs, field.Invalid(path.Child("endPort"), *p.EndPort, "may not be specified when `port` is not specified"))
			}
			continue
		}
		errs = append(errs, validate.PortNumOrName(path.Child("port"), *p.Port)...)
		if p.EndPort == nil {
			continue
		}
		if p.Port.Type == intstr.String {
			errs = append(errs, field.Invalid(path.Child("endPort"), *p.EndPort, "may not be specified when `port` is non-numeric"))
		} else if *p.EndPort < p.Port.IntVal {
			errs = append(errs, field.Invalid(path.Child("endPort"), *p.EndPort, "must be greater than or equal to `port`"))
		}
		errs = append(errs, validate.Port(path.Child("endPort"), *p.EndPort)...)
	}
	return errs
}

func validatePeers(peers []networkingv1.NetworkPolicyPeer, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, peer := range peers {
		path, forms := at.Index(i), 0
		if peer.PodSelector != nil {
			forms++
			errs = append(errs, validate.Selector(path.Child("podSelector"), peer.PodSelector)...)
		}
		if peer.NamespaceSelector != nil {
			forms++
			errs = append(errs, validate.Selector(path.Child("namespaceSelector"), peer.NamespaceSelector)...)
		}
		switch {
		case peer.IPBlock != nil && forms > 0:
			errs = append(errs, field.Forbidden(path, "may not specify both ipBlock and another peer"))
		case peer.IPBlock != nil:
			errs = append(errs, validateIPBlock(peer.IPBlock, path.Child("ipBlock"))...)
		case forms == 0:
			errs = append(errs, field.Required(path, "must specify a peer"))
		}
	}
	return errs
}

func validateIPBlock(b *networkingv1.IPBlock, at *field.Path) field.ErrorList {
	if b.CIDR == "" {
		return field.ErrorList{field.Required(at.Child("cidr"), "")}
	}
	errs := validation.IsValidCIDRForLegacyField(at.Child("cidr"), b.CIDR, true, nil)
	if len(errs) > 0 {
		return errs
	}
	block := netip.MustParsePrefix(b.CIDR).Masked()
	for i, except := range b.Except {
		path := at.Child("except").Index(i)
		bad := validation.IsValidCIDRForLegacyField(path, except, true, nil)
		errs = append(errs, bad...)
		if len(bad) > 0 {
			continue
		}
		inner := netip.MustParsePrefix(except).Masked()
		if !block.Contains(inner.Addr()) || inner.Bits() <= block.Bits() {
			errs = append(errs, field.Invalid(path, except, fmt.Sprintf("must be a strict subset of `cidr` (%s)", b.CIDR)))
		}
	}
	return errs
}
