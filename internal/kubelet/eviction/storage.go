package eviction

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"
)

// Limits of local storage, as metrics name what evicted a pod.
const (
	emptyDirLimit  = "emptydirfs.limit"
	podLimit       = "ephemeralpodfs.limit"
	containerLimit = "ephemeralcontainerfs.limit"
)

// limitsStorage reports whether a pod limits what it takes of the node's disk, so that
// it has to be measured.
func limitsStorage(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if e := pod.Spec.Volumes[i].EmptyDir; e != nil && e.SizeLimit != nil && e.SizeLimit.Sign() > 0 {
			return true
		}
	}
	if r := pod.Spec.Resources; r != nil {
		if _, set := r.Limits[corev1.ResourceEphemeralStorage]; set {
			return true
		}
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if _, set := list[i].Resources.Limits[corev1.ResourceEphemeralStorage]; set {
				return true
			}
		}
	}
	return false
}

// overLimit says which limit of local storage a pod exceeds, and in words; or nothing.
func overLimit(pod *corev1.Pod, s *statsapi.PodStats, d Disks) (limit, message string) {
	if message = overEmptyDir(pod, s); message != "" {
		return emptyDirLimit, message
	}
	if message = overPod(pod, s); message != "" {
		return podLimit, message
	}
	if message = overContainer(pod, s, d); message != "" {
		return containerLimit, message
	}
	return "", ""
}

func overEmptyDir(pod *corev1.Pod, s *statsapi.PodStats) string {
	used := map[string]*uint64{}
	for i := range s.VolumeStats {
		used[s.VolumeStats[i].Name] = s.VolumeStats[i].UsedBytes
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.EmptyDir == nil || v.EmptyDir.SizeLimit == nil || used[v.Name] == nil {
			continue
		}
		limit, u := v.EmptyDir.SizeLimit, bytes(used[v.Name])
		if limit.Sign() > 0 && u.Cmp(*limit) > 0 {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String())
		}
	}
	return ""
}

func overPod(pod *corev1.Pod, s *statsapi.PodStats) string {
	limit, set := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})[corev1.ResourceEphemeralStorage]
	if u := storage(s.EphemeralStorage); !set || u.Cmp(limit) <= 0 {
		return ""
	}
	return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())
}

// overContainer looks at regular containers and sidecars. The writable layer counts
// where it lies on the node's own file system.
func overContainer(pod *corev1.Pod, s *statsapi.PodStats, d Disks) string {
	limits := map[string]resource.Quantity{}
	for i := range pod.Spec.Containers {
		limits[pod.Spec.Containers[i].Name] = *pod.Spec.Containers[i].Resources.Limits.StorageEphemeral()
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			limits[c.Name] = *c.Resources.Limits.StorageEphemeral()
		}
	}
	for i := range s.Containers {
		c := &s.Containers[i]
		used := storage(c.Logs)
		if !d.Images {
			used.Add(storage(c.Rootfs))
		}
		if limit, have := limits[c.Name]; have && !limit.IsZero() && used.Cmp(limit) > 0 {
			return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String())
		}
	}
	return ""
}
