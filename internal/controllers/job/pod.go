package job

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers/podcontrol"
)

const (
	indexVariable = "JOB_COMPLETION_INDEX"
	maxPrefix     = 58 // of a generated name
)

// newPod is a pod of the Job, for an index unless that is noIndex.
func (s *sync) newPod(ref *metav1.OwnerReference, index int) *corev1.Pod {
	pod := podcontrol.FromTemplate(s.job, ref, &s.job.Spec.Template)
	pod.Labels, pod.Annotations = maps.Clone(pod.Labels), maps.Clone(pod.Annotations)
	if !tracked(pod) {
		pod.Finalizers = append(slices.Clone(pod.Finalizers), batchv1.JobTrackingFinalizer)
	}
	if index == noIndex {
		return pod
	}
	value := strconv.Itoa(index)
	pod.GenerateName = indexedPrefix(s.job.Name, value)
	pod.Spec.Hostname = s.job.Name + "-" + value
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, batchv1.JobCompletionIndexAnnotation, value)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, batchv1.JobCompletionIndexAnnotation, value)
	if s.limitsPerIndex() {
		s.countFailures(pod, s.replaceable[index])
	}
	for i := range pod.Spec.InitContainers {
		addIndexVariable(&pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		addIndexVariable(&pod.Spec.Containers[i])
	}
	return pod
}

func indexedPrefix(job, index string) string {
	suffix := "-" + index + "-"
	return job[:min(len(job), maxPrefix-len(suffix))] + suffix
}

func addIndexVariable(c *corev1.Container) {
	if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == indexVariable }) {
		return
	}
	c.Env = append(c.Env, corev1.EnvVar{Name: indexVariable, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: fmt.Sprintf("metadata.labels['%s']", batchv1.JobCompletionIndexAnnotation)},
	}})
}

// countFailures hands the failures of an index on to the pod that tries again.
func (s *sync) countFailures(pod, last *corev1.Pod) {
	counted, ignored := 0, 0
	if last != nil {
		counted = failures(last)
		ignored = annotatedCount(last, batchv1.JobIndexIgnoredFailureCountAnnotation)
		if judgePod(s.job.Spec.PodFailurePolicy, last).counts() {
			counted++
		} else {
			ignored++
		}
	}
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, batchv1.JobIndexFailureCountAnnotation, strconv.Itoa(counted))
	if ignored > 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, batchv1.JobIndexIgnoredFailureCountAnnotation, strconv.Itoa(ignored))
	}
}
