package networking

import (
	"fmt"
	"net/netip"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/validate"
)

// IPAddresses is the networking.k8s.io/v1 ipaddresses resource.
var IPAddresses = apis.Resource{
	Group: "networking.k8s.io", Version: "v1", Kind: "IPAddress", Plural: "ipaddresses", Short: []string{"ip"}, Scope: apis.Cluster,
	New: apis.New[networkingv1.IPAddress], NewList: apis.NewList[networkingv1.IPAddressList],
	NoGeneration: true,
	ValidateName: validateIPName,
	Validate:     apis.Check(validateIPAddress),
	ValidateUpdate: apis.CheckUpdate(func(ip, old *networkingv1.IPAddress) field.ErrorList {
		return append(validateIPAddress(ip), validate.Immutable(field.NewPath("spec", "parentRef"), ip.Spec.ParentRef, old.Spec.ParentRef)...)
	}),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("ParentRef", "string", networkingv1.IPAddressSpec{}.SwaggerDoc()["parentRef"]),
		apis.AgeColumn,
	},
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
	ip, err := netip.ParseAddr(name)
	if err != nil {
		return []string{err.Error()}
	}
	if ip.String() != name {
		return []string{"must be a canonical format IP address"}
	}
	return nil
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
		apis.Writable("status", func(c, old *networkingv1.ServiceCIDR) { c.Spec = old.Spec }, nil),
	},
	PrepareCreate: apis.On(func(c *networkingv1.ServiceCIDR) { c.Status = networkingv1.ServiceCIDRStatus{} }),
	PrepareUpdate: apis.OnUpdate(func(c, old *networkingv1.ServiceCIDR) { c.Status = old.Status }),
	Validate:      apis.Check(validateServiceCIDR),
	ValidateUpdate: apis.CheckUpdate(func(c, old *networkingv1.ServiceCIDR) field.ErrorList {
		return append(validateServiceCIDR(c), keepCIDRs(c.Spec.CIDRs, old.Spec.CIDRs)...)
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
	if len(old) == 1 && len(cidrs) == 2 {
		if cidrs[0] == old[0] {
			return nil
		}
		return field.ErrorList{field.Invalid(path.Index(0), cidrs[0], "field is immutable")}
	}
	return validate.Immutable(path, cidrs, old)
}

func validateServiceCIDR(c *networkingv1.ServiceCIDR) field.ErrorList {
	path, cidrs := field.NewPath("spec", "cidrs"), c.Spec.CIDRs
	switch {
	case len(cidrs) == 0:
		return field.ErrorList{field.Required(path, "at least one CIDR required")}
	case len(cidrs) > 2:
		return field.ErrorList{field.Invalid(path, c.Spec, "may only hold up to 2 values")}
	}
	var errs field.ErrorList
	families := map[bool]bool{}
	for i, cidr := range cidrs {
		bad := validation.IsValidCIDR(path.Index(i), cidr)
		errs = append(errs, bad...)
		if prefix, err := netip.ParsePrefix(cidr); err == nil {
			families[prefix.Addr().Is4()] = true
		}
	}
	if len(errs) == 0 && len(cidrs) == 2 && len(families) != 2 {
		errs = append(errs, field.Invalid(path, c.Spec, fmt.Sprintf("may specify no more than one IP for each IP family, i.e %v", cidrs)))
	}
	return errs
}
