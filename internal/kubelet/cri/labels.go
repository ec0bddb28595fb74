package cri

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubelettypes "k8s.io/kubelet/pkg/types"
)

// Keys the agent writes on sandboxes and containers. They are the kubelet's
// own, so that tools which read them work and containers can change hands.
const (
	labelPodName   = kubelettypes.KubernetesPodNameLabel
	labelNamespace = kubelettypes.KubernetesPodNamespaceLabel
	labelPodUID    = kubelettypes.KubernetesPodUIDLabel
	labelContainer = kubelettypes.KubernetesContainerNameLabel

	annHash            = "io.kubernetes.container.hash"
	annRestartCount    = "io.kubernetes.container.restartCount"
	annMessagePath     = "io.kubernetes.container.terminationMessagePath"
	annMessagePolicy   = "io.kubernetes.container.terminationMessagePolicy"
	annPreStop         = "io.kubernetes.container.preStopHandler"
	annPorts           = "io.kubernetes.container.ports"
	annPodGrace        = "io.kubernetes.pod.terminationGracePeriod"
	annPodDeletionTime = "io.kubernetes.pod.deletionGracePeriod"
)

// SandboxLabels are the pod's labels with the agent's own on top.
func SandboxLabels(pod *corev1.Pod) map[string]string {
	labels := make(map[string]string, len(pod.Labels)+3)
	for k, v := range pod.Labels {
		labels[k] = v
	}
	labels[labelPodName], labels[labelNamespace], labels[labelPodUID] = pod.Name, pod.Namespace, string(pod.UID)
	return labels
}

// ContainerLabels identify a container among all of the node.
func ContainerLabels(pod *corev1.Pod, container string) map[string]string {
	return map[string]string{
		labelPodName: pod.Name, labelNamespace: pod.Namespace, labelPodUID: string(pod.UID), labelContainer: container,
	}
}

// ContainerAnnotations carry what the agent must know of a container after a
// restart, when the pod may be gone from the API.
func ContainerAnnotations(pod *corev1.Pod, c *corev1.Container, restartCount int) map[string]string {
	a := map[string]string{
		annHash:          Hash(c),
		annRestartCount:  strconv.Itoa(restartCount),
		annMessagePath:   c.TerminationMessagePath,
		annMessagePolicy: string(c.TerminationMessagePolicy),
	}
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		a[annPodGrace] = strconv.FormatInt(*pod.Spec.TerminationGracePeriodSeconds, 10)
	}
	if pod.DeletionGracePeriodSeconds != nil {
		a[annPodDeletionTime] = strconv.FormatInt(*pod.DeletionGracePeriodSeconds, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		if b, err := json.Marshal(c.Lifecycle.PreStop); err == nil {
			a[annPreStop] = string(b)
		}
	}
	if len(c.Ports) > 0 {
		if b, err := json.Marshal(c.Ports); err == nil {
			a[annPorts] = string(b)
		}
	}
	return a
}

// Hash identifies the part of a container's spec whose change means a new
// container: name and image, the only fields that can change in place without
// another mechanism (resize has its own).
func Hash(c *corev1.Container) string {
	h := fnv.New32a()
	b, err := json.Marshal(map[string]string{"name": c.Name, "image": c.Image})
	if err != nil {
		panic(fmt.Sprintf("marshal strings: %v", err))
	}
	h.Write(b)
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}

// podFrom rebuilds as much of a pod as its containers' annotations tell.
func podFrom(labels map[string]string) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace, pod.UID = labels[labelPodName], labels[labelNamespace], types.UID(labels[labelPodUID])
	return pod
}

// Orphan is the pod as far as its containers remember it: names, grace period,
// preStop hooks. It serves to stop a pod that the API no longer has.
func (p *Pod) Orphan() *corev1.Pod {
	pod := podFrom(map[string]string{labelPodName: p.Name, labelNamespace: p.Namespace, labelPodUID: string(p.UID)})
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
	seen := map[string]bool{}
	for _, c := range p.Containers {
		if seen[c.Name] {
			continue
		}
		seen[c.Name] = true
		spec := corev1.Container{Name: c.Name, Image: c.Image,
			TerminationMessagePath:   c.annotations[annMessagePath],
			TerminationMessagePolicy: corev1.TerminationMessagePolicy(c.annotations[annMessagePolicy])}
		if g, err := strconv.ParseInt(c.annotations[annPodGrace], 10, 64); err == nil {
			grace = g
		}
		hook := &corev1.LifecycleHandler{}
		if s := c.annotations[annPreStop]; s != "" && json.Unmarshal([]byte(s), hook) == nil {
			spec.Lifecycle = &corev1.Lifecycle{PreStop: hook}
		}
		if s := c.annotations[annPorts]; s != "" {
			// Ports only serve named ports of a hook; a broken value loses no more than that.
			_ = json.Unmarshal([]byte(s), &spec.Ports)
		}
		pod.Spec.Containers = append(pod.Spec.Containers, spec)
	}
	pod.Spec.TerminationGracePeriodSeconds = &grace
	return pod
}

func nanos(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}
