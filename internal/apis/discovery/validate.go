package discovery

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/core"
	"proa/internal/apis/validate"
)

const (
	maxEndpoints = 1000
	maxAddresses = 100
	maxPorts     = 20000
	maxZoneHints = 8
	maxNodeHints = 8
)

func validateSliceUpdate(s, old *discoveryv1.EndpointSlice) field.ErrorList {
	return append(validateSlice(s), validate.Immutable(field.NewPath("addressType"), s.AddressType, old.AddressType)...)
}

func validateSlice(s *discoveryv1.EndpointSlice) field.ErrorList {
	errs := validate.RequiredOneOf(field.NewPath("addressType"), s.AddressType,
		discoveryv1.AddressTypeFQDN, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6)
	errs = append(errs, validateEndpoints(s.Endpoints, s.AddressType, field.NewPath("endpoints"))...)
	return append(errs, validatePorts(s.Ports, field.NewPath("ports"))...)
}

func validateEndpoints(endpoints []discoveryv1.Endpoint, kind discoveryv1.AddressType, path *field.Path) field.ErrorList {
	if len(endpoints) > maxEndpoints {
		return field.ErrorList{field.TooMany(path, len(endpoints), maxEndpoints)}
	}
	var errs field.ErrorList
	for i := range endpoints {
		e, at := &endpoints[i], path.Index(i)
		errs = append(errs, validateAddresses(e.Addresses, kind, at.Child("addresses"))...)
		if e.NodeName != nil {
			errs = append(errs, validate.NodeName(at.Child("nodeName"), *e.NodeName)...)
		}
		if e.Hostname != nil {
			errs = append(errs, validate.Label(at.Child("hostname"), *e.Hostname)...)
		}
		errs = append(errs, validateHints(e.Hints, at.Child("hints"))...)
	}
	return errs
}

func validateAddresses(addresses []string, kind discoveryv1.AddressType, path *field.Path) field.ErrorList {
	if len(addresses) == 0 {
		return field.ErrorList{field.Required(path, "must contain at least 1 address")}
	}
	if len(addresses) > maxAddresses {
		return field.ErrorList{field.TooMany(path, len(addresses), maxAddresses)}
	}
	var errs field.ErrorList
	for i, address := range addresses {
		at := path.Index(i)
		switch kind {
		case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
			errs = append(errs, validateIP(address, kind, path, at)...)
		case discoveryv1.AddressTypeFQDN:
			errs = append(errs, validation.IsFullyQualifiedDomainName(at, address)...)
		}
	}
	return errs
}

// validateIP says of a wrong family at the list, as upstream does.
func validateIP(address string, kind discoveryv1.AddressType, list, path *field.Path) field.ErrorList {
	errs := validation.IsValidIPForLegacyField(path, address, true, nil)
	if len(errs) > 0 {
		return errs
	}
	ip, err := netip.ParseAddr(address)
	switch {
	case err != nil:
		return errs
	case kind == discoveryv1.AddressTypeIPv4 && !ip.Is4():
		errs = append(errs, field.Invalid(list, address, "must be an IPv4 address"))
	case kind == discoveryv1.AddressTypeIPv6 && !ip.Is6():
		errs = append(errs, field.Invalid(list, address, "must be an IPv6 address"))
	}
	return append(errs, core.ValidateEndpointIP(address, path)...)
}

func validateHints(hints *discoveryv1.EndpointHints, path *field.Path) field.ErrorList {
	if hints == nil {
		return nil
	}
	var errs field.ErrorList
	at := path.Child("forZones")
	if len(hints.ForZones) > maxZoneHints {
		return append(errs, field.TooMany(at, len(hints.ForZones), maxZoneHints))
	}
	zones := map[string]bool{}
	for i, z := range hints.ForZones {
		if zones[z.Name] {
			errs = append(errs, field.Duplicate(at.Index(i).Child("name"), z.Name))
		}
		zones[z.Name] = true
		errs = append(errs, validate.Invalid(at.Index(i).Child("name"), z.Name, validation.IsValidLabelValue(z.Name))...)
	}
	at = path.Child("forNodes")
	if len(hints.ForNodes) > maxNodeHints {
		return append(errs, field.TooMany(at, len(hints.ForNodes), maxNodeHints))
	}
	nodes := map[string]bool{}
	for i, n := range hints.ForNodes {
		if nodes[n.Name] {
			errs = append(errs, field.Duplicate(at.Index(i).Child("name"), n.Name))
		}
		nodes[n.Name] = true
		errs = append(errs, validate.NodeName(at.Index(i).Child("name"), n.Name)...)
	}
	return errs
}

func validatePorts(ports []discoveryv1.EndpointPort, path *field.Path) field.ErrorList {
	if len(ports) > maxPorts {
		return field.ErrorList{field.TooMany(path, len(ports), maxPorts)}
	}
	var errs field.ErrorList
	names := map[string]bool{}
	for i, p := range ports {
		at := path.Index(i)
		if p.Name != nil {
			if *p.Name != "" {
				errs = append(errs, validate.Label(at.Child("name"), *p.Name)...)
			}
			if names[*p.Name] {
				errs = append(errs, field.Duplicate(at.Child("name"), *p.Name))
			}
			names[*p.Name] = true
		}
		if p.Protocol == nil {
			errs = append(errs, field.Required(at.Child("protocol"), ""))
		} else {
			errs = append(errs, validate.OneOf(at.Child("protocol"), *p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)...)
		}
		if p.AppProtocol != nil {
			errs = append(errs, validate.QualifiedName(at.Child("appProtocol"), *p.AppProtocol)...)
		}
	}
	return errs
}
