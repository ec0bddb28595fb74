package node

import (
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/auth/references"
	"proa/internal/store"
)

var (
	claims  = schema.GroupResource{Resource: "persistentvolumeclaims"}
	volumes = schema.GroupResource{Resource: "persistentvolumes"}
)

// related refuses objects that no pod of the node uses.
func (a *Authorizer) related(r request) (string, error) {
	if r.GetName() == "" {
		return "No Object name found", nil
	}
	ok, err := a.uses(r)
	if err != nil {
		return "", err
	}
	if !ok {
		return fmt.Sprintf("no relationship found between node '%s' and this object", r.node), nil
	}
	return "", nil
}

func (a *Authorizer) uses(r request) (bool, error) {
	switch r.GetResource() {
	case "pods":
		pod, ok := object[*corev1.Pod](a.store, store.Key{Resource: pods, Namespace: r.GetNamespace(), Name: r.GetName()})
		return ok && pod.Spec.NodeName == r.node, nil
	case "volumeattachments":
		va, ok := object[*storagev1.VolumeAttachment](a.store, r.key())
		return ok && va.Spec.NodeName == r.node, nil
	case "resourceslices":
		slice, ok := object[*resourcev1.ResourceSlice](a.store, r.key())
		return ok && slice.Spec.NodeName != nil && *slice.Spec.NodeName == r.node, nil
	case "podcertificaterequests":
		pcr, ok := object[*certificatesv1.PodCertificateRequest](a.store, r.key())
		return ok && string(pcr.Spec.NodeName) == r.node, nil
	case "persistentvolumes":
		pv, ok := object[*corev1.PersistentVolume](a.store, r.key())
		if !ok || pv.Spec.ClaimRef == nil {
			return false, nil
		}
		return a.anyPod(r, pv.Spec.ClaimRef.Namespace, contains(references.Claims, pv.Spec.ClaimRef.Name))
	case "secrets":
		return a.usesSecret(r)
	case "configmaps":
		return a.anyPod(r, r.GetNamespace(), contains(references.ConfigMaps, r.GetName()))
	case "persistentvolumeclaims":
		return a.anyPod(r, r.GetNamespace(), contains(references.Claims, r.GetName()))
	case "resourceclaims":
		return a.anyPod(r, r.GetNamespace(), contains(references.ResourceClaims, r.GetName()))
	case "serviceaccounts":
		return a.anyPod(r, r.GetNamespace(), func(pod *corev1.Pod) bool { return pod.Spec.ServiceAccountName == r.GetName() })
	}
	return false, nil
}

func (r request) key() store.Key {
	return store.Key{
		Resource:  schema.GroupResource{Group: r.GetAPIGroup(), Resource: r.GetResource()},
		Namespace: r.GetNamespace(), Name: r.GetName(),
	}
}

// anyPod reports whether a pod of the node in a namespace (empty: any) fits. A
// mirror pod is the node's own making and opens nothing.
func (a *Authorizer) anyPod(r request, namespace string, fits func(*corev1.Pod) bool) (bool, error) {
	return a.pods.each(r.ctx, r.node, func(pod *corev1.Pod) bool {
		_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
		return !mirror && (namespace == "" || pod.Namespace == namespace) && fits(pod)
	})
}

// usesSecret finds a secret named by a pod, or by a volume that a pod's claim
// is bound to.
func (a *Authorizer) usesSecret(r request) (bool, error) {
	ok, err := a.anyPod(r, r.GetNamespace(), contains(references.Secrets, r.GetName()))
	if ok || err != nil {
		return ok, err
	}
	want := references.Name{Namespace: r.GetNamespace(), Name: r.GetName()}
	return a.anyPod(r, "", func(pod *corev1.Pod) bool {
		for name := range references.Claims(pod) {
			if pv, ok := a.volumeOf(pod.Namespace, name); ok {
				for secret := range references.VolumeSecrets(pv) {
					if secret == want {
						return true
					}
				}
			}
		}
		return false
	})
}

// volumeOf returns the volume of a claim when both point at each other.
func (a *Authorizer) volumeOf(namespace, claim string) (*corev1.PersistentVolume, bool) {
	pvc, ok := object[*corev1.PersistentVolumeClaim](a.store, store.Key{Resource: claims, Namespace: namespace, Name: claim})
	if !ok || pvc.Spec.VolumeName == "" {
		return nil, false
	}
	pv, ok := object[*corev1.PersistentVolume](a.store, store.Key{Resource: volumes, Name: pvc.Spec.VolumeName})
	if !ok || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.Namespace != namespace || pv.Spec.ClaimRef.Name != claim {
		return nil, false
	}
	return pv, true
}

func contains(list func(*corev1.Pod) func(func(string) bool), name string) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool {
		for n := range list(pod) {
			if n == name {
				return true
			}
		}
		return false
	}
}

func object[T store.Object](s *store.Store, key store.Key) (T, bool) {
	var none T
	item, err := s.Get(key)
	if err != nil {
		return none, false
	}
	obj, ok := item.Object.(T)
	return obj, ok
}
