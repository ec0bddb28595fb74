package config

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

// argTypes are the types of the arguments that upstream's plugins take.
var argTypes = map[string]reflect.Type{
	"DefaultPreemption":               reflect.TypeFor[*configv1.DefaultPreemptionArgs](),
	"DynamicResources":                reflect.TypeFor[*configv1.DynamicResourcesArgs](),
	"InterPodAffinity":                reflect.TypeFor[*configv1.InterPodAffinityArgs](),
	"NodeAffinity":                    reflect.TypeFor[*configv1.NodeAffinityArgs](),
	"NodeResourcesBalancedAllocation": reflect.TypeFor[*configv1.NodeResourcesBalancedAllocationArgs](),
	"NodeResourcesFit":                reflect.TypeFor[*configv1.NodeResourcesFitArgs](),
	"PodTopologySpread":               reflect.TypeFor[*configv1.PodTopologySpreadArgs](),
	"VolumeBinding":                   reflect.TypeFor[*configv1.VolumeBindingArgs](),
}

// validateArgs tells what is wrong with arguments whose defaults are set.
func validateArgs(path *field.Path, args runtime.Object) field.ErrorList {
	switch a := args.(type) {
	case *configv1.DefaultPreemptionArgs:
		return validatePreemption(path, a)
	case *configv1.DynamicResourcesArgs:
		return validateDevices(path, a)
	case *configv1.InterPodAffinityArgs:
		return inRange(path.Child("hardPodAffinityWeight"), *a.HardPodAffinityWeight, 0, 100)
	case *configv1.NodeAffinityArgs:
		return validateNodeAffinity(path.Child("addedAffinity"), a.AddedAffinity)
	case *configv1.NodeResourcesBalancedAllocationArgs:
		return validateBalanced(path.Child("resources"), a.Resources)
	case *configv1.NodeResourcesFitArgs:
		return validateFit(path, a)
	case *configv1.PodTopologySpreadArgs:
		return validateSpread(path, a)
	case *configv1.VolumeBindingArgs:
		return validateVolumeBinding(path, a)
	}
	return nil
}

func inRange(path *field.Path, v, low, high int32) field.ErrorList {
	if v >= low && v <= high {
		return nil
	}
	return field.ErrorList{field.Invalid(path, v, fmt.Sprintf("not in valid range [%d, %d]", low, high))}
}

func validatePreemption(path *field.Path, a *configv1.DefaultPreemptionArgs) field.ErrorList {
	percentage, absolute := path.Child("minCandidateNodesPercentage"), path.Child("minCandidateNodesAbsolute")
	errs := inRange(percentage, *a.MinCandidateNodesPercentage, 0, 100)
	if *a.MinCandidateNodesAbsolute < 0 {
		errs = append(errs, field.Invalid(absolute, *a.MinCandidateNodesAbsolute, "not in valid range [0, inf)"))
	}
	if *a.MinCandidateNodesPercentage == 0 && *a.MinCandidateNodesAbsolute == 0 {
		errs = append(errs,
			field.Invalid(percentage, 0, "cannot be zero at the same time as minCandidateNodesAbsolute"),
			field.Invalid(absolute, 0, "cannot be zero at the same time as minCandidateNodesPercentage"))
	}
	return errs
}

func validateDevices(path *field.Path, a *configv1.DynamicResourcesArgs) field.ErrorList {
	var errs field.ErrorList
	if a.FilterTimeout.Duration < 0 {
		errs = append(errs, field.Invalid(path.Child("filterTimeout"), a.FilterTimeout, "must be zero or positive"))
	}
	if a.BindingTimeout.Duration < time.Second {
		errs = append(errs, field.Invalid(path.Child("bindingTimeout"), a.BindingTimeout, "must be at least 1 second"))
	}
	return errs
}

func validateNodeAffinity(path *field.Path, a *corev1.NodeAffinity) field.ErrorList {
	if a == nil {
		return nil
	}
	var errs field.ErrorList
	take := func(at *field.Path, value any, err error) {
		if err != nil {
			errs = append(errs, field.Invalid(at, value, err.Error()))
		}
	}
	if required := a.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		_, err := nodeaffinity.NewNodeSelector(required)
		take(path.Child("requiredDuringSchedulingIgnoredDuringExecution"), required, err)
	}
	if preferred := a.PreferredDuringSchedulingIgnoredDuringExecution; len(preferred) > 0 {
		_, err := nodeaffinity.NewPreferredSchedulingTerms(preferred)
		take(path.Child("preferredDuringSchedulingIgnoredDuringExecution"), preferred, err)
	}
	return errs
}

func validateBalanced(path *field.Path, resources []configv1.ResourceSpec) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]struct{}{}
	for i, r := range resources {
		if _, twice := seen[r.Name]; twice {
			errs = append(errs, field.Duplicate(path.Index(i).Child("name"), r.Name))
		}
		seen[r.Name] = struct{}{}
		if r.Weight != 1 {
			errs = append(errs, field.Invalid(path.Index(i).Child("weight"), r.Weight, "must be 1"))
		}
	}
	return errs
}

func validateFit(path *field.Path, a *configv1.NodeResourcesFitArgs) field.ErrorList {
	var errs field.ErrorList
	for i, name := range a.IgnoredResources {
		errs = append(errs, metav1validation.ValidateLabelName(name, path.Child("ignoredResources").Index(i))...)
	}
	for i, group := range a.IgnoredResourceGroups {
		at := path.Child("ignoredResourceGroups").Index(i)
		if strings.Contains(group, "/") {
			errs = append(errs, field.Invalid(at, group, "resource group name can't contain '/'"))
		}
		errs = append(errs, metav1validation.ValidateLabelName(group, at)...)
	}
	return append(errs, validateStrategy(path.Child("scoringStrategy"), a.ScoringStrategy)...)
}

func validateStrategy(path *field.Path, s *configv1.ScoringStrategy) field.ErrorList {
	var errs field.ErrorList
	switch s.Type {
	case configv1.LeastAllocated, configv1.MostAllocated, configv1.RequestedToCapacityRatio:
	default:
		errs = append(errs, field.NotSupported(path.Child("type"), s.Type,
			[]configv1.ScoringStrategyType{configv1.LeastAllocated, configv1.MostAllocated, configv1.RequestedToCapacityRatio}))
	}
	for i, r := range s.Resources {
		if r.Weight <= 0 || r.Weight > 100 {
			errs = append(errs, field.Invalid(path.Child("resources").Index(i).Child("weight"), r.Weight,
				fmt.Sprintf("resource weight of %v not in valid range (0, 100]", r.Name)))
		}
	}
	ratio := path.Child("requestedToCapacityRatio")
	switch {
	case s.Type != configv1.RequestedToCapacityRatio && s.RequestedToCapacityRatio != nil:
		errs = append(errs, field.Forbidden(ratio, "must be nil when type is not RequestedToCapacityRatio"))
	case s.Type == configv1.RequestedToCapacityRatio && s.RequestedToCapacityRatio == nil:
		errs = append(errs, field.Required(ratio, "must be specified when type is RequestedToCapacityRatio"))
	case s.Type == configv1.RequestedToCapacityRatio:
		errs = append(errs, validateShape(ratio.Child("shape"), s.RequestedToCapacityRatio.Shape)...)
	}
	return errs
}

func validateShape(path *field.Path, shape []configv1.UtilizationShapePoint) field.ErrorList {
	if len(shape) == 0 {
		return field.ErrorList{field.Required(path, "at least one point must be specified")}
	}
	var errs field.ErrorList
	for i := 1; i < len(shape); i++ {
		if shape[i-1].Utilization >= shape[i].Utilization {
			errs = append(errs, field.Invalid(path.Index(i).Child("utilization"), shape[i].Utilization, "values must be sorted in increasing order"))
			break
		}
	}
	for i, p := range shape {
		errs = append(errs, inRange(path.Index(i).Child("utilization"), p.Utilization, 0, 100)...)
		errs = append(errs, inRange(path.Index(i).Child("score"), p.Score, 0, 10)...)
	}
	return errs
}

func validateSpread(path *field.Path, a *configv1.PodTopologySpreadArgs) field.ErrorList {
	var errs field.ErrorList
	how := path.Child("defaultingType")
	switch {
	case a.DefaultingType != configv1.SystemDefaulting && a.DefaultingType != configv1.ListDefaulting:
		errs = append(errs, field.NotSupported(how, a.DefaultingType,
			[]configv1.PodTopologySpreadConstraintsDefaulting{configv1.SystemDefaulting, configv1.ListDefaulting}))
	case a.DefaultingType == configv1.SystemDefaulting && len(a.DefaultConstraints) > 0:
		errs = append(errs, field.Invalid(how, a.DefaultingType, "when .defaultConstraints are not empty"))
	}
	for i := range a.DefaultConstraints {
		errs = append(errs, validateConstraint(path.Child("defaultConstraints"), a.DefaultConstraints, i)...)
	}
	return errs
}

func validateConstraint(list *field.Path, constraints []corev1.TopologySpreadConstraint, i int) field.ErrorList {
	var errs field.ErrorList
	c, path := &constraints[i], list.Index(i)
	if c.MaxSkew <= 0 {
		errs = append(errs, field.Invalid(path.Child("maxSkew"), c.MaxSkew, "not in valid range (0, inf)"))
	}
	if key := path.Child("topologyKey"); c.TopologyKey == "" {
		errs = append(errs, field.Required(key, "can not be empty"))
	} else {
		errs = append(errs, metav1validation.ValidateLabelName(c.TopologyKey, key)...)
	}
	switch when := path.Child("whenUnsatisfiable"); c.WhenUnsatisfiable {
	case corev1.DoNotSchedule, corev1.ScheduleAnyway:
	case "":
		errs = append(errs, field.Required(when, "can not be empty"))
	default:
		errs = append(errs, field.NotSupported(when, c.WhenUnsatisfiable,
			[]corev1.UnsatisfiableConstraintAction{corev1.DoNotSchedule, corev1.ScheduleAnyway}))
	}
	if c.LabelSelector != nil {
		errs = append(errs, field.Forbidden(path.Child("labelSelector"), "constraint must not define a selector, as they deduced for each pod"))
	}
	for _, other := range constraints[:i] {
		if c.TopologyKey == other.TopologyKey && c.WhenUnsatisfiable == other.WhenUnsatisfiable {
			return append(errs, field.Duplicate(path, fmt.Sprintf("{%v, %v}", c.TopologyKey, c.WhenUnsatisfiable)))
		}
	}
	return errs
}

func validateVolumeBinding(path *field.Path, a *configv1.VolumeBindingArgs) field.ErrorList {
	var errs field.ErrorList
	if *a.BindTimeoutSeconds < 0 {
		errs = append(errs, field.Invalid(path.Child("bindTimeoutSeconds"), *a.BindTimeoutSeconds, "invalid BindTimeoutSeconds, should not be a negative value"))
	}
	if a.Shape != nil {
		errs = append(errs, field.Invalid(path.Child("shape"), a.Shape, "unexpected field `shape`, remove it or turn on the feature gate StorageCapacityScoring"))
	}
	return errs
}
