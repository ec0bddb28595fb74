package builtin

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	podresource "k8s.io/component-helpers/resource"

	"proa/internal/apis"
	"proa/internal/apis/feature"
)

// holdWholes keeps pods that have resources as a whole from being resized while the
// gate of that is off (KEP-5419).
func holdWholes(r *apis.Resource, gates feature.Gates) {
	if r.Group != "" || r.Plural != "pods" || gates.Enabled("InPlacePodLevelResourcesVerticalScaling") {
		return
	}
	resize := r.Subresource("resize")
	check := resize.ValidateUpdate
	resize.ValidateUpdate = func(ctx context.Context, obj, old apis.Object) field.ErrorList {
		if podresource.IsPodLevelResourcesSet(obj.(*corev1.Pod)) || podresource.IsPodLevelResourcesSet(old.(*corev1.Pod)) {
			return field.ErrorList{field.Forbidden(field.NewPath(""), "resize of pods with pod-level resources is forbidden when InPlacePodLevelResourcesVerticalScalingEnabled feature gate is disabled")}
		}
		return check(ctx, obj, old)
	}
}
