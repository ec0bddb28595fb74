// Package podclaims says which PersistentVolumeClaims the volumes of a pod stand for.
package podclaims

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"
)

// Index is the name of an informer's index of pods by their claims, as Keys has them.
const Index = "podclaims"

// Name is the claim of a pod's volume, or "".
func Name(pod *corev1.Pod, volume *corev1.Volume) string {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return volume.PersistentVolumeClaim.ClaimName
	case volume.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, volume)
	}
	return ""
}

// Keys are a pod's claims, as "namespace/name".
func Keys(pod *corev1.Pod) []string {
	var keys []string
	for i := range pod.Spec.Volumes {
		if name := Name(pod, &pod.Spec.Volumes[i]); name != "" {
			keys = append(keys, pod.Namespace+"/"+name)
		}
	}
	return keys
}

// Uses says whether a claim of the pod's namespace is one of the pod's. A claim
// that only has the name of a pod's ephemeral volume is not.
func Uses(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return Name(pod, &v) == claim.Name && (v.Ephemeral == nil || metav1.IsControlledBy(claim, pod))
	})
}
