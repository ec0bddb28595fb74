package core

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/validate"
)

// deprecatedNodeLabels have a successor, or none.
var deprecatedNodeLabels = map[string]string{
	"beta.kubernetes.io/arch":                  `deprecated since v1.14; use "kubernetes.io/arch" instead`,
	"beta.kubernetes.io/os":                    `deprecated since v1.14; use "kubernetes.io/os" instead`,
	"failure-domain.beta.kubernetes.io/region": `deprecated since v1.17; use "topology.kubernetes.io/region" instead`,
	"failure-domain.beta.kubernetes.io/zone":   `deprecated since v1.17; use "topology.kubernetes.io/zone" instead`,
	"beta.kubernetes.io/instance-type":         `deprecated since v1.17; use "node.kubernetes.io/instance-type" instead`,
}

// podWarnings are those of a new pod: who changes one did not write it.
func podWarnings(p, old *corev1.Pod) []string {
	if old != nil {
		return nil
	}
	t := &corev1.PodTemplateSpec{ObjectMeta: p.ObjectMeta, Spec: p.Spec}
	return append(nameWarnings(p), TemplateWarnings(t, nil, nil)...)
}

// WorkloadWarnings are those of a kind that makes pods by a template at path; on
// create its name too should suit them (api-dns-label-warnings).
func WorkloadWarnings(obj apis.Object, created bool, path string, t, old *corev1.PodTemplateSpec) []string {
	var warnings []string
	if created {
		warnings = workloadNameWarnings(obj)
	}
	at := (*field.Path)(nil)
	for _, element := range strings.Split(path, ".") {
		if at == nil {
			at = field.NewPath(element)
		} else {
			at = at.Child(element)
		}
	}
	return append(warnings, TemplateWarnings(t, old, at)...)
}

// nameWarnings: a pod's host name is its name, which DNS takes as one label.
func nameWarnings(obj apis.Object) []string {
	if messages := validation.IsDNS1123Label(obj.GetName()); len(messages) > 0 && obj.GetName() != "" {
		return []string{fmt.Sprintf("metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: %v", messages)}
	}
	return nil
}

// workloadNameWarnings: the names of pods begin with that of what makes them.
func workloadNameWarnings(obj apis.Object) []string {
	if messages := validation.IsDNS1123Label(obj.GetName()); len(messages) > 0 && obj.GetName() != "" {
		return []string{fmt.Sprintf("metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: %v", messages)}
	}
	return nil
}

// replacedAnnotation says what stands in the place of an annotation that once
// meant something, nothing for any other.
func replacedAnnotation(key string) string {
	switch {
	case key == "scheduler.alpha.kubernetes.io/critical-pod":
		return `non-functional in v1.16+; use the "priorityClassName" field instead`
	case key == corev1.SeccompPodAnnotationKey, strings.HasPrefix(key, corev1.SeccompContainerAnnotationKeyPrefix):
		return `non-functional in v1.27+; use the "seccompProfile" field instead`
	case strings.HasPrefix(key, appArmorAnnotation):
		return `deprecated since v1.30; use the "appArmorProfile" field instead`
	}
	return ""
}

// TemplateWarnings says what in a pod's description is deprecated or surely not
// meant. An update that leaves the pod's spec alone gets none.
func TemplateWarnings(t, old *corev1.PodTemplateSpec, path *field.Path) []string {
	if t == nil || old != nil && sameSpec(&old.Spec, &t.Spec) {
		return nil
	}
	var warnings []string
	warn := func(at *field.Path, format string, args ...any) {
		warnings = append(warnings, at.String()+": "+fmt.Sprintf(format, args...))
	}
	spec := field.NewPath("spec")
	if path != nil {
		spec = path.Child("spec")
	}
	for _, key := range sets.List(sets.KeySet(t.Spec.NodeSelector)) {
		if reason, deprecated := deprecatedNodeLabels[key]; deprecated {
			warn(spec.Child("nodeSelector").Key(key), "%s", reason)
		}
	}
	warnings = append(warnings, preferenceWarnings(t.Spec.Affinity, spec.Child("affinity"))...)
	if t.Spec.DeprecatedServiceAccount != t.Spec.ServiceAccountName && t.Spec.DeprecatedServiceAccount != "" {
		warn(spec.Child("serviceAccount"), "deprecated since v1.0; use spec.serviceAccountName instead")
	}
	meta := field.NewPath("metadata")
	if path != nil {
		meta = path.Child("metadata")
	}
	for _, key := range validate.SortedKeys(t.Annotations) {
		if use := replacedAnnotation(key); use != "" {
			warn(meta.Child("annotations").Key(key), "%s", use)
		}
	}
	for i, v := range t.Spec.Volumes {
		at := spec.Child("volumes").Index(i)
		if v.GitRepo != nil {
			warn(at.Child("gitRepo"), "deprecated in v1.11, and disabled by default in v1.33+")
		}
		if v.Glusterfs != nil {
			warn(at.Child("glusterfs"), "deprecated in v1.25, non-functional in v1.26+")
		}
		for name, old := range validate.Sorted(map[string]bool{"flocker": v.Flocker != nil, "quobyte": v.Quobyte != nil, "storageOS": v.StorageOS != nil}) {
			if old {
				warn(at.Child(name), "deprecated in v1.22, non-functional in v1.25+")
			}
		}
		if v.PhotonPersistentDisk != nil {
			warn(at.Child("photonPersistentDisk"), "deprecated in v1.11, non-functional in v1.16+")
		}
		if v.ScaleIO != nil {
			warn(at.Child("scaleIO"), "deprecated in v1.16, non-functional in v1.22+")
		}
		if v.CephFS != nil {
			warn(at.Child("cephfs"), "deprecated in v1.28, non-functional in v1.31+")
		}
		if v.RBD != nil {
			warn(at.Child("rbd"), "deprecated in v1.28, non-functional in v1.31+")
		}
	}
	warnings = append(warnings, overlapWarnings(t.Spec.Volumes)...)
	warnings = append(warnings, repeatWarnings(&t.Spec, spec)...)
	containers := func(list []corev1.Container, at *field.Path) {
		for i, c := range list {
			names := sets.New[string]()
			for j, e := range c.Env {
				if names.Has(e.Name) {
					warn(at.Index(i).Child("env").Index(j), "hides previous definition of %q, which may be dropped when using apply", e.Name)
				}
				names.Insert(e.Name)
			}
			ports := map[string]int{}
			for j, p := range c.Ports {
				key := fmt.Sprint(p.ContainerPort, p.Protocol, p.HostIP, p.HostPort)
				if first, again := ports[key]; again {
					warn(at.Index(i).Child("ports").Index(j), "duplicate port definition with %s", at.Index(i).Child("ports").Index(first))
					continue
				}
				ports[key] = j
			}
			for _, list := range []struct {
				name string
				list corev1.ResourceList
			}{{"limits", c.Resources.Limits}, {"requests", c.Resources.Requests}} {
				for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
					if q, set := list.list[name]; set && q.MilliValue()%1000 != 0 {
						warn(at.Index(i).Child("resources", list.name).Key(string(name)), "fractional byte value %q is invalid, must be an integer", q.String())
					}
				}
			}
		}
	}
	containers(t.Spec.InitContainers, spec.Child("initContainers"))
	containers(t.Spec.Containers, spec.Child("containers"))
	if g := t.Spec.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		warn(spec.Child("terminationGracePeriodSeconds"), "must be >= 0; negative values are invalid and will be treated as 1")
	}
	return append(warnings, affinityWarnings(t.Spec.Affinity, spec.Child("affinity"))...)
}
