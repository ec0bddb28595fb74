package simulate

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"proa/internal/client"
	"proa/internal/simulate/lifecycle"
)

// plainNode makes a node Ready that is not.
func (s *Simulator) plainNode(ctx context.Context, node *corev1.Node) error {
	if node.DeletionTimestamp != nil || conditionOf(node.Status.Conditions, corev1.NodeReady) == corev1.ConditionTrue {
		return nil
	}
	node = node.DeepCopy()
	s.completeNode(node)
	_, err := client.Of[*corev1.Node](s.config.Cache.API()).UpdateStatus(ctx, node)
	return err
}

func conditionOf(conditions []corev1.NodeCondition, kind corev1.NodeConditionType) corev1.ConditionStatus {
	for _, c := range conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return ""
}

// completeNode fills in what a Ready node says of itself and its maker left open.
func (s *Simulator) completeNode(node *corev1.Node) {
	st := &node.Status
	now := metav1.NewTime(s.clock.Now())
	st.Conditions = lifecycle.NodeConditions()
	for i := range st.Conditions {
		st.Conditions[i].LastHeartbeatTime, st.Conditions[i].LastTransitionTime = now, now
	}
	if st.Allocatable == nil {
		st.Allocatable = roomy()
	}
	if st.Capacity == nil {
		st.Capacity = st.Allocatable.DeepCopy()
	}
	if len(st.Addresses) == 0 {
		if s.config.NodeIP != "" {
			st.Addresses = append(st.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: s.config.NodeIP})
		}
		st.Addresses = append(st.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: node.Name})
	}
	st.DaemonEndpoints.KubeletEndpoint.Port = int32(s.config.Port)
	info := &st.NodeInfo
	for field, value := range map[*string]string{
		&info.Architecture: "amd64", &info.OperatingSystem: "linux", &info.OSImage: "simulated",
		&info.KernelVersion: "simulated", &info.ContainerRuntimeVersion: "simulated://" + lifecycle.Version,
		&info.KubeletVersion: lifecycle.Version, &info.KubeProxyVersion: lifecycle.Version,
	} {
		if *field == "" {
			*field = value
		}
	}
}

// plainPod takes a pod one step on.
func (s *Simulator) plainPod(ctx context.Context, pod *corev1.Pod) error {
	var next func(*corev1.Pod)
	switch {
	case pod.DeletionTimestamp != nil && len(pod.Finalizers) > 0 && !isOver(pod):
		next = s.kill // whose finalizers they are will want to know
	case pod.DeletionTimestamp != nil && len(pod.Finalizers) > 0 && ptr.Deref(pod.DeletionGracePeriodSeconds, 1) == 0:
		return nil
	case pod.DeletionTimestamp != nil:
		ref, err := s.refOf(pod)
		if err != nil {
			return err
		}
		return s.remove(ctx, ref, pod)
	case isOver(pod):
		return nil
	case pod.Status.Phase != corev1.PodRunning || !ready(pod):
		next = s.start
	case endsByItself(pod):
		next = s.complete
	default:
		return nil
	}
	pod = pod.DeepCopy()
	next(pod)
	_, err := client.Of[*corev1.Pod](s.config.Cache.API()).UpdateStatus(ctx, pod)
	return err
}

func isOver(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// endsByItself tells that a pod is a Job's.
func endsByItself(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "Job"
}

// start makes a pod Running and Ready.
func (s *Simulator) start(pod *corev1.Pod) {
	now := metav1.NewTime(s.clock.Now())
	st := &pod.Status
	st.Phase, st.Reason, st.Message = corev1.PodRunning, "", ""
	st.ObservedGeneration = pod.Generation
	if st.StartTime == nil {
		st.StartTime = &now
	}
	st.HostIP, st.HostIPs, st.PodIP, st.PodIPs = s.podAddresses(pod)
	setConditions(pod, now, "", corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady)
	for _, gate := range pod.Spec.ReadinessGates {
		setConditions(pod, now, "", gate.ConditionType)
	}
	st.InitContainerStatuses = make([]corev1.ContainerStatus, len(pod.Spec.InitContainers))
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		st.InitContainerStatuses[i] = containerStatus(pod, c)
		if ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			st.InitContainerStatuses[i].State.Running = &corev1.ContainerStateRunning{StartedAt: now}
			st.InitContainerStatuses[i].Started = ptr.To(true)
		} else {
			st.InitContainerStatuses[i].State.Terminated = &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now}
			st.InitContainerStatuses[i].Started = ptr.To(false)
		}
		st.InitContainerStatuses[i].Ready = true
	}
	st.ContainerStatuses = make([]corev1.ContainerStatus, len(pod.Spec.Containers))
	for i := range pod.Spec.Containers {
		st.ContainerStatuses[i] = containerStatus(pod, &pod.Spec.Containers[i])
		st.ContainerStatuses[i].State.Running = &corev1.ContainerStateRunning{StartedAt: now}
		st.ContainerStatuses[i].Ready, st.ContainerStatuses[i].Started = true, ptr.To(true)
	}
}

// complete ends a pod with success.
func (s *Simulator) complete(pod *corev1.Pod) {
	s.end(pod, corev1.PodSucceeded, "PodCompleted", corev1.ContainerStateTerminated{Reason: "Completed"})
}

// kill ends a pod that is deleted.
func (s *Simulator) kill(pod *corev1.Pod) {
	s.end(pod, corev1.PodFailed, "PodFailed", corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 143})
}

func (s *Simulator) end(pod *corev1.Pod, phase corev1.PodPhase, reason string, how corev1.ContainerStateTerminated) {
	now := metav1.NewTime(s.clock.Now())
	st := &pod.Status
	st.Phase = phase
	setConditions(pod, now, reason, corev1.PodReadyToStartContainers, corev1.PodReady, corev1.ContainersReady)
	for i := range st.ContainerStatuses {
		c := &st.ContainerStatuses[i]
		began := now
		if c.State.Running != nil {
			began = c.State.Running.StartedAt
		}
		ended := how
		ended.StartedAt, ended.FinishedAt, ended.ContainerID = began, now, c.ContainerID
		c.State = corev1.ContainerState{Terminated: &ended}
		c.Ready, c.Started = false, ptr.To(false)
	}
}

// containerStatus names a container as a runtime would.
func containerStatus(pod *corev1.Pod, c *corev1.Container) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: c.Name, Image: c.Image, ImageID: "simulated://" + c.Image,
		ContainerID: "simulated://" + string(pod.UID) + "/" + c.Name,
	}
}

// setConditions makes conditions true, or false with the reason why.
func setConditions(pod *corev1.Pod, now metav1.Time, falseBecause string, kinds ...corev1.PodConditionType) {
	status := corev1.ConditionTrue
	if falseBecause != "" {
		status = corev1.ConditionFalse
	}
	for _, kind := range kinds {
		want := corev1.PodCondition{Type: kind, Status: status, Reason: falseBecause, LastTransitionTime: now, ObservedGeneration: pod.Generation}
		i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
		switch {
		case i < 0:
			pod.Status.Conditions = append(pod.Status.Conditions, want)
		case pod.Status.Conditions[i].Status != status:
			pod.Status.Conditions[i] = want
		}
	}
}

// podAddresses are those of a pod and its node. A pod keeps the ones it has.
func (s *Simulator) podAddresses(pod *corev1.Pod) (host string, hosts []corev1.HostIP, ip string, ips []corev1.PodIP) {
	node, ok := s.nodes.Cached("", pod.Spec.NodeName)
	if !ok {
		return "", nil, "", nil
	}
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			hosts = append(hosts, corev1.HostIP{IP: a.Address})
		}
	}
	if len(hosts) > 0 {
		host = hosts[0].IP
	}
	switch {
	case pod.Status.PodIP != "":
		ip = pod.Status.PodIP
	case pod.Spec.HostNetwork:
		ip = host
	default:
		ip = s.addrs.take(node)
	}
	if ip != "" {
		ips = []corev1.PodIP{{IP: ip}}
	}
	return host, hosts, ip, ips
}
