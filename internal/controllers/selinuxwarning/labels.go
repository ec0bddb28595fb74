package selinuxwarning

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// use is how a pod wants a volume to be labelled.
type use struct {
	label  string // "user:role:type:level"; "" when nobody mounts with it
	policy corev1.PodSELinuxChangePolicy
}

// useBy is how a pod wants a volume that its containers see under labels, at
// most one; mounts says whether the volume's plugin can mount with a label.
func useBy(pod *corev1.Pod, labels []string, mounts bool) use {
	u := use{policy: corev1.SELinuxChangePolicyMountOption}
	if sc := pod.Spec.SecurityContext; sc != nil && sc.SELinuxChangePolicy != nil {
		u.policy = *sc.SELinuxChangePolicy
	}
	if mounts && u.policy != corev1.SELinuxChangePolicyRecursive && len(labels) > 0 {
		u.label = labels[0]
	}
	if u.label == "" {
		u.policy = corev1.SELinuxChangePolicyRecursive
	}
	return u
}

// containers calls visit for every container of a pod.
func containers(pod *corev1.Pod, visit func(*corev1.Container)) {
	for i := range pod.Spec.InitContainers {
		visit(&pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		visit(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.EphemeralContainers {
		c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		visit(&c)
	}
}

// mounted are the volumes that containers mount, in the order of their names.
func mounted(pod *corev1.Pod) []string {
	var names []string
	containers(pod, func(c *corev1.Container) {
		for _, m := range c.VolumeMounts {
			names = append(names, m.Name)
		}
	})
	slices.Sort(names)
	return slices.Compact(names)
}

// labelsOf are the different labels of the containers that mount each volume.
// What a label leaves out is for nodes to fill in: their defaults are not known here.
func labelsOf(pod *corev1.Pod) map[string][]string {
	labels := map[string][]string{}
	containers(pod, func(c *corev1.Container) {
		var options *corev1.SELinuxOptions
		if sc := pod.Spec.SecurityContext; sc != nil {
			options = sc.SELinuxOptions
		}
		if sc := c.SecurityContext; sc != nil && sc.SELinuxOptions != nil {
			options = sc.SELinuxOptions
		}
		if options == nil {
			return
		}
		label := strings.Join([]string{options.User, options.Role, options.Type, options.Level}, ":")
		if label == ":::" {
			label = ""
		}
		for _, m := range c.VolumeMounts {
			if !slices.Contains(labels[m.Name], label) {
				labels[m.Name] = append(labels[m.Name], label)
			}
		}
	})
	return labels
}

// conflicting says whether two labels cannot be those of one volume. User, role
// and type that are left out may turn out the same; a level is never filled in.
func conflicting(a, b string) bool {
	partsA, partsB := parts(a), parts(b)
	for i := range 3 {
		if partsA[i] != partsB[i] && partsA[i] != "" && partsB[i] != "" {
			return true
		}
	}
	return partsA[3] != partsB[3]
}

func parts(label string) (p [4]string) {
	copy(p[:], strings.SplitN(label, ":", len(p)))
	return p
}
