package networking

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

func pathSegment(name string) []string { return path.IsValidPathSegmentName(name) }

func validateIngressCreate(i *networkingv1.Ingress) field.ErrorList {
	errs := validateIngress(i)
	if annotation, set := i.Annotations[classAnnotation]; set && i.Spec.IngressClassName != nil {
		errs = append(errs, field.Invalid(field.NewPath("annotations").Child(classAnnotation), annotation,
			"can not be set when the class field is also set"))
	}
	return errs
}

func validateIngressUpdate(i, _ *networkingv1.Ingress) field.ErrorList { return validateIngress(i) }

func validateIngress(i *networkingv1.Ingress) field.ErrorList {
	at, s := field.NewPath("spec"), &i.Spec
	var errs field.ErrorList
	if len(s.Rules) == 0 && s.DefaultBackend == nil {
		errs = append(errs, field.Invalid(at, s.Rules, "either `defaultBackend` or `rules` must be specified"))
	}
	if s.DefaultBackend != nil {
		errs = append(errs, validateBackend(s.DefaultBackend, at.Child("defaultBackend"))...)
	}
	for k, rule := range s.Rules {
		errs = append(errs, validateRule(rule, at.Child("rules").Index(k))...)
	}
	for k, tls := range s.TLS {
		errs = append(errs, validateTLS(tls, at.Child("tls").Index(k))...)
	}
	if s.IngressClassName != nil {
		errs = append(errs, validate.Subdomain(at.Child("ingressClassName"), *s.IngressClassName)...)
	}
	return errs
}

func validateTLS(tls networkingv1.IngressTLS, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, host := range tls.Hosts {
		errs = append(errs, validateHost(host, at.Child("hosts").Index(i))...)
	}
	if tls.SecretName != "" {
		errs = append(errs, validate.Subdomain(at.Child("secretName"), tls.SecretName)...)
	}
	return errs
}

func validateHost(host string, at *field.Path) field.ErrorList {
	if strings.Contains(host, "*") {
		return validate.Invalid(at, host, validation.IsWildcardDNS1123Subdomain(host))
	}
	return validate.Subdomain(at, host)
}

func validateRule(rule networkingv1.IngressRule, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if rule.Host != "" {
		if _, err := netip.ParseAddr(rule.Host); err == nil {
			errs = append(errs, field.Invalid(at.Child("host"), rule.Host, "must be a DNS name, not an IP address"))
		}
		errs = append(errs, validateHost(rule.Host, at.Child("host"))...)
	}
	if rule.HTTP == nil {
		return errs
	}
	paths := at.Child("http", "paths")
	if len(rule.HTTP.Paths) == 0 {
		return append(errs, field.Required(paths, ""))
	}
	for i := range rule.HTTP.Paths {
		errs = append(errs, validateHTTPPath(&rule.HTTP.Paths[i], paths.Index(i))...)
	}
	return errs
}

var (
	badInPath     = []string{"//", "/./", "/../", "%2f", "%2F"}
	badEndOfPaths = []string{"/..", "/."}
)

func validateHTTPPath(p *networkingv1.HTTPIngressPath, at *field.Path) field.ErrorList {
	if p.PathType == nil {
		return field.ErrorList{field.Required(at.Child("pathType"), "pathType must be specified")}
	}
	var errs field.ErrorList
	switch *p.PathType {
	case networkingv1.PathTypeExact, networkingv1.PathTypePrefix:
		if !strings.HasPrefix(p.Path, "/") {
			errs = append(errs, field.Invalid(at.Child("path"), p.Path, "must be an absolute path"))
		}
		for _, bad := range badInPath {
			if strings.Contains(p.Path, bad) {
				errs = append(errs, field.Invalid(at.Child("path"), p.Path, "must not contain '"+bad+"'"))
			}
		}
		for _, bad := range badEndOfPaths {
			if strings.HasSuffix(p.Path, bad) {
				errs = append(errs, field.Invalid(at.Child("path"), p.Path, "cannot end with '"+bad+"'"))
			}
		}
	case networkingv1.PathTypeImplementationSpecific:
		if p.Path != "" && !strings.HasPrefix(p.Path, "/") {
			errs = append(errs, field.Invalid(at.Child("path"), p.Path, "must be an absolute path"))
		}
	default:
		errs = append(errs, validate.OneOf(at.Child("pathType"), *p.PathType,
			networkingv1.PathTypeExact, networkingv1.PathTypePrefix, networkingv1.PathTypeImplementationSpecific)...)
	}
	return append(errs, validateBackend(&p.Backend, at.Child("backend"))...)
}

func validateBackend(b *networkingv1.IngressBackend, at *field.Path) field.ErrorList {
	switch {
	case b.Service != nil && b.Resource != nil:
		return field.ErrorList{field.Invalid(at, "", "cannot set both resource and service backends")}
	case b.Resource != nil:
		return validateReference(b.Resource, at.Child("resource"))
	}
	if b.Service == nil {
		return field.ErrorList{field.Invalid(at, "", "resource or service backend is required")}
	}
	var errs field.ErrorList
	if b.Service.Name == "" {
		errs = append(errs, field.Required(at.Child("service", "name"), ""))
	} else {
		errs = validate.Invalid(at.Child("service", "name"), b.Service.Name, validation.IsDNS1123Label(b.Service.Name))
	}
	port, number := b.Service.Port, at.Child("service", "port", "number")
	switch {
	case port.Name != "" && port.Number != 0:
		errs = append(errs, field.Invalid(at, "", "cannot set both port name & port number"))
	case port.Name != "":
		errs = append(errs, validate.Invalid(at.Child("service", "port", "name"), port.Name, validation.IsValidPortName(port.Name))...)
	case port.Number != 0:
		errs = append(errs, validate.Port(number, port.Number)...)
	default:
		errs = append(errs, field.Required(at, "port name or number is required"))
	}
	return errs
}

func validateReference(ref *corev1.TypedLocalObjectReference, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if ref.APIGroup != nil {
		errs = append(errs, validate.Subdomain(at.Child("apiGroup"), *ref.APIGroup)...)
	}
	segment := func(child, value string) {
		if value == "" {
			errs = append(errs, field.Required(at.Child(child), ""))
		} else {
			errs = append(errs, validate.Invalid(at.Child(child), value, pathSegment(value))...)
		}
	}
	segment("kind", ref.Kind)
	segment("name", ref.Name)
	return errs
}

func validateIngressStatusUpdate(i, _ *networkingv1.Ingress) field.ErrorList {
	var errs field.ErrorList
	for k, in := range i.Status.LoadBalancer.Ingress {
		at := field.NewPath("status", "loadBalancer", "ingress").Index(k)
		if in.IP != "" {
			errs = append(errs, validation.IsValidIPForLegacyField(at.Child("ip"), in.IP, true, nil)...)
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
