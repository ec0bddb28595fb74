package registry

import (
	appsv1 "k8s.io/api/apps/v1"

	"proa/internal/store"
)

// completeEmbedded writes the type into objects that lie within another one, as
// defaulting did before they were stored: protobuf has no place for it.
func completeEmbedded(obj store.Object) {
	set, ok := obj.(*appsv1.StatefulSet)
	if !ok {
		return
	}
	for i := range set.Spec.VolumeClaimTemplates {
		t := &set.Spec.VolumeClaimTemplates[i]
		t.APIVersion, t.Kind = "v1", "PersistentVolumeClaim"
	}
}
