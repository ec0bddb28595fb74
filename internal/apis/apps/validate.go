package apps

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/core"
	"proa/internal/apis/validate"
)

// selectorOf checks the selector of a workload; one that selects all would take
// every pod of the namespace. It returns none when s cannot be one.
func selectorOf(kind string, s *metav1.LabelSelector, path *field.Path) (labels.Selector, field.ErrorList) {
	if s == nil {
		return labels.Nothing(), field.ErrorList{field.Required(path, "")}
	}
	errs := validate.Selector(path, s)
	if len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		errs = append(errs, field.Invalid(path, s, "empty selector is invalid for "+kind))
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return nil, append(errs, field.Invalid(path, s, "invalid label selector"))
	}
	return selector, errs
}

// statefulSelector is selectorOf for StatefulSets, which say less of a bad one.
func statefulSelector(s *metav1.LabelSelector, path *field.Path) (labels.Selector, field.ErrorList) {
	selector, errs := selectorOf("statefulset", s, path)
	for _, e := range errs {
		if e.Detail == "invalid label selector" {
			e.Detail = ""
		}
	}
	return selector, errs
}

func validateDeployment(d *appsv1.Deployment) field.ErrorList {
	path, s := field.NewPath("spec"), &d.Spec
	errs := validate.NonNegativePtr(path.Child("replicas"), s.Replicas)
	selector, bad := selectorOf("deployment", s.Selector, path.Child("selector"))
	errs = append(errs, bad...)
	if selector != nil {
		errs = append(errs, core.ValidateScaledTemplate(&s.Template, selector, s.Replicas, path.Child("template"))...)
	}
	errs = append(errs, validateDeploymentStrategy(&s.Strategy, path.Child("strategy"))...)
	errs = append(errs, validate.NonNegative(path.Child("minReadySeconds"), s.MinReadySeconds)...)
	errs = append(errs, validate.NonNegativePtr(path.Child("revisionHistoryLimit"), s.RevisionHistoryLimit)...)
	if p := s.ProgressDeadlineSeconds; p != nil {
		errs = append(errs, validate.NonNegative(path.Child("progressDeadlineSeconds"), *p)...)
		if *p <= s.MinReadySeconds {
			errs = append(errs, field.Invalid(path.Child("progressDeadlineSeconds"), *p, "must be greater than minReadySeconds"))
		}
	}
	return errs
}

func validateDeploymentStrategy(s *appsv1.DeploymentStrategy, path *field.Path) field.ErrorList {
	switch s.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if s.RollingUpdate != nil {
			return field.ErrorList{field.Forbidden(path.Child("rollingUpdate"), "may not be specified when strategy `type` is '"+string(s.Type)+"'")}
		}
	case appsv1.RollingUpdateDeploymentStrategyType:
		if s.RollingUpdate == nil {
			return field.ErrorList{field.Required(path.Child("rollingUpdate"), "this should be defaulted and never be nil")}
		}
		return validateRolling(s.RollingUpdate.MaxUnavailable, s.RollingUpdate.MaxSurge, path.Child("rollingUpdate"))
	default:
		return field.ErrorList{field.NotSupported(path, *s, []appsv1.DeploymentStrategyType{appsv1.RecreateDeploymentStrategyType, appsv1.RollingUpdateDeploymentStrategyType})}
	}
	return nil
}

// validateRolling wants some room to move, and no more than all pods away.
func validateRolling(unavailable, surge *intstr.IntOrString, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if unavailable != nil {
		errs = append(errs, validate.IntOrPercent(path.Child("maxUnavailable"), *unavailable)...)
	}
	if surge != nil {
		errs = append(errs, validate.IntOrPercent(path.Child("maxSurge"), *surge)...)
	}
	if isZero(unavailable) && isZero(surge) {
		errs = append(errs, field.Invalid(path.Child("maxUnavailable"), unavailable, "may not be 0 when `maxSurge` is 0"))
	}
	if unavailable != nil {
		errs = append(errs, validate.AtMost100Percent(path.Child("maxUnavailable"), *unavailable)...)
	}
	return errs
}

func validateDeploymentUpdate(d, old *appsv1.Deployment) field.ErrorList {
	errs := validateDeployment(d)
	return append(errs, validate.Immutable(field.NewPath("spec", "selector"), d.Spec.Selector, old.Spec.Selector)...)
}

// count is one number of a status.
type count struct {
	name string
	n    int32
}

// validateCounts refuses negative numbers, and parts greater than their whole.
func validateCounts(whole count, parts ...count) field.ErrorList {
	path := field.NewPath("status")
	errs := validate.NonNegative(path.Child(whole.name), whole.n)
	for _, p := range parts {
		errs = append(errs, validate.NonNegative(path.Child(p.name), p.n)...)
		if p.n > whole.n {
			errs = append(errs, field.Invalid(path.Child(p.name), p.n, "cannot be greater than status."+whole.name))
		}
	}
	return errs
}

func validateAvailable(available, ready int32) field.ErrorList {
	if available > ready {
		return field.ErrorList{field.Invalid(field.NewPath("status", "availableReplicas"), available, "cannot be greater than readyReplicas")}
	}
	return nil
}

// validateCollisions: the count of hash collisions never goes back.
func validateCollisions(is, was *int32) field.ErrorList {
	path := field.NewPath("status", "collisionCount")
	var errs field.ErrorList
	n := int32(0)
	if is != nil {
		n = *is
		errs = validate.NonNegative(path, n)
	}
	if was != nil && n < *was {
		errs = append(errs, field.Invalid(path, n, "cannot be decremented"))
	}
	return errs
}

func validateDeploymentStatusUpdate(d, old *appsv1.Deployment) field.ErrorList {
	s := &d.Status
	errs := validateCounts(count{"replicas", s.Replicas}, count{"updatedReplicas", s.UpdatedReplicas}, count{"readyReplicas", s.ReadyReplicas}, count{"availableReplicas", s.AvailableReplicas})
	errs = append(errs, validate.NonNegative(field.NewPath("status", "observedGeneration"), s.ObservedGeneration)...)
	errs = append(errs, validate.NonNegative(field.NewPath("status", "unavailableReplicas"), s.UnavailableReplicas)...)
	errs = append(errs, validate.NonNegativePtr(field.NewPath("status", "terminatingReplicas"), s.TerminatingReplicas)...)
	errs = append(errs, validateAvailable(s.AvailableReplicas, s.ReadyReplicas)...)
	return append(errs, validateCollisions(s.CollisionCount, old.Status.CollisionCount)...)
}

func validateReplicaSet(rs *appsv1.ReplicaSet) field.ErrorList {
	path, s := field.NewPath("spec"), &rs.Spec
	errs := validate.NonNegativePtr(path.Child("replicas"), s.Replicas)
	errs = append(errs, validate.NonNegative(path.Child("minReadySeconds"), s.MinReadySeconds)...)
	selector, bad := selectorOf("deployment", s.Selector, path.Child("selector"))
	errs = append(errs, bad...)
	if selector == nil {
		return errs
	}
	return append(errs, core.ValidateScaledTemplate(&s.Template, selector, s.Replicas, path.Child("template"))...)
}

func validateReplicaSetUpdate(rs, old *appsv1.ReplicaSet) field.ErrorList {
	return append(validateReplicaSet(rs), validate.Immutable(field.NewPath("spec", "selector"), rs.Spec.Selector, old.Spec.Selector)...)
}

func validateReplicaSetStatusUpdate(rs, _ *appsv1.ReplicaSet) field.ErrorList {
	s := &rs.Status
	errs := validateCounts(count{"replicas", s.Replicas}, count{"fullyLabeledReplicas", s.FullyLabeledReplicas}, count{"readyReplicas", s.ReadyReplicas}, count{"availableReplicas", s.AvailableReplicas})
	errs = append(errs, validate.NonNegative(field.NewPath("status", "observedGeneration"), s.ObservedGeneration)...)
	errs = append(errs, validate.NonNegativePtr(field.NewPath("status", "terminatingReplicas"), s.TerminatingReplicas)...)
	return append(errs, validateAvailable(s.AvailableReplicas, s.ReadyReplicas)...)
}

// daemonSelector is selectorOf for DaemonSets: an absent one matches no template,
// which is all that is said of it.
func daemonSelector(s *metav1.LabelSelector, path *field.Path) (labels.Selector, field.ErrorList) {
	if s == nil {
		return labels.Nothing(), nil
	}
	selector, errs := selectorOf("daemonset", s, path)
	return selector, slices.DeleteFunc(errs, func(e *field.Error) bool { return e.Detail == "invalid label selector" })
}

func validateDaemonSet(d *appsv1.DaemonSet) field.ErrorList {
	path, s := field.NewPath("spec"), &d.Spec
	selector, errs := daemonSelector(s.Selector, path.Child("selector"))
	if selector != nil && !selector.Matches(labels.Set(s.Template.Labels)) {
		errs = append(errs, field.Invalid(path.Child("template", "metadata", "labels"), s.Template.Labels, "`selector` does not match template `labels`"))
	}
	errs = append(errs, core.ValidateTemplate(&s.Template, path.Child("template"))...)
	errs = append(errs, core.ValidateAlwaysRestarts(&s.Template.Spec, path.Child("template", "spec"))...)
	errs = append(errs, validate.NonNegative(path.Child("minReadySeconds"), s.MinReadySeconds)...)
	errs = append(errs, validateDaemonSetStrategy(&s.UpdateStrategy, path.Child("updateStrategy"))...)
	return append(errs, validate.NonNegativePtr(path.Child("revisionHistoryLimit"), s.RevisionHistoryLimit)...)
}

func validateDaemonSetStrategy(s *appsv1.DaemonSetUpdateStrategy, path *field.Path) field.ErrorList {
	switch s.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
		return nil
	case appsv1.RollingUpdateDaemonSetStrategyType:
	default:
		return field.ErrorList{field.NotSupported(path, *s, []appsv1.DaemonSetUpdateStrategyType{appsv1.RollingUpdateDaemonSetStrategyType, appsv1.OnDeleteDaemonSetStrategyType})}
	}
	at, r := path.Child("rollingUpdate"), s.RollingUpdate
	if r == nil {
		return field.ErrorList{field.Required(at, "")}
	}
	var errs, tooMuch field.ErrorList
	for _, v := range []struct {
		name  string
		value *intstr.IntOrString
	}{{"maxUnavailable", r.MaxUnavailable}, {"maxSurge", r.MaxSurge}} {
		if v.value != nil {
			errs = append(errs, validate.IntOrPercent(at.Child(v.name), *v.value)...)
			tooMuch = append(tooMuch, validate.AtMost100Percent(at.Child(v.name), *v.value)...)
		}
	}
	errs = append(errs, tooMuch...)
	moves, surges := !isZero(r.MaxUnavailable) && r.MaxUnavailable != nil, !isZero(r.MaxSurge) && r.MaxSurge != nil
	switch {
	case moves && surges:
		errs = append(errs, field.Invalid(at.Child("maxSurge"), r.MaxSurge, "may not be set when maxUnavailable is non-zero"))
	case !moves && !surges:
		errs = append(errs, field.Required(at.Child("maxUnavailable"), "cannot be 0 when maxSurge is 0"))
	}
	return errs
}

func validateDaemonSetUpdate(d, old *appsv1.DaemonSet) field.ErrorList {
	return append(validate.Immutable(field.NewPath("spec", "selector"), d.Spec.Selector, old.Spec.Selector), validateDaemonSet(d)...)
}

func validateDaemonSetStatusUpdate(d, old *appsv1.DaemonSet) field.ErrorList {
	path, s := field.NewPath("status"), &d.Status
	var errs field.ErrorList
	for _, c := range []count{
		{"currentNumberScheduled", s.CurrentNumberScheduled}, {"numberMisscheduled", s.NumberMisscheduled}, {"desiredNumberScheduled", s.DesiredNumberScheduled},
		{"numberReady", s.NumberReady}, {"updatedNumberScheduled", s.UpdatedNumberScheduled}, {"numberAvailable", s.NumberAvailable}, {"numberUnavailable", s.NumberUnavailable},
	} {
		errs = append(errs, validate.NonNegative(path.Child(c.name), c.n)...)
	}
	errs = append(errs, validate.NonNegative(path.Child("observedGeneration"), s.ObservedGeneration)...)
	return append(errs, validateCollisions(s.CollisionCount, old.Status.CollisionCount)...)
}

func validateStatefulSet(sts *appsv1.StatefulSet) field.ErrorList {
	return validateStatefulSetSpec(sts, true)
}

// validateStatefulSetSpec checks what never changes (the name of the service, the
// claims) only where it is new: an update keeps what was once let through.
func validateStatefulSetSpec(sts *appsv1.StatefulSet, created bool) field.ErrorList {
	path, s := field.NewPath("spec"), &sts.Spec
	var errs field.ErrorList
	switch at := path.Child("podManagementPolicy"); s.PodManagementPolicy {
	case "":
		errs = append(errs, field.Required(at, ""))
	case appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement:
	default:
		errs = append(errs, field.Invalid(at, s.PodManagementPolicy, fmt.Sprintf("must be '%s' or '%s'", appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement)))
	}
	errs = append(errs, validateStatefulSetStrategy(&s.UpdateStrategy, path.Child("updateStrategy"))...)
	if r := s.PersistentVolumeClaimRetentionPolicy; r != nil {
		at := path.Child("persistentVolumeClaimRetentionPolicy")
		retain, remove := appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType
		errs = append(errs, validate.Listed(at.Child("whenDeleted"), r.WhenDeleted, retain, remove)...)
		errs = append(errs, validate.Listed(at.Child("whenScaled"), r.WhenScaled, retain, remove)...)
	}
	if created {
		errs = append(errs, validateClaimTemplates(s.VolumeClaimTemplates, path.Child("volumeClaimTemplates"))...)
	}
	errs = append(errs, validate.NonNegativePtr(path.Child("replicas"), s.Replicas)...)
	errs = append(errs, validate.NonNegative(path.Child("minReadySeconds"), s.MinReadySeconds)...)
	if s.Ordinals != nil {
		errs = append(errs, validate.NonNegative(path.Child("ordinals", "start"), s.Ordinals.Start)...)
	}
	if created && s.ServiceName != "" {
		errs = append(errs, validate.Label(path.Child("serviceName"), s.ServiceName)...)
	}
	selector, bad := statefulSelector(s.Selector, path.Child("selector"))
	errs = append(errs, bad...)
	if selector != nil && !selector.Matches(labels.Set(s.Template.Labels)) {
		errs = append(errs, field.Invalid(path.Child("template", "metadata", "labels"), s.Template.Labels, "`selector` does not match template `labels`"))
	}
	errs = append(errs, core.ValidateTemplate(withClaims(sts), path.Child("template"))...)
	if p := s.Template.Spec.RestartPolicy; p != corev1.RestartPolicyAlways {
		errs = append(errs, field.NotSupported(path.Child("template", "spec", "restartPolicy"), p, []corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if s.Template.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(path.Child("template", "spec", "activeDeadlineSeconds"), "activeDeadlineSeconds in StatefulSet is not Supported"))
	}
	return errs
}

// withClaims is the template with the volumes its claims become, so that mounts
// of them are known.
func withClaims(sts *appsv1.StatefulSet) *corev1.PodTemplateSpec {
	if len(sts.Spec.VolumeClaimTemplates) == 0 {
		return &sts.Spec.Template
	}
	t := sts.Spec.Template.DeepCopy()
	named := sets.New[string]()
	for _, c := range sts.Spec.VolumeClaimTemplates {
		named.Insert(c.Name)
	}
	kept := t.Spec.Volumes[:0]
	for _, v := range t.Spec.Volumes {
		if !named.Has(v.Name) {
			kept = append(kept, v)
		}
	}
	for _, name := range sets.List(named) {
		kept = append(kept, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
	}
	t.Spec.Volumes = kept
	return t
}

func validateClaimTemplates(claims []corev1.PersistentVolumeClaim, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range claims {
		errs = append(errs, core.ValidateClaimTemplate(&claims[i], path.Index(i))...)
	}
	return errs
}

func validateStatefulSetStrategy(s *appsv1.StatefulSetUpdateStrategy, path *field.Path) field.ErrorList {
	switch s.Type {
	case "":
		return field.ErrorList{field.Required(path, "")}
	case appsv1.OnDeleteStatefulSetStrategyType:
		if s.RollingUpdate != nil {
			return field.ErrorList{field.Invalid(path.Child("rollingUpdate"), s.RollingUpdate, fmt.Sprintf("only allowed for updateStrategy '%s'", appsv1.RollingUpdateStatefulSetStrategyType))}
		}
		return nil
	case appsv1.RollingUpdateStatefulSetStrategyType:
	default:
		return field.ErrorList{field.Invalid(path, s, fmt.Sprintf("must be '%s' or '%s'", appsv1.RollingUpdateStatefulSetStrategyType, appsv1.OnDeleteStatefulSetStrategyType))}
	}
	r, at := s.RollingUpdate, path.Child("rollingUpdate")
	if r == nil {
		return nil
	}
	errs := validate.NonNegativePtr(at.Child("partition"), r.Partition)
	if m := r.MaxUnavailable; m != nil {
		errs = append(errs, validate.IntOrPercent(at.Child("maxUnavailable"), *m)...)
		if isZero(m) {
			errs = append(errs, field.Invalid(at.Child("maxUnavailable"), m, "cannot be 0"))
		}
		errs = append(errs, validate.AtMost100Percent(at.Child("maxUnavailable"), *m)...)
	}
	return errs
}

func validateStatefulSetUpdate(s, old *appsv1.StatefulSet) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateStatefulSetSpec(s, false)
	errs = append(errs, validate.Immutable(path.Child("selector"), s.Spec.Selector, old.Spec.Selector)...)
	errs = append(errs, validate.Immutable(path.Child("volumeClaimTemplates"), untyped(s.Spec.VolumeClaimTemplates), untyped(old.Spec.VolumeClaimTemplates))...)
	errs = append(errs, validate.Immutable(path.Child("serviceName"), s.Spec.ServiceName, old.Spec.ServiceName)...)
	return append(errs, validate.Immutable(path.Child("podManagementPolicy"), s.Spec.PodManagementPolicy, old.Spec.PodManagementPolicy)...)
}

// untyped are claims without kind and version, which are the same for all.
func untyped(claims []corev1.PersistentVolumeClaim) []corev1.PersistentVolumeClaim {
	claims = slices.Clone(claims)
	for i := range claims {
		claims[i].TypeMeta = metav1.TypeMeta{}
	}
	return claims
}

func validateStatefulSetStatusUpdate(sts, old *appsv1.StatefulSet) field.ErrorList {
	s := &sts.Status
	errs := validateCounts(count{"replicas", s.Replicas}, count{"readyReplicas", s.ReadyReplicas}, count{"currentReplicas", s.CurrentReplicas}, count{"updatedReplicas", s.UpdatedReplicas}, count{"availableReplicas", s.AvailableReplicas})
	errs = append(errs, validate.NonNegative(field.NewPath("status", "observedGeneration"), s.ObservedGeneration)...)
	if s.AvailableReplicas > s.ReadyReplicas {
		errs = append(errs, field.Invalid(field.NewPath("status", "availableReplicas"), s.AvailableReplicas, "cannot be greater than status.readyReplicas"))
	}
	return append(errs, validateCollisions(s.CollisionCount, old.Status.CollisionCount)...)
}
