package statefulset

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers/podcontrol"
)

const revisionLabel = appsv1.StatefulSetRevisionLabel

// split reads set and ordinal out of a pod's name; the ordinal is -1 where there is none.
func split(pod *corev1.Pod) (set string, ordinal int) {
	at := strings.LastIndexByte(pod.Name, '-')
	if at < 0 {
		return "", -1
	}
	digits := pod.Name[at+1:]
	n, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || n < 0 || digits[0] == '+' {
		return "", -1
	}
	return pod.Name[:at], int(n)
}

func parentOf(pod *corev1.Pod) string {
	set, _ := split(pod)
	return set
}

func ordinalOf(pod *corev1.Pod) int {
	_, ordinal := split(pod)
	return ordinal
}

func podName(set *appsv1.StatefulSet, ordinal int) string {
	return set.Name + "-" + strconv.Itoa(ordinal)
}

func firstOrdinal(set *appsv1.StatefulSet) int {
	if set.Spec.Ordinals == nil {
		return 0
	}
	return int(set.Spec.Ordinals.Start)
}

func inRange(set *appsv1.StatefulSet, ordinal int) bool {
	first := firstOrdinal(set)
	return ordinal >= first && ordinal < first+int(*set.Spec.Replicas)
}

func claimName(set *appsv1.StatefulSet, template *corev1.PersistentVolumeClaim, ordinal int) string {
	return template.Name + "-" + set.Name + "-" + strconv.Itoa(ordinal)
}

// identify gives a pod the name and labels that belong to its ordinal.
func identify(set *appsv1.StatefulSet, pod *corev1.Pod) {
	ordinal := ordinalOf(pod)
	pod.Name = podName(set, ordinal)
	pod.Namespace = set.Namespace
	metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.StatefulSetPodNameLabel, pod.Name)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.PodIndexLabel, strconv.Itoa(ordinal))
}

func identified(set *appsv1.StatefulSet, pod *corev1.Pod) bool {
	parent, ordinal := split(pod)
	return ordinal >= 0 && parent == set.Name && pod.Name == podName(set, ordinal) && pod.Namespace == set.Namespace &&
		pod.Labels[appsv1.StatefulSetPodNameLabel] == pod.Name && pod.Labels[appsv1.PodIndexLabel] == strconv.Itoa(ordinal)
}

// store makes the pod's volumes that are named as claim templates use its claims.
func store(set *appsv1.StatefulSet, pod *corev1.Pod) {
	ordinal := ordinalOf(pod)
	var volumes []corev1.Volume
	for i := range set.Spec.VolumeClaimTemplates {
		t := &set.Spec.VolumeClaimTemplates[i]
		volumes = append(volumes, corev1.Volume{Name: t.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(set, t, ordinal)},
		}})
	}
	named := len(volumes)
	for _, v := range pod.Spec.Volumes {
		if !slices.ContainsFunc(volumes[:named], func(c corev1.Volume) bool { return c.Name == v.Name }) {
			volumes = append(volumes, v)
		}
	}
	pod.Spec.Volumes = volumes
}

func stored(set *appsv1.StatefulSet, pod *corev1.Pod) bool {
	ordinal := ordinalOf(pod)
	for i := range set.Spec.VolumeClaimTemplates {
		t := &set.Spec.VolumeClaimTemplates[i]
		if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Name == t.Name && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claimName(set, t, ordinal)
		}) {
			return false
		}
	}
	return true
}

// newPod is the pod of an ordinal as a revision's template describes it.
func newPod(set *appsv1.StatefulSet, template *corev1.PodTemplateSpec, revision string, ordinal int) *corev1.Pod {
	pod := podcontrol.FromTemplate(set, metav1.NewControllerRef(set, kind), template)
	pod.GenerateName = ""
	pod.Name = podName(set, ordinal)
	pod.Labels = maps.Clone(pod.Labels)
	identify(set, pod)
	pod.Spec.Hostname = pod.Name
	pod.Spec.Subdomain = set.Spec.ServiceName
	store(set, pod)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, revisionLabel, revision)
	return pod
}
