// Package events names what the node agent's events are about: a pod, or one
// container of it by field path.
package events

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Pod refers to a pod.
func Pod(pod *corev1.Pod) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}
}

// Container refers to a container of a pod, as spec.containers{name}.
func Container(pod *corev1.Pod, c *corev1.Container) *corev1.ObjectReference {
	ref := Pod(pod)
	ref.FieldPath = fieldPath(pod, c)
	return ref
}

func fieldPath(pod *corev1.Pod, c *corev1.Container) string {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == c.Name {
			return fmt.Sprintf("spec.initContainers{%s}", c.Name)
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == c.Name {
			return fmt.Sprintf("spec.ephemeralContainers{%s}", c.Name)
		}
	}
	return fmt.Sprintf("spec.containers{%s}", c.Name)
}
