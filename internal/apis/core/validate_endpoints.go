package core

import (
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"proa/internal/apis/validate"
)

func validateEndpoints(e *corev1.Endpoints) field.ErrorList {
	var errs field.ErrorList
	for i := range e.Subsets {
		s, at := &e.Subsets[i], field.NewPath("subsets").Index(i)
		if len(s.Addresses) == 0 && len(s.NotReadyAddresses) == 0 {
			errs = append(errs, field.Required(at, "must specify `addresses` or `notReadyAddresses`"))
		}
		for j := range s.Addresses {
			errs = append(errs, validateEndpointAddress(&s.Addresses[j], at.Child("addresses").Index(j))...)
		}
		for j := range s.NotReadyAddresses {
			errs = append(errs, validateEndpointAddress(&s.NotReadyAddresses[j], at.Child("notReadyAddresses").Index(j))...)
		}
		for j := range s.Ports {
			errs = append(errs, validateEndpointPort(&s.Ports[j], len(s.Ports) > 1, at.Child("ports").Index(j))...)
		}
	}
	return errs
}

func validateEndpointsUpdate(e, old *corev1.Endpoints) field.ErrorList {
	if apiequality.Semantic.DeepEqual(e.Subsets, old.Subsets) {
		return nil
	}
	return validateEndpoints(e)
}

func validateEndpointAddress(a *corev1.EndpointAddress, at *field.Path) field.ErrorList {
	errs := validation.IsValidIPForLegacyField(at.Child("ip"), a.IP, true, nil)
	if a.Hostname != "" {
		errs = append(errs, validate.Label(at.Child("hostname"), a.Hostname)...)
	}
	if a.NodeName != nil {
		errs = append(errs, validate.NodeName(at.Child("nodeName"), *a.NodeName)...)
	}
	return append(errs, ValidateEndpointIP(a.IP, at.Child("ip"))...)
}

// ValidateEndpointIP refuses addresses that reach the node itself or nobody in
// particular: traffic to a service must not go there.
func ValidateEndpointIP(address string, at *field.Path) field.ErrorList {
	ip := netutils.ParseIPSloppy(address)
	reason := ""
	switch {
	case ip == nil:
		reason = "must be a valid IP address"
	case ip.IsUnspecified():
		reason = "may not be unspecified (" + address + ")"
	case ip.IsLoopback():
		reason = "may not be in the loopback range (127.0.0.0/8, ::1/128)"
	case ip.IsLinkLocalUnicast():
		reason = "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
	case ip.IsLinkLocalMulticast():
		reason = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
	default:
		return nil
	}
	return field.ErrorList{field.Invalid(at, address, reason)}
}

func validateEndpointPort(p *corev1.EndpointPort, named bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if p.Name != "" {
		errs = append(errs, validate.Label(at.Child("name"), p.Name)...)
	} else if named {
		errs = append(errs, field.Required(at.Child("name"), ""))
	}
	errs = append(errs, validate.Port(at.Child("port"), p.Port)...)
	errs = append(errs, validate.RequiredOneOf(at.Child("protocol"), p.Protocol, protocols...)...)
	if p.AppProtocol != nil {
		errs = append(errs, validate.QualifiedName(at.Child("appProtocol"), *p.AppProtocol)...)
	}
	return errs
}
