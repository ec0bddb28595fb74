// Package status says in the API's words how a pod is doing: phase, conditions
// and container statuses computed from what the runtime and the probes report,
// and the writer that brings them to the API server as minimal patches.
package status

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/kubectl/pkg/util/qos"

	"proa/internal/kubelet/cri"
)

// Waiting is why a container does not run.
type Waiting struct{ Reason, Message string }

// Health tells what probes say of a running container.
type Health interface {
	// Started: no startup probe, or it succeeded.
	Started(containerID string) bool
	// Ready: no readiness probe, or it succeeds.
	Ready(containerID string) bool
}

// End is how a pod ended when its containers do not tell: evicted, rejected,
// out of time.
type End struct {
	Reason, Message string
	Conditions      []corev1.PodCondition // such as DisruptionTarget
}

// rejected begins the message of a pod that its node did not admit.
const rejected = "Pod was rejected: "

// Rejected is the end of a pod that its node does not admit.
func Rejected(reason, message string) *End { return &End{Reason: reason, Message: rejected + message} }

// Plain is the message as events say it.
func (e *End) Plain() string { return strings.TrimPrefix(e.Message, rejected) }

// Input is everything a pod's status follows from.
type Input struct {
	// Pod has the resources in its spec that the node gave it. Its status is the
	// base: what is not the node's stays.
	Pod     *corev1.Pod
	Runtime *cri.Pod
	Waiting map[string]Waiting
	Health  Health
	HostIPs []string
	Started time.Time // when the node first saw the pod
	Now     time.Time
	// Stopped says that no container runs and none will: the phase may end.
	Stopped bool
	End     *End
	// Message returns a container's termination message. Nil: none.
	Message func(*cri.Container) string
	// Runtime name for container ids: containerd.
	RuntimeName string
	// Resources are those in force for the pod as a whole. Nil: it has none, or they are not known.
	Resources *corev1.ResourceRequirements
	// Resize is why a change of resources waits: a PodResizePending condition.
	Resize *corev1.PodCondition
	// Devices is the health of a container's devices. Nil: it is not known.
	Devices func(*corev1.Container) []corev1.ResourceStatus
}

// Generate computes the pod's status.
func Generate(in Input) corev1.PodStatus {
	s := *in.Pod.Status.DeepCopy()
	s.ObservedGeneration = in.Pod.Generation
	s.QOSClass = qosClass(in.Pod)
	if s.StartTime == nil {
		s.StartTime = &metav1.Time{Time: in.Started}
	}
	addresses(&s, in)
	whole(&s, in)
	g := &generator{in: in}
	s.InitContainerStatuses = g.containers(in.Pod.Spec.InitContainers, in.Pod.Status.InitContainerStatuses, true)
	s.ContainerStatuses = g.containers(in.Pod.Spec.Containers, in.Pod.Status.ContainerStatuses, false)
	s.EphemeralContainerStatuses = g.ephemeral()
	s.Phase = phase(in, &s)
	if in.End != nil {
		s.Reason, s.Message = in.End.Reason, in.End.Message
	}
	setConditions(&s, in)
	return s
}

func qosClass(pod *corev1.Pod) corev1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	return qos.ComputePodQOS(pod)
}

// whole says what the pod as a whole was given, and what of it is in force (KEP-5419).
func whole(s *corev1.PodStatus, in Input) {
	if !resourcehelper.IsPodLevelResourcesSet(in.Pod) {
		s.AllocatedResources, s.Resources = nil, nil
		return
	}
	s.AllocatedResources = in.Pod.Spec.Resources.Requests.DeepCopy()
	if in.Resources != nil { // else a new life of the node agent has not looked yet
		s.Resources = in.Resources.DeepCopy()
	}
}

func addresses(s *corev1.PodStatus, in Input) {
	if len(in.HostIPs) > 0 {
		s.HostIP, s.HostIPs = in.HostIPs[0], nil
		for _, ip := range in.HostIPs {
			s.HostIPs = append(s.HostIPs, corev1.HostIP{IP: ip})
		}
	}
	ips := in.Runtime.IPs()
	if in.Pod.Spec.HostNetwork && len(in.Runtime.Sandboxes) > 0 {
		ips = in.HostIPs
	}
	if len(ips) == 0 {
		return // a pod keeps the addresses it had until it has others
	}
	s.PodIP, s.PodIPs = ips[0], nil
	for _, ip := range ips {
		s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: ip})
	}
}

// Failed is the status of a pod that this node ends before any container: one
// it does not admit.
func Failed(pod *corev1.Pod, end End, now time.Time) corev1.PodStatus {
	s := *pod.Status.DeepCopy()
	s.Phase, s.Reason, s.Message = corev1.PodFailed, end.Reason, end.Message
	s.ObservedGeneration = pod.Generation
	s.QOSClass = qosClass(pod)
	if s.StartTime == nil {
		s.StartTime = &metav1.Time{Time: now}
	}
	for _, c := range end.Conditions {
		s.Conditions = setCondition(s.Conditions, c, now)
	}
	return s
}

func setCondition(list []corev1.PodCondition, c corev1.PodCondition, now time.Time) []corev1.PodCondition {
	i := slices.IndexFunc(list, func(o corev1.PodCondition) bool { return o.Type == c.Type })
	if i < 0 {
		c.LastTransitionTime = metav1.NewTime(now)
		return append(list, c)
	}
	c.LastProbeTime = list[i].LastProbeTime
	c.LastTransitionTime = list[i].LastTransitionTime
	if list[i].Status != c.Status {
		c.LastTransitionTime = metav1.NewTime(now)
	}
	list[i] = c
	return list
}
