package core

import (
	"fmt"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

const (
	maxNameservers      = 3
	maxSearches         = 32
	maxSearchLength     = 2048
	maxHostnameOverride = 64
)

func validatePod(p *corev1.Pod) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validatePodAnnotations(p.Annotations, &p.Spec, metadataAnnotations)
	errs = append(errs, validatePodSpec(&p.Spec, p.Name, true, spec)...)
	if p.Spec.ServiceAccountName == "" {
		errs = append(errs, forbidTokens(p.Spec.Volumes, spec.Child("volumes"))...)
	}
	if len(p.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(spec.Child("ephemeralContainers"), "cannot be set on create"))
	}
	if p.Spec.NodeName != "" && len(p.Spec.SchedulingGates) > 0 {
		errs = append(errs, field.Forbidden(spec.Child("nodeName"), "cannot be set until all schedulingGates have been cleared"))
	}
	return errs
}

// forbidTokens: without a service account there is nobody that a token could be for.
func forbidTokens(volumes []corev1.Volume, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, v := range volumes {
		if v.Projected == nil {
			continue
		}
		for j, s := range v.Projected.Sources {
			if s.ServiceAccountToken != nil {
				at := path.Index(i).Child("projected", "sources").Index(j).Child("serviceAccountToken")
				errs = append(errs, field.Forbidden(at, "must not be specified when serviceAccountName is not set"))
			}
		}
	}
	return errs
}

// ValidateTemplate checks a pod template.
func ValidateTemplate(t *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	errs := validate.Labels(path.Child("labels"), t.Labels)
	errs = append(errs, apivalidation.ValidateAnnotations(t.Annotations, path.Child("annotations"))...)
	errs = append(errs, validatePodAnnotations(t.Annotations, &t.Spec, path.Child("annotations"))...)
	errs = append(errs, validatePodSpec(&t.Spec, "", false, path.Child("spec"))...)
	if len(t.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(path.Child("spec", "ephemeralContainers"), "ephemeral containers not allowed in pod template"))
	}
	return errs
}

func validatePodSpec(s *corev1.PodSpec, podName string, isPod bool, path *field.Path) field.ErrorList {
	volumes, errs := validateVolumes(s.Volumes, podName, isPod, path.Child("volumes"))
	p := &podContext{spec: s, volumes: volumes, claims: sets.New[string](), isPod: isPod}
	for _, c := range s.ResourceClaims {
		if c.Name != "" {
			p.claims.Insert(c.Name)
		}
	}
	errs = append(errs, validateResourceClaims(s.ResourceClaims, path.Child("resourceClaims"))...)
	errs = append(errs, validateContainers(p, path.Child("containers"))...)
	errs = append(errs, validateInitContainers(p, path.Child("initContainers"))...)
	errs = append(errs, validateEphemeralContainers(p, path.Child("ephemeralContainers"))...)
	errs = append(errs, validatePodResources(s, p.claims, path.Child("resources"))...)
	errs = append(errs, validate.RequiredListed(path.Child("restartPolicy"), s.RestartPolicy,
		corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)...)
	errs = append(errs, validate.RequiredListed(path.Child("dnsPolicy"), s.DNSPolicy,
		corev1.DNSClusterFirstWithHostNet, corev1.DNSClusterFirst, corev1.DNSDefault, corev1.DNSNone)...)
	errs = append(errs, validate.Labels(path.Child("nodeSelector"), s.NodeSelector)...)
	errs = append(errs, validatePodSecurity(p, path, path.Child("securityContext"))...)
	errs = append(errs, validateAffinity(s.Affinity, path.Child("affinity"))...)
	errs = append(errs, validateDNSConfig(s, path.Child("dnsConfig"))...)
	errs = append(errs, validateGates(s, path)...)
	errs = append(errs, validateSpread(s.TopologySpreadConstraints, path.Child("topologySpreadConstraints"))...)
	errs = append(errs, validateHostProcess(s, path)...)
	errs = append(errs, validateHostUsers(s, path)...)
	errs = append(errs, validateHostnameOverride(s, path.Child("hostnameOverride"))...)
	errs = append(errs, validatePodNames(s, path)...)
	if d := s.ActiveDeadlineSeconds; d != nil && (*d < 1 || *d > math.MaxInt32) {
		errs = append(errs, field.Invalid(path.Child("activeDeadlineSeconds"), *d, validation.InclusiveRangeError(1, math.MaxInt32)))
	}
	errs = append(errs, ValidateTolerations(path.Child("tolerations"), s.Tolerations)...)
	errs = append(errs, validateHostAliases(s.HostAliases, path.Child("hostAliases"))...)
	if v := s.PreemptionPolicy; v != nil {
		errs = append(errs, validate.RequiredListed(path.Child("preemptionPolicy"), *v, corev1.PreemptLowerPriority, corev1.PreemptNever)...)
	}
	if s.Overhead != nil {
		errs = append(errs, ValidateOverhead(path.Child("overhead"), s.Overhead)...)
	}
	errs = append(errs, validateOS(s, path)...)
	return append(errs, validateFileKeyVolumes(p, path)...)
}

// validatePodNames checks names of other things in the pod's own spec.
func validatePodNames(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	check := func(child, value string, of func(string) []string) {
		if value != "" {
			errs = append(errs, validate.Invalid(path.Child(child), value, of(value))...)
		}
	}
	check("serviceAccountName", s.ServiceAccountName, validation.IsDNS1123Subdomain)
	check("nodeName", s.NodeName, validation.IsDNS1123Subdomain)
	check("hostname", s.Hostname, validation.IsDNS1123Label)
	check("subdomain", s.Subdomain, validation.IsDNS1123Label)
	check("priorityClassName", s.PriorityClassName, validation.IsDNS1123Subdomain)
	if s.RuntimeClassName != nil {
		errs = append(errs, validate.Subdomain(path.Child("runtimeClassName"), *s.RuntimeClassName)...)
	}
	return errs
}

func validateHostnameOverride(s *corev1.PodSpec, at *field.Path) field.ErrorList {
	name := s.HostnameOverride
	if name == nil {
		return nil
	}
	var errs field.ErrorList
	if s.SetHostnameAsFQDN != nil && *s.SetHostnameAsFQDN {
		errs = append(errs, field.Forbidden(at, "may not be specified when setHostnameAsFQDN is true"))
	}
	if s.HostNetwork {
		errs = append(errs, field.Forbidden(at, "may not be specified when hostNetwork is true"))
	}
	if len(*name) > maxHostnameOverride {
		errs = append(errs, field.TooLong(at, "", maxHostnameOverride))
	}
	return append(errs, validate.Subdomain(at, *name)...)
}

func validateGates(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, g := range s.ReadinessGates {
		errs = append(errs, validate.QualifiedName(path.Child("readinessGates").Index(i).Child("conditionType"), string(g.ConditionType))...)
	}
	gates, at := sets.New[string](), path.Child("schedulingGates")
	for i, g := range s.SchedulingGates {
		errs = append(errs, validate.QualifiedName(at.Index(i), g.Name)...)
		if gates.Has(g.Name) {
			errs = append(errs, field.Duplicate(at.Index(i), g.Name))
		}
		gates.Insert(g.Name)
	}
	return errs
}

func validateDNSConfig(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	c := s.DNSConfig
	if s.DNSPolicy == corev1.DNSNone {
		if c == nil {
			return field.ErrorList{field.Required(path, fmt.Sprintf("must provide `dnsConfig` when `dnsPolicy` is %s", corev1.DNSNone))}
		}
		if len(c.Nameservers) == 0 {
			return field.ErrorList{field.Required(path.Child("nameservers"), fmt.Sprintf("must provide at least one DNS nameserver when `dnsPolicy` is %s", corev1.DNSNone))}
		}
	}
	if c == nil {
		return nil
	}
	var errs field.ErrorList
	if len(c.Nameservers) > maxNameservers {
		errs = append(errs, field.Invalid(path.Child("nameservers"), c.Nameservers, fmt.Sprintf("must not have more than %v nameservers", maxNameservers)))
	}
	for i, ns := range c.Nameservers {
		errs = append(errs, validation.IsValidIPForLegacyField(path.Child("nameservers").Index(i), ns, true, nil)...)
	}
	searches := path.Child("searches")
	if len(c.Searches) > maxSearches {
		errs = append(errs, field.Invalid(searches, c.Searches, fmt.Sprintf("must not have more than %v search paths", maxSearches)))
	}
	if len(strings.Join(c.Searches, " ")) > maxSearchLength {
		errs = append(errs, field.Invalid(searches, c.Searches, fmt.Sprintf("must not have more than %v characters (including spaces) in the search list", maxSearchLength)))
	}
	for i, search := range c.Searches {
		if search != "." {
			errs = append(errs, validate.Invalid(searches.Index(i), search, validation.IsDNS1123SubdomainWithUnderscore(strings.TrimSuffix(search, ".")))...)
		}
	}
	for i, o := range c.Options {
		if o.Name == "" {
			errs = append(errs, field.Required(path.Child("options").Index(i), "must not be empty"))
		}
	}
	return errs
}

func validateHostAliases(aliases []corev1.HostAlias, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, a := range aliases {
		errs = append(errs, validation.IsValidIPForLegacyField(path.Index(i).Child("ip"), a.IP, true, nil)...)
		for j, name := range a.Hostnames {
			errs = append(errs, validate.Subdomain(path.Index(i).Child("hostnames").Index(j), name)...)
		}
	}
	return errs
}

func validateResourceClaims(claims []corev1.PodResourceClaim, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, c := range claims {
		at := path.Index(i)
		switch {
		case c.Name == "":
			errs = append(errs, field.Required(at.Child("name"), ""))
		case seen.Has(c.Name):
			errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
		default:
			errs = append(errs, validate.Label(at.Child("name"), c.Name)...)
		}
		seen.Insert(c.Name)
		switch {
		case c.ResourceClaimName == nil && c.ResourceClaimTemplateName == nil:
			errs = append(errs, field.Invalid(at, c, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"))
		case c.ResourceClaimName != nil && c.ResourceClaimTemplateName != nil:
			errs = append(errs, field.Invalid(at, c, "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"))
		}
		for child, name := range validate.Sorted(map[string]*string{"resourceClaimName": c.ResourceClaimName, "resourceClaimTemplateName": c.ResourceClaimTemplateName}) {
			if name != nil {
				errs = append(errs, validate.Subdomain(at.Child(child), *name)...)
			}
		}
	}
	return errs
}
