// Package references lists the objects that a pod or a volume makes a node
// read: what the Node authorizer opens to the node that runs the pod. It is the
// one place that knows every field and every kind of container.
package references

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"
)

// Name is an object in some namespace.
type Name struct{ Namespace, Name string }

// Secrets calls yield for the name of every Secret in the pod's namespace that
// the pod refers to, until yield returns false.
func Secrets(pod *corev1.Pod) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		v := visitor{yield: yield}
		for _, s := range pod.Spec.ImagePullSecrets {
			v.visit(s.Name)
		}
		eachContainer(&pod.Spec, func(env []corev1.EnvVar, from []corev1.EnvFromSource) {
			for i := range env {
				if f := env[i].ValueFrom; f != nil && f.SecretKeyRef != nil {
					v.visit(f.SecretKeyRef.Name)
				}
			}
			for i := range from {
				if from[i].SecretRef != nil {
					v.visit(from[i].SecretRef.Name)
				}
			}
		})
		for i := range pod.Spec.Volumes {
			v.volumeSecrets(&pod.Spec.Volumes[i].VolumeSource)
		}
	}
}

// ConfigMaps is Secrets for ConfigMaps.
func ConfigMaps(pod *corev1.Pod) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		v := visitor{yield: yield}
		eachContainer(&pod.Spec, func(env []corev1.EnvVar, from []corev1.EnvFromSource) {
			for i := range env {
				if f := env[i].ValueFrom; f != nil && f.ConfigMapKeyRef != nil {
					v.visit(f.ConfigMapKeyRef.Name)
				}
			}
			for i := range from {
				if from[i].ConfigMapRef != nil {
					v.visit(from[i].ConfigMapRef.Name)
				}
			}
		})
		for i := range pod.Spec.Volumes {
			s := &pod.Spec.Volumes[i].VolumeSource
			if s.ConfigMap != nil {
				v.visit(s.ConfigMap.Name)
			}
			if s.Projected != nil {
				for j := range s.Projected.Sources {
					if m := s.Projected.Sources[j].ConfigMap; m != nil {
						v.visit(m.Name)
					}
				}
			}
		}
	}
}

// Claims is Secrets for PersistentVolumeClaims, those of ephemeral volumes included.
func Claims(pod *corev1.Pod) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		v := visitor{yield: yield}
		for i := range pod.Spec.Volumes {
			volume := &pod.Spec.Volumes[i]
			if volume.PersistentVolumeClaim != nil {
				v.visit(volume.PersistentVolumeClaim.ClaimName)
			}
			if volume.Ephemeral != nil {
				v.visit(ephemeral.VolumeClaimName(pod, volume))
			}
		}
	}
}

// ResourceClaims is Secrets for ResourceClaims, named directly or generated for the pod.
func ResourceClaims(pod *corev1.Pod) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		v := visitor{yield: yield}
		for i := range pod.Spec.ResourceClaims {
			if name := pod.Spec.ResourceClaims[i].ResourceClaimName; name != nil {
				v.visit(*name)
			}
		}
		for i := range pod.Status.ResourceClaimStatuses {
			if name := pod.Status.ResourceClaimStatuses[i].ResourceClaimName; name != nil {
				v.visit(*name)
			}
		}
		if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
			v.visit(s.ResourceClaimName)
		}
	}
}

// VolumeSecrets calls yield for every Secret that a node needs to mount the
// volume. Sources that name no namespace mean that of the claim.
func VolumeSecrets(pv *corev1.PersistentVolume) func(yield func(Name) bool) {
	return func(yield func(Name) bool) {
		claim := ""
		if pv.Spec.ClaimRef != nil {
			claim = pv.Spec.ClaimRef.Namespace
		}
		done := false
		visit := func(namespace, name string) {
			if namespace == "" {
				namespace = claim
			}
			if !done && name != "" && namespace != "" {
				done = !yield(Name{namespace, name})
			}
		}
		ref := func(r *corev1.SecretReference) {
			if r != nil {
				visit(r.Namespace, r.Name)
			}
		}
		s := &pv.Spec.PersistentVolumeSource
		switch {
		case s.AzureFile != nil:
			if ns := s.AzureFile.SecretNamespace; ns != nil {
				visit(*ns, s.AzureFile.SecretName)
			} else {
				visit("", s.AzureFile.SecretName)
			}
		case s.CephFS != nil:
			ref(s.CephFS.SecretRef)
		case s.Cinder != nil:
			ref(s.Cinder.SecretRef)
		case s.FlexVolume != nil:
			ref(s.FlexVolume.SecretRef)
		case s.RBD != nil:
			ref(s.RBD.SecretRef)
		case s.ScaleIO != nil:
			ref(s.ScaleIO.SecretRef)
		case s.ISCSI != nil:
			ref(s.ISCSI.SecretRef)
		case s.StorageOS != nil:
			if r := s.StorageOS.SecretRef; r != nil {
				visit(r.Namespace, r.Name)
			}
		case s.CSI != nil: // controller secrets are not for nodes
			ref(s.CSI.NodeStageSecretRef)
			ref(s.CSI.NodePublishSecretRef)
			ref(s.CSI.NodeExpandSecretRef)
		}
	}
}

// visitor stops calling yield after it said so.
type visitor struct {
	yield func(string) bool
	done  bool
}

func (v *visitor) visit(name string) {
	if !v.done && name != "" {
		v.done = !v.yield(name)
	}
}

func (v *visitor) local(r *corev1.LocalObjectReference) {
	if r != nil {
		v.visit(r.Name)
	}
}

func (v *visitor) volumeSecrets(s *corev1.VolumeSource) {
	switch {
	case s.Secret != nil:
		v.visit(s.Secret.SecretName)
	case s.Projected != nil:
		for i := range s.Projected.Sources {
			if p := s.Projected.Sources[i].Secret; p != nil {
				v.visit(p.Name)
			}
		}
	case s.AzureFile != nil:
		v.visit(s.AzureFile.SecretName)
	case s.CephFS != nil:
		v.local(s.CephFS.SecretRef)
	case s.Cinder != nil:
		v.local(s.Cinder.SecretRef)
	case s.FlexVolume != nil:
		v.local(s.FlexVolume.SecretRef)
	case s.RBD != nil:
		v.local(s.RBD.SecretRef)
	case s.ScaleIO != nil:
		v.local(s.ScaleIO.SecretRef)
	case s.ISCSI != nil:
		v.local(s.ISCSI.SecretRef)
	case s.StorageOS != nil:
		v.local(s.StorageOS.SecretRef)
	case s.CSI != nil:
		v.local(s.CSI.NodePublishSecretRef)
	}
}

// eachContainer calls fn with the environment of every init, regular and
// ephemeral container.
func eachContainer(spec *corev1.PodSpec, fn func([]corev1.EnvVar, []corev1.EnvFromSource)) {
	for i := range spec.InitContainers {
		fn(spec.InitContainers[i].Env, spec.InitContainers[i].EnvFrom)
	}
	for i := range spec.Containers {
		fn(spec.Containers[i].Env, spec.Containers[i].EnvFrom)
	}
	for i := range spec.EphemeralContainers {
		fn(spec.EphemeralContainers[i].Env, spec.EphemeralContainers[i].EnvFrom)
	}
}
