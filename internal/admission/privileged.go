package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	podsecurity "k8s.io/pod-security-admission/admission"
)

// noPrivileged refuses privileged containers in pods and in templates of pods, as
// upstream's API server does where --allow-privileged is false. Upstream does it in
// validation, so the answer is Invalid.
type noPrivileged struct{}

func (noPrivileged) Name() string { return "NoPrivileged" }

func (noPrivileged) Validate(_ context.Context, a *Attributes) error {
	if a.Object == nil || a.Subresource != "" && a.Subresource != "ephemeralcontainers" {
		return nil
	}
	_, spec, err := podsecurity.DefaultPodSpecExtractor{}.ExtractPodSpec(a.Object)
	if err != nil || spec == nil {
		return nil //nolint:nilerr // not a kind with pods
	}
	path := field.NewPath("spec")
	switch a.Resource.Kind {
	case "Pod":
	case "PodTemplate":
		path = field.NewPath("template", "spec")
	case "CronJob":
		path = field.NewPath("spec", "jobTemplate", "spec", "template", "spec")
	default:
		path = field.NewPath("spec", "template", "spec")
	}
	if errs := privileged(path, spec); len(errs) > 0 {
		return apierrors.NewInvalid(a.Resource.GroupVersionKind().GroupKind(), a.Name, errs)
	}
	return nil
}

func privileged(path *field.Path, spec *corev1.PodSpec) (errs field.ErrorList) {
	check := func(list string, i int, s *corev1.SecurityContext) {
		if s != nil && s.Privileged != nil && *s.Privileged {
			at := path.Child(list).Index(i).Child("securityContext", "privileged")
			errs = append(errs, field.Forbidden(at, "disallowed by cluster policy"))
		}
	}
	for i := range spec.Containers {
		check("containers", i, spec.Containers[i].SecurityContext)
	}
	for i := range spec.InitContainers {
		check("initContainers", i, spec.InitContainers[i].SecurityContext)
	}
	for i := range spec.EphemeralContainers {
		check("ephemeralContainers", i, spec.EphemeralContainers[i].SecurityContext)
	}
	return errs
}
