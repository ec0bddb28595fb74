package core

import (
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

// ValidateStatefulSetName leaves room for nothing less than a label: pods and
// the revision label are named after the set.
func ValidateStatefulSetName(name string, prefix bool) []string {
	if prefix {
		return apivalidation.NameIsDNSLabel(name, prefix)
	}
	return validation.IsDNS1123Label(name)
}

func validateReplicationController(rc *corev1.ReplicationController) field.ErrorList {
	path, s := field.NewPath("spec"), &rc.Spec
	errs := validate.NonNegative(path.Child("minReadySeconds"), s.MinReadySeconds)
	if len(s.Selector) == 0 {
		errs = append(errs, field.Required(path.Child("selector"), ""))
	}
	if s.Replicas == nil {
		errs = append(errs, field.Required(path.Child("replicas"), ""))
	} else {
		errs = append(errs, validate.NonNegative(path.Child("replicas"), *s.Replicas)...)
	}
	if s.Template == nil {
		return append(errs, field.Required(path.Child("template"), ""))
	}
	return append(errs, ValidateScaledTemplate(s.Template, labels.SelectorFromSet(s.Selector), s.Replicas, path.Child("template"))...)
}

func validateReplicationControllerUpdate(rc, _ *corev1.ReplicationController) field.ErrorList {
	return validateReplicationController(rc)
}

// ValidateScaledTemplate checks the template of a ReplicaSet or its like: what
// it makes is selected, runs for ever, and shares no disk that it cannot share.
func ValidateScaledTemplate(t *corev1.PodTemplateSpec, selector labels.Selector, replicas *int32, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !selector.Matches(labels.Set(t.Labels)) {
		errs = append(errs, field.Invalid(path.Child("metadata", "labels"), t.Labels, "`selector` does not match template `labels`"))
	}
	errs = append(errs, ValidateTemplate(t, path)...)
	if replicas != nil && *replicas > 1 {
		errs = append(errs, validateSharedDisks(t.Spec.Volumes, path.Child("spec", "volumes"))...)
	}
	return append(errs, ValidateAlwaysRestarts(&t.Spec, path.Child("spec"))...)
}

func validateSharedDisks(volumes []corev1.Volume, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, v := range volumes {
		if v.GCEPersistentDisk != nil && !v.GCEPersistentDisk.ReadOnly {
			errs = append(errs, field.Invalid(path.Index(i).Child("gcePersistentDisk", "readOnly"), false, "must be true for replicated pods > 1; GCE PD can only be mounted on multiple machines if it is read-only"))
		}
		if v.AWSElasticBlockStore != nil {
			errs = append(errs, field.Forbidden(path.Index(i).Child("awsElasticBlockStore"), "replicated pods > 1 cannot share a volume"))
		}
	}
	return errs
}

// ValidateAlwaysRestarts refuses pods of a workload that end by themselves.
func ValidateAlwaysRestarts(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.RestartPolicy != corev1.RestartPolicyAlways {
		errs = append(errs, field.NotSupported(path.Child("restartPolicy"), s.RestartPolicy, []corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if s.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(path.Child("activeDeadlineSeconds"), "activeDeadlineSeconds in ReplicaSet is not Supported"))
	}
	return errs
}

func validateReplicationControllerStatusUpdate(rc, _ *corev1.ReplicationController) field.ErrorList {
	path, s := field.NewPath("status"), &rc.Status
	errs := validate.NonNegative(path.Child("replicas"), s.Replicas)
	counts := []struct {
		name string
		n    int32
	}{{"fullyLabeledReplicas", s.FullyLabeledReplicas}, {"readyReplicas", s.ReadyReplicas}, {"availableReplicas", s.AvailableReplicas}}
	for _, count := range counts {
		errs = append(errs, validate.NonNegative(path.Child(count.name), count.n)...)
	}
	errs = append(errs, validate.NonNegative(path.Child("observedGeneration"), s.ObservedGeneration)...)
	for _, count := range counts {
		if count.n > s.Replicas {
			errs = append(errs, field.Invalid(path.Child(count.name), count.n, "cannot be greater than status.replicas"))
		}
	}
	if s.AvailableReplicas > s.ReadyReplicas {
		errs = append(errs, field.Invalid(path.Child("availableReplicas"), s.AvailableReplicas, "cannot be greater than readyReplicas"))
	}
	return errs
}
