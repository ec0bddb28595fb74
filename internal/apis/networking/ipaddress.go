package networking

import (
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"proa/internal/apis"
	"proa/internal/apis/validate"
)

// IPAddresses is the networking.k8s.io/v1 ipaddresses resource.
var IPAddresses = apis.Resource{
	Group: "networking.k8s.io", Version: "v1", Kind: "IPAddress", Plural: "ipaddresses", Short: []string{"ip"}, Scope: apis.Cluster,
	ChecksNameOnUpdate: true,
	New:                apis.New[networkingv1.IPAddress], NewList: apis.NewList[networkingv1.IPAddressList],
	NoGeneration: true,
	ValidateName: validateIPName,
	Validate:     apis.Check(validateIPAddress),
	ValidateUpdate: apis.CheckUpdate(func(ip, old *networkingv1.IPAddress) field.ErrorList {
		return append(validateIPAddress(ip), validate.Immutable(field.NewPath("spec", "parentRef"), ip.Spec.ParentRef, old.Spec.ParentRef)...)
	}),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("ParentRef", "string", networkingv1.IPAddressSpec{}.SwaggerDoc()["parentRef"]),
	}, // rows say the age, too, as upstream's
	Row: apis.Cells(func(ip *networkingv1.IPAddress, now time.Time) []any {
		return []any{ip.Name, printParent(ip.Spec.ParentRef), apis.AgeOf(ip, now)}
	}),
}

func printParent(ref *networkingv1.ParentReference) string {
	if ref == nil {
		return "<none>"
	}
	resource := ref.Resource
	if ref.Group != "" {
		resource += "." + ref.Group
	}
	return resource + "/" + ref.Namespace + "/" + ref.Name
}

// validateIPName wants the one way to write an address.
func validateIPName(name string, _ bool) []string {
	var messages []string
	for _, err := range validation.IsValidIP(nil, name) {
		messages = append(messages, err.Detail)
	}
	return messages
}

func validateIPAddress(ip *networkingv1.IPAddress) field.ErrorList {
	path, ref := field.NewPath("spec", "parentRef"), ip.Spec.ParentRef
	if ref == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	if ref.Group != "" {
		errs = append(errs, validate.Subdomain(path.Child("group"), ref.Group)...)
	}
	segment := func(child, value string, required bool) {
		if value == "" {
			if required {
				errs = append(errs, field.Required(path.Child(child), ""))
			}
			return
		}
		errs = append(errs, validate.Invalid(path.Child(child), value, pathSegment(value))...)
	}
	segment("resource", ref.Resource, true)
	segment("name", ref.Name, true)
	segment("namespace", ref.Namespace, false)
	return errs
}

// ServiceCIDRs is the networking.k8s.io/v1 servicecidrs resource.
var ServiceCIDRs = apis.Resource{
	Group: "networking.k8s.io", Version: "v1", Kind: "ServiceCIDR", Plural: "servicecidrs", Scope: apis.Cluster,
	New: apis.New[networkingv1.ServiceCIDR], NewList: apis.NewList[networkingv1.ServiceCIDRList],
	NoGeneration: true,
	Subresources: []apis.Subresource{
		apis.Status(func(c, old *networkingv1.ServiceCIDR) { c.Spec = old.Spec }, nil),
	},
	PrepareCreate: apis.On(func(c *networkingv1.ServiceCIDR) { c.Status = networkingv1.ServiceCIDRStatus{} }),
	PrepareUpdate: apis.OnUpdate(func(c, old *networkingv1.ServiceCIDR) { c.Status = old.Status }),
	Validate:      apis.Check(validateServiceCIDR),
	ValidateUpdate: apis.CheckUpdate(func(c, old *networkingv1.ServiceCIDR) field.ErrorList {
		return keepCIDRs(c.Spec.CIDRs, old.Spec.CIDRs)
	}),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("CIDRs", "string", networkingv1.ServiceCIDRSpec{}.SwaggerDoc()["cidrs"]),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(c *networkingv1.ServiceCIDR, now time.Time) []any {
		return []any{c.Name, joinOrNone(c.Spec.CIDRs), apis.AgeOf(c, now)}
	}),
}

// keepCIDRs lets an update add the second IP family, nothing else.
func keepCIDRs(cidrs, old []string) field.ErrorList {
	path := field.NewPath("spec", "cidrs")
	grown := len(old) == 1 && len(cidrs) == 2
	if len(cidrs) != len(old) && !grown {
		return field.ErrorList{field.Invalid(path, cidrs, apivalidation.FieldImmutableErrorMsg)}
	}
	var errs field.ErrorList
	for i := range old {
		if cidrs[i] != old[i] {
			errs = append(errs, field.Invalid(path.Index(i), cidrs[i], apivalidation.FieldImmutableErrorMsg))
		}
	}
	if grown {
		errs = append(errs, validateCIDRs(cidrs)...)
	}
	return errs
}

func validateServiceCIDR(c *networkingv1.ServiceCIDR) field.ErrorList {
	return validateCIDRs(c.Spec.CIDRs)
}

func validateCIDRs(cidrs []string) field.ErrorList {
	path, spec := field.NewPath("spec", "cidrs"), networkingv1.ServiceCIDRSpec{CIDRs: cidrs}
	switch {
	case len(cidrs) == 0:
		return field.ErrorList{field.Required(path, "at least one CIDR required")}
	case len(cidrs) > 2:
		return field.ErrorList{field.Invalid(path, spec, "may only hold up to 2 values")}
	}
	var errs field.ErrorList
	for i, cidr := range cidrs {
		errs = append(errs, validation.IsValidCIDR(path.Index(i), cidr)...)
	}
	if family := netutils.IPFamilyOfCIDRString(cidrs[0]); len(cidrs) == 2 && family != netutils.IPFamilyUnknown && family == netutils.IPFamilyOfCIDRString(cidrs[1]) {
		errs = append(errs, field.Invalid(path, cidrs, "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"))
	}
	return errs
}
