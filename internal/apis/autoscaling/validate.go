package autoscaling

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/core"
	common "proa/internal/apis/validate"
)

// Bounds of scaling behavior, in seconds.
const (
	maxStabilization = int32(3600)
	maxPeriod        = int32(1800)
)

func validate(h *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
	path, s := field.NewPath("spec"), &h.Spec
	var errs field.ErrorList
	if s.MinReplicas != nil && s.MaxReplicas < *s.MinReplicas {
		errs = append(errs, field.Invalid(path.Child("maxReplicas"), s.MaxReplicas, "must be greater than or equal to `minReplicas`").WithOrigin("minReplicas"))
	}
	errs = append(errs, validateReference(s.ScaleTargetRef, path.Child("scaleTargetRef"))...)
	fromOutside := false
	for i := range s.Metrics {
		m := &s.Metrics[i]
		fromOutside = fromOutside || m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType
		errs = append(errs, validateMetric(m, path.Child("metrics").Index(i))...)
	}
	if s.MinReplicas != nil && *s.MinReplicas == 0 && !fromOutside {
		errs = append(errs, field.Forbidden(path.Child("metrics"), "must specify at least one Object or External metric to support scaling to zero replicas"))
	}
	if b := s.Behavior; b != nil {
		errs = append(errs, validateRules(b.ScaleUp, path.Child("behavior", "scaleUp"))...)
		errs = append(errs, validateRules(b.ScaleDown, path.Child("behavior", "scaleDown"))...)
	}
	return errs
}

// validateCreate also wants the group of what is scaled, which objects of older
// versions may lack.
func validateCreate(h *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
	return append(validate(h), validateGroup(h.Spec.ScaleTargetRef)...)
}

func validateUpdate(h, old *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
	errs := validate(h)
	is, was := h.Spec.ScaleTargetRef, old.Spec.ScaleTargetRef
	if is.APIVersion != was.APIVersion || is.Kind != was.Kind {
		errs = append(errs, validateGroup(is)...)
	}
	return errs
}

func validateGroup(ref autoscalingv2.CrossVersionObjectReference) field.ErrorList {
	at := field.NewPath("spec", "scaleTargetRef", "apiVersion")
	switch gv, err := schema.ParseGroupVersion(ref.APIVersion); {
	case err != nil:
		return field.ErrorList{field.Invalid(at, ref.APIVersion, err.Error())}
	case gv.Group == "" && ref.Kind != "ReplicationController":
		return field.ErrorList{field.Invalid(at, ref.APIVersion, "apiVersion must specify API group")}
	}
	return nil
}

func validateStatus(h, _ *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
	path := field.NewPath("status")
	errs := common.NonNegative(path.Child("currentReplicas"), h.Status.CurrentReplicas)
	return append(errs, common.NonNegative(path.Child("desiredReplicas"), h.Status.DesiredReplicas)...)
}

func validateReference(ref autoscalingv2.CrossVersionObjectReference, path *field.Path) field.ErrorList {
	return append(requiredSegment(path.Child("kind"), ref.Kind, ""), requiredSegment(path.Child("name"), ref.Name, "")...)
}

func requiredSegment(path *field.Path, value, detail string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, detail)}
	}
	return common.Invalid(path, value, pathvalidation.IsValidPathSegmentName(value))
}

var metricTypes = []autoscalingv2.MetricSourceType{
	autoscalingv2.ObjectMetricSourceType, autoscalingv2.PodsMetricSourceType, autoscalingv2.ResourceMetricSourceType,
	autoscalingv2.ExternalMetricSourceType, autoscalingv2.ContainerResourceMetricSourceType,
}

// sources names the fields of a metric and the type that each belongs to.
var sources = map[autoscalingv2.MetricSourceType]string{
	autoscalingv2.ObjectMetricSourceType: "object", autoscalingv2.PodsMetricSourceType: "pods", autoscalingv2.ResourceMetricSourceType: "resource",
	autoscalingv2.ExternalMetricSourceType: "external", autoscalingv2.ContainerResourceMetricSourceType: "containerResource",
}

// validateMetric checks the first source that is set, and that it is the only
// one and of the type that is said.
func validateMetric(m *autoscalingv2.MetricSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m.Type == "" {
		errs = append(errs, field.Required(path.Child("type"), "must specify a metric source type"))
	}
	errs = append(errs, common.OneOf(path.Child("type"), m.Type, metricTypes...)...)
	present := sets.New[string]()
	add := func(name string, is bool, check func(path *field.Path) field.ErrorList) {
		if is {
			if present.Insert(name); present.Len() == 1 {
				errs = append(errs, check(path.Child(name))...)
			}
		}
	}
	add("object", m.Object != nil, func(p *field.Path) field.ErrorList { return validateObject(m.Object, p) })
	add("external", m.External != nil, func(p *field.Path) field.ErrorList { return validateExternal(m.External, p) })
	add("pods", m.Pods != nil, func(p *field.Path) field.ErrorList { return validatePods(m.Pods, p) })
	add("resource", m.Resource != nil, func(p *field.Path) field.ErrorList {
		return append(resourceName(string(m.Resource.Name), p), validateResourceTarget(m.Resource.Target, p)...)
	})
	add("containerResource", m.ContainerResource != nil, func(p *field.Path) field.ErrorList {
		errs := resourceName(string(m.ContainerResource.Name), p)
		if len(errs) == 0 {
			errs = core.ValidateContainerResourceName(m.ContainerResource.Name, p.Child("name"))
		}
		if m.ContainerResource.Container == "" {
			errs = append(errs, field.Required(p.Child("container"), "must specify a container"))
		} else {
			errs = append(errs, common.Label(p.Child("container"), m.ContainerResource.Container)...)
		}
		return append(errs, validateResourceTarget(m.ContainerResource.Target, p)...)
	})
	expected, known := sources[m.Type]
	if known && !present.Has(expected) {
		errs = append(errs, field.Required(path.Child(expected), "must populate information for the given metric source"))
	}
	if present.Len() != 1 {
		present.Delete(expected)
		for _, name := range sets.List(present) {
			errs = append(errs, field.Forbidden(path.Child(name), "must populate the given metric source only"))
		}
	}
	return errs
}

func validateObject(s *autoscalingv2.ObjectMetricSource, path *field.Path) field.ErrorList {
	errs := validateReference(s.DescribedObject, path.Child("describedObject"))
	errs = append(errs, validateIdentifier(s.Metric, path.Child("metric"))...)
	errs = append(errs, validateTarget(s.Target, path.Child("target"))...)
	if s.Target.Value == nil && s.Target.AverageValue == nil {
		errs = append(errs, field.Required(path.Child("target", "averageValue"), "must set either a target value or averageValue"))
	}
	return errs
}

func validateExternal(s *autoscalingv2.ExternalMetricSource, path *field.Path) field.ErrorList {
	errs := validateIdentifier(s.Metric, path.Child("metric"))
	errs = append(errs, validateTarget(s.Target, path.Child("target"))...)
	if s.Target.Value == nil && s.Target.AverageValue == nil {
		errs = append(errs, field.Required(path.Child("target", "averageValue"), "must set either a target value for metric or a per-pod target"))
	}
	if s.Target.Value != nil && s.Target.AverageValue != nil {
		errs = append(errs, field.Forbidden(path.Child("target", "value"), "may not set both a target value for metric and a per-pod target"))
	}
	return errs
}

func validatePods(s *autoscalingv2.PodsMetricSource, path *field.Path) field.ErrorList {
	errs := validateIdentifier(s.Metric, path.Child("metric"))
	errs = append(errs, validateTarget(s.Target, path.Child("target"))...)
	if s.Target.AverageValue == nil {
		errs = append(errs, field.Required(path.Child("target", "averageValue"), "must specify a positive target averageValue"))
	}
	return errs
}

func resourceName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path.Child("name"), "must specify a resource name")}
	}
	return nil
}

func validateResourceTarget(t autoscalingv2.MetricTarget, path *field.Path) field.ErrorList {
	errs := validateTarget(t, path.Child("target"))
	if t.AverageUtilization == nil && t.AverageValue == nil {
		errs = append(errs, field.Required(path.Child("target", "averageUtilization"), "must set either a target raw value or a target utilization"))
	}
	if t.AverageUtilization != nil && t.AverageValue != nil {
		errs = append(errs, field.Forbidden(path.Child("target", "averageValue"), "may not set both a target raw value and a target utilization"))
	}
	return errs
}

func validateTarget(t autoscalingv2.MetricTarget, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if t.Type == "" {
		errs = append(errs, field.Required(path.Child("type"), "must specify a metric target type"))
	}
	switch t.Type {
	case autoscalingv2.UtilizationMetricType, autoscalingv2.ValueMetricType, autoscalingv2.AverageValueMetricType:
	default:
		errs = append(errs, field.Invalid(path.Child("type"), t.Type, "must be either Utilization, Value, or AverageValue"))
	}
	if t.Value != nil && t.Value.Sign() != 1 {
		errs = append(errs, field.Invalid(path.Child("value"), t.Value, "must be positive"))
	}
	if t.AverageValue != nil && t.AverageValue.Sign() != 1 {
		errs = append(errs, field.Invalid(path.Child("averageValue"), t.AverageValue, "must be positive"))
	}
	if t.AverageUtilization != nil && *t.AverageUtilization < 1 {
		errs = append(errs, field.Invalid(path.Child("averageUtilization"), t.AverageUtilization, "must be greater than 0"))
	}
	return errs
}

func validateIdentifier(id autoscalingv2.MetricIdentifier, path *field.Path) field.ErrorList {
	return requiredSegment(path.Child("name"), id.Name, "must specify a metric name")
}

func validateRules(r *autoscalingv2.HPAScalingRules, path *field.Path) field.ErrorList {
	if r == nil {
		return nil
	}
	var errs field.ErrorList
	if w := r.StabilizationWindowSeconds; w != nil && *w < 0 {
		errs = append(errs, field.Invalid(path.Child("stabilizationWindowSeconds"), *w, "must be greater than or equal to zero"))
	} else if w != nil && *w > maxStabilization {
		errs = append(errs, field.Invalid(path.Child("stabilizationWindowSeconds"), *w, "must be less than or equal to 3600"))
	}
	if p := r.SelectPolicy; p != nil {
		errs = append(errs, common.OneOf(path.Child("selectPolicy"), *p, autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect, autoscalingv2.DisabledPolicySelect)...)
	}
	if len(r.Policies) == 0 {
		errs = append(errs, field.Required(path.Child("policies"), "must specify at least one Policy"))
	}
	for i, p := range r.Policies {
		errs = append(errs, validatePolicy(p, path.Child("policies").Index(i))...)
	}
	if r.Tolerance != nil {
		errs = append(errs, common.NonNegativeQuantity(path.Child("tolerance"), *r.Tolerance)...)
	}
	return errs
}

func validatePolicy(p autoscalingv2.HPAScalingPolicy, path *field.Path) field.ErrorList {
	errs := common.OneOf(path.Child("type"), p.Type, autoscalingv2.PodsScalingPolicy, autoscalingv2.PercentScalingPolicy)
	if p.Value <= 0 {
		errs = append(errs, field.Invalid(path.Child("value"), p.Value, "must be greater than zero"))
	}
	if p.PeriodSeconds <= 0 {
		errs = append(errs, field.Invalid(path.Child("periodSeconds"), p.PeriodSeconds, "must be greater than zero"))
	}
	if p.PeriodSeconds > maxPeriod {
		errs = append(errs, field.Invalid(path.Child("periodSeconds"), p.PeriodSeconds, "must be less than or equal to 1800"))
	}
	return errs
}
