package core

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// overlapWarnings: of two items of a volume at one path, or one below the other,
// only one can be there.
func overlapWarnings(volumes []corev1.Volume) []string {
	var warnings []string
	warn := func(volume, source string, paths []string) {
		for _, pair := range overlappingPaths(paths) {
			warnings = append(warnings, fmt.Sprintf("volume %q (%s): overlapping paths: %s", volume, source, pair))
		}
	}
	for _, v := range volumes {
		if c := v.ConfigMap; c != nil {
			warn(v.Name, fmt.Sprintf("ConfigMap %q", c.Name), keyPaths(c.Items))
		}
		if s := v.Secret; s != nil {
			warn(v.Name, fmt.Sprintf("Secret %q", s.SecretName), keyPaths(s.Items))
		}
		if d := v.DownwardAPI; d != nil {
			var paths []string
			for _, item := range d.Items {
				paths = append(paths, item.Path)
			}
			warn(v.Name, "DownwardAPI", paths)
		}
		if v.Projected != nil && slices.Contains(v.Projected.Sources, corev1.VolumeProjection{}) {
			warnings = append(warnings, fmt.Sprintf("volume %q (Projected) has no sources provided", v.Name))
		}
	}
	return warnings
}

// persistentVolumeWarnings tells of volume plugins that do nothing anymore.
func persistentVolumeWarnings(pv, _ *corev1.PersistentVolume) []string {
	s := &pv.Spec
	var warnings []string
	if s.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		warnings = append(warnings, "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.")
	}
	for _, gone := range []struct {
		plugin, since, until string
		used                 bool
	}{
		{"cephfs", "v1.28", "v1.31+", s.CephFS != nil},
		{"photonPersistentDisk", "v1.11", "v1.16+", s.PhotonPersistentDisk != nil},
		{"scaleIO", "v1.16", "v1.22+", s.ScaleIO != nil},
		{"storageOS", "v1.22", "v1.25+", s.StorageOS != nil},
		{"glusterfs", "v1.25", "v1.26+", s.Glusterfs != nil},
		{"rbd", "v1.28", "v1.31+", s.RBD != nil},
	} {
		if gone.used {
			warnings = append(warnings, fmt.Sprintf("spec.%s: deprecated in %s, non-functional in %s", gone.plugin, gone.since, gone.until))
		}
	}
	return warnings
}

func keyPaths(items []corev1.KeyToPath) []string {
	var paths []string
	for _, item := range items {
		paths = append(paths, item.Path)
	}
	return paths
}

// repeatWarnings: what is said twice, or of nothing, is kept but does nothing.
func repeatWarnings(s *corev1.PodSpec, path *field.Path) []string {
	var warnings []string
	ips, names := sets.New[string](), sets.New[string]()
	for i, alias := range s.HostAliases {
		if ips.Has(alias.IP) {
			warnings = append(warnings, fmt.Sprintf("%s: duplicate ip %q", path.Child("hostAliases").Index(i).Child("ip"), alias.IP))
		}
		ips.Insert(alias.IP)
	}
	at := path.Child("imagePullSecrets")
	for i, ref := range s.ImagePullSecrets {
		if names.Has(ref.Name) {
			warnings = append(warnings, fmt.Sprintf("%s: duplicate name %q", at.Index(i).Child("name"), ref.Name))
		}
		names.Insert(ref.Name)
	}
	for i, ref := range s.ImagePullSecrets {
		if ref.Name == "" {
			warnings = append(warnings, fmt.Sprintf("%s: invalid empty name %q", at.Index(i).Child("name"), ref.Name))
		}
	}
	return warnings
}

// affinityWarnings: a term without selector matches no pod, a preferred label
// value that no node can have no node.
func affinityWarnings(a *corev1.Affinity, path *field.Path) []string {
	if a == nil {
		return nil
	}
	var warnings []string
	if p := a.PodAffinity; p != nil {
		warnings = append(warnings, termWarnings(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution, path.Child("podAffinity"))...)
	}
	if p := a.PodAntiAffinity; p != nil {
		warnings = append(warnings, termWarnings(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution, path.Child("podAntiAffinity"))...)
	}
	return warnings
}

// preferenceWarnings tells of nodes that are preferred by labels which none can have.
func preferenceWarnings(a *corev1.Affinity, path *field.Path) []string {
	if a == nil || a.NodeAffinity == nil {
		return nil
	}
	var warnings []string
	for i, term := range a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		at := path.Child("nodeAffinity", ifPossible).Index(i).Child("preference", "matchExpressions")
		warnings = append(warnings, valueWarnings(term.Preference.MatchExpressions, at)...)
	}
	return warnings
}

func valueWarnings(requirements []corev1.NodeSelectorRequirement, path *field.Path) []string {
	var warnings []string
	for i, r := range requirements {
		for j, v := range r.Values {
			for _, why := range validation.IsValidLabelValue(v) {
				warnings = append(warnings, fmt.Sprintf("%s: %s is invalid, %s", path.Index(i).Child("values").Index(j), v, why))
			}
		}
	}
	return warnings
}

func termWarnings(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm, path *field.Path) []string {
	const message = "%s: a null labelSelector results in matching no pod"
	var warnings []string
	for i, t := range required {
		if t.LabelSelector == nil {
			warnings = append(warnings, fmt.Sprintf(message, path.Child(whileScheduling).Index(i).Child("labelSelector")))
		}
	}
	for i, t := range preferred {
		if t.PodAffinityTerm.LabelSelector == nil {
			warnings = append(warnings, fmt.Sprintf(message, path.Child(ifPossible).Index(i).Child("podAffinityTerm", "labelSelector")))
		}
	}
	return warnings
}
