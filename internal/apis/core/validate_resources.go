package core

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	podresource "k8s.io/component-helpers/resource"

	"proa/internal/apis/validate"
)

const notInteger = "must be an integer"

var (
	containerResources = sets.New(corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage)
	// integerResources count things.
	integerResources = sets.New(corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
		corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims, corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers)
	standardQuota = sets.New(corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
		corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsStorage, corev1.ResourceRequestsEphemeralStorage,
		corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage).Union(integerResources)
	standardResources = standardQuota.Union(sets.New(corev1.ResourceStorage))
)

func isHugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

func isQuotaHugePages(name corev1.ResourceName) bool {
	return isHugePages(name) || strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix)
}

// isNative: a resource of Kubernetes itself.
func isNative(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

func isExtended(name corev1.ResourceName) bool {
	if isNative(name) || strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix) {
		return false
	}
	return len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+string(name))) == 0
}

func isInteger(name corev1.ResourceName) bool { return integerResources.Has(name) || isExtended(name) }

// mayOvercommit: requests below limits make sense.
func mayOvercommit(name corev1.ResourceName) bool { return isNative(name) && !isHugePages(name) }

// validateResourceName checks a name that any object may use.
func validateResourceName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	errs := validate.Invalid(path, string(name), validation.IsQualifiedName(string(name)))
	if len(errs) == 0 && !strings.Contains(string(name), "/") && !standardResources.Has(name) && !isQuotaHugePages(name) {
		errs = append(errs, field.Invalid(path, name, "must be a standard resource type or fully qualified"))
	}
	return errs
}

// ValidateContainerResourceName checks the name of a resource that containers use.
func ValidateContainerResourceName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	errs := validateResourceName(name, path)
	if !strings.Contains(string(name), "/") {
		if !containerResources.Has(name) && !isHugePages(name) {
			errs = append(errs, field.Invalid(path, name, "must be a standard resource for containers"))
		}
	} else if !isNative(name) && !isExtended(name) {
		errs = append(errs, field.Invalid(path, name, "doesn't follow extended resource name standard"))
	}
	return errs
}

// validateQuantity checks an amount of a resource.
func validateQuantity(name corev1.ResourceName, q resource.Quantity, path *field.Path) field.ErrorList {
	errs := validate.NonNegativeQuantity(path, q)
	if isInteger(name) && q.MilliValue()%1000 != 0 {
		errs = append(errs, field.Invalid(path, q, notInteger))
	}
	return errs
}

func validateHugePageQuantity(name corev1.ResourceName, q resource.Quantity, path *field.Path) field.ErrorList {
	size, _ := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
	if size.Sign() <= 0 || q.Value()%size.Value() != 0 {
		return field.ErrorList{field.Invalid(path, q.String(), fmt.Sprintf("%s is not positive integer multiple of %s", q.String(), name))}
	}
	return nil
}

// validateRequirements checks what a container asks for and is limited to.
func validateRequirements(r *corev1.ResourceRequirements, claims sets.Set[string], path *field.Path) field.ErrorList {
	return validateAmounts(r, ValidateContainerResourceName, claims, path)
}

// validateAmounts checks requests and limits of resources whose names are judged by
// whom they are for: a container or the pod as a whole.
func validateAmounts(r *corev1.ResourceRequirements, validateName func(corev1.ResourceName, *field.Path) field.ErrorList, claims sets.Set[string], path *field.Path) field.ErrorList {
	var errs field.ErrorList
	limits, requests := path.Child("limits"), path.Child("requests")
	small, huge := false, false
	note := func(name corev1.ResourceName) {
		small = small || name == corev1.ResourceCPU || name == corev1.ResourceMemory
		huge = huge || isHugePages(name)
	}
	for _, name := range validate.SortedKeys(r.Limits) {
		at := limits.Key(string(name))
		errs = append(errs, validateName(name, at)...)
		errs = append(errs, validateQuantity(name, r.Limits[name], at)...)
		if isHugePages(name) {
			errs = append(errs, validateHugePageQuantity(name, r.Limits[name], at)...)
		}
		note(name)
	}
	for _, name := range validate.SortedKeys(r.Requests) {
		at, asked := requests.Key(string(name)), r.Requests[name]
		errs = append(errs, validateName(name, at)...)
		errs = append(errs, validateQuantity(name, asked, at)...)
		note(name)
		errs = append(errs, validateBelowLimit(name, r, path)...)
		if isHugePages(name) {
			errs = append(errs, validateHugePageQuantity(name, asked, at)...)
		}
	}
	if huge && !small {
		errs = append(errs, field.Forbidden(path, "HugePages require cpu or memory"))
	}
	return append(errs, validateClaimNames(r.Claims, claims, path.Child("claims"))...)
}

// validateBelowLimit: a request is not above the limit, nor below it if the resource
// cannot be overcommitted.
func validateBelowLimit(name corev1.ResourceName, r *corev1.ResourceRequirements, path *field.Path) field.ErrorList {
	requests, asked := path.Child("requests"), r.Requests[name]
	switch limit, limited := r.Limits[name]; {
	case !limited && !mayOvercommit(name):
		return field.ErrorList{field.Required(path.Child("limits"), "Limit must be set for non overcommitable resources")}
	case !limited:
	case !mayOvercommit(name) && asked.Cmp(limit) != 0:
		return field.ErrorList{field.Invalid(requests, asked.String(), fmt.Sprintf("must be equal to %s limit of %s", name, limit.String()))}
	case asked.Cmp(limit) > 0:
		return field.ErrorList{field.Invalid(requests, asked.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String()))}
	}
	return nil
}

func validateClaimNames(used []corev1.ResourceClaim, known sets.Set[string], path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, c := range used {
		at := path.Index(i)
		if c.Name == "" {
			errs = append(errs, field.Required(at, ""))
			continue
		}
		errs = append(errs, validateClaimOnce(c, seen, at)...)
		if !known.Has(c.Name) {
			unknown := field.NotFound(at, c.Name)
			unknown.Detail = "must be one of the names in pod.spec.resourceClaims which is empty"
			if len(known) > 0 {
				unknown.Detail = "must be one of the names in pod.spec.resourceClaims: " + strings.Join(sets.List(known), ", ")
			}
			errs = append(errs, unknown)
		}
	}
	return errs
}

// validateClaimOnce: a claim is used as a whole, or by requests that differ.
func validateClaimOnce(c corev1.ResourceClaim, seen sets.Set[string], path *field.Path) field.ErrorList {
	if seen.Has(c.Name) {
		return field.ErrorList{field.Duplicate(path, c.Name)}
	}
	var errs field.ErrorList
	key := c.Name
	if c.Request != "" {
		errs = validate.Label(path.Child("request"), c.Request)
		key += "/" + c.Request
	}
	switch {
	case seen.Has(key):
		errs = append(errs, field.Duplicate(path, key))
	case c.Request == "":
		for other := range seen {
			if strings.HasPrefix(other, c.Name+"/") {
				errs = append(errs, field.Duplicate(path, c.Name))
			}
		}
	}
	seen.Insert(key)
	return errs
}

// ValidateOverhead checks what a sandbox costs besides its containers.
func ValidateOverhead(path *field.Path, list corev1.ResourceList) field.ErrorList {
	return validateRequirements(&corev1.ResourceRequirements{Limits: list}, nil, path)
}

// validatePodResources checks the resources of the pod as a whole (KEP-2837).
func validatePodResources(s *corev1.PodSpec, claims sets.Set[string], path *field.Path) field.ErrorList {
	r := s.Resources
	if r == nil {
		return nil
	}
	if s.OS != nil && s.OS.Name == corev1.Windows {
		return field.ErrorList{field.Forbidden(path, "may not be set for a windows pod")}
	}
	var errs field.ErrorList
	if r.Claims != nil {
		errs = append(errs, field.Forbidden(path.Child("claims"), "claims may not be set for Resources at pod-level"))
	}
	errs = append(errs, validateAmounts(r, validatePodResourceName, claims, path)...)
	total := podresource.AggregateContainerRequests(&corev1.Pod{Spec: *s}, podresource.PodResourcesOptions{})
	for _, name := range validate.SortedKeys(total) {
		if asked, set := r.Requests[name]; set && asked.Cmp(total[name]) < 0 {
			sum := total[name]
			errs = append(errs, field.Invalid(path.Child("requests").Key(string(name)), asked.String(), fmt.Sprintf("must be greater than or equal to aggregate container requests of %s", sum.String())))
		}
	}
	return append(errs, validateWithinPod(s, path)...)
}

func validatePodResourceName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	if errs := validateResourceName(name, path); len(errs) > 0 {
		return errs
	}
	if !podresource.IsSupportedPodLevelResource(name) {
		return field.ErrorList{field.NotSupported(path, name, sets.List(podresource.SupportedPodLevelResources()))}
	}
	return nil
}

// validateWithinPod: no container may use more than its pod, and huge pages, which
// are never overcommitted, may not in sum.
func validateWithinPod(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	limits := s.Resources.Limits
	total := podresource.AggregateContainerLimits(&corev1.Pod{Spec: *s}, podresource.PodResourcesOptions{})
	for _, name := range validate.SortedKeys(total) {
		limit, limited := limits[name]
		if sum := total[name]; limited && isHugePages(name) && sum.Cmp(limit) > 0 {
			errs = append(errs, field.Invalid(path.Child("limits").Key(string(name)), limit.String(), fmt.Sprintf("must be greater than or equal to aggregate container limits of %s", sum.String())))
		}
	}
	for i, c := range s.Containers {
		for _, name := range validate.SortedKeys(c.Resources.Limits) {
			limit, limited := limits[name]
			if own := c.Resources.Limits[name]; limited && own.Cmp(limit) > 0 {
				at := path.Child("containers").Index(i).Key(string(name)).Child("limits")
				errs = append(errs, field.Invalid(at, own.String(), fmt.Sprintf("must be less than or equal to pod limits of %s", limit.String())))
			}
		}
	}
	return errs
}
