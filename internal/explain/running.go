package explain

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// placedPod explains a pod that has a node, or has ended.
func (s *Source) placedPod(pod *corev1.Pod) []string {
	out := s.deletion(pod)
	switch {
	case pod.Status.Phase == corev1.PodSucceeded:
		return append(out, "It has ended, with success.")
	case pod.Status.Phase == corev1.PodFailed:
		out = append(out, failure(pod))
	case isTrue(pod, corev1.PodReady):
		return append(out, fmt.Sprintf("It runs on %s and is ready.", pod.Spec.NodeName))
	}
	out = append(out, s.nodeSentence(pod))
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for i := range list {
			out = append(out, containerSentence(&list[i]))
		}
	}
	if len(pod.Status.ContainerStatuses) == 0 && !over(pod) {
		out = append(out, fmt.Sprintf("It has a node, %s, whose agent has not begun with it.", pod.Spec.NodeName))
	}
	return append(out, conditionSentences(pod)...)
}

// failure is why a pod as a whole failed.
func failure(pod *corev1.Pod) string {
	text := "It has failed"
	if pod.Status.Reason != "" {
		text += ": " + pod.Status.Reason
	}
	if pod.Status.Message != "" {
		text += ": " + strings.TrimSuffix(pod.Status.Message, ".")
	}
	if c := condition(pod, corev1.DisruptionTarget); c != nil && c.Status == corev1.ConditionTrue {
		text += fmt.Sprintf(" (%s: %s)", c.Reason, c.Message)
	}
	return text + "."
}

func (s *Source) nodeSentence(pod *corev1.Pod) string {
	node, ok := s.nodes.Cached("", pod.Spec.NodeName)
	if !ok {
		return fmt.Sprintf("Its node %s does not exist.", pod.Spec.NodeName)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return fmt.Sprintf("Its node %s is not Ready since %s: %s: %s", node.Name, c.LastTransitionTime.UTC().Format(time.RFC3339), c.Reason, c.Message)
		}
	}
	return ""
}

func containerSentence(c *corev1.ContainerStatus) string {
	switch st := c.State; {
	case st.Waiting != nil && st.Waiting.Reason == "CrashLoopBackOff":
		return fmt.Sprintf("Container %s crashes: it was restarted %s; the last time it ended %s.", c.Name, times(int(c.RestartCount)), ending(c.LastTerminationState.Terminated))
	case st.Waiting != nil:
		text := fmt.Sprintf("Container %s (%s) waits: %s", c.Name, c.Image, st.Waiting.Reason)
		if st.Waiting.Message != "" {
			text += ": " + strings.TrimSuffix(st.Waiting.Message, ".")
		}
		return text + "."
	case st.Terminated != nil && (st.Terminated.ExitCode != 0 || st.Terminated.Reason != "Completed"):
		return fmt.Sprintf("Container %s ended %s.", c.Name, ending(st.Terminated))
	case st.Running != nil && !c.Ready:
		text := fmt.Sprintf("Container %s runs since %s and is not ready", c.Name, st.Running.StartedAt.UTC().Format(time.RFC3339))
		if c.Started != nil && !*c.Started {
			text += ": its startup probe has not succeeded"
		}
		if c.RestartCount > 0 {
			text += fmt.Sprintf("; it was restarted %s, the last time it ended %s", times(int(c.RestartCount)), ending(c.LastTerminationState.Terminated))
		}
		return text + "."
	}
	return ""
}

// ending is how a container ended.
func ending(t *corev1.ContainerStateTerminated) string {
	if t == nil {
		return "in a way that is not known"
	}
	text := fmt.Sprintf("with exit code %d", t.ExitCode)
	if t.Signal != 0 {
		text = fmt.Sprintf("by signal %d", t.Signal)
	}
	if t.Reason != "" {
		text += " (" + t.Reason + ")"
	}
	if message := strings.TrimSpace(t.Message); message != "" {
		text += ": " + message
	}
	return text
}

// conditionSentences tell of the conditions, besides those that containers
// explain, that keep a pod from being ready.
func conditionSentences(pod *corev1.Pod) []string {
	if over(pod) {
		return nil
	}
	var out []string
	for _, gate := range pod.Spec.ReadinessGates {
		if !isTrue(pod, gate.ConditionType) {
			out = append(out, fmt.Sprintf("Its readiness gate %s is not met.", gate.ConditionType))
		}
	}
	if c := condition(pod, corev1.PodReadyToStartContainers); c != nil && c.Status == corev1.ConditionFalse && len(pod.Status.PodIPs) == 0 {
		out = append(out, "Its sandbox is not there yet: network and volumes come first.")
	}
	if c := condition(pod, corev1.PodReady); c != nil && c.Status == corev1.ConditionFalse && c.Message != "" {
		out = append(out, fmt.Sprintf("It is not ready: %s: %s.", c.Reason, strings.TrimSuffix(c.Message, ".")))
	}
	return out
}

// deletion says why a pod that is deleted is still there.
func (s *Source) deletion(pod *corev1.Pod) []string {
	if pod.DeletionTimestamp == nil {
		return nil
	}
	out := []string{fmt.Sprintf("It is being deleted; its time ends at %s.", pod.DeletionTimestamp.UTC().Format(time.RFC3339))}
	if len(pod.Finalizers) > 0 {
		out = append(out, fmt.Sprintf("It cannot go before its finalizers are removed: %s.", strings.Join(pod.Finalizers, ", ")))
	}
	if pod.Spec.NodeName != "" && !over(pod) && pod.DeletionTimestamp.Time.Before(s.config.Clock.Now()) {
		out = append(out, fmt.Sprintf("Its time is over, and the agent of node %s has not said that its containers have ended.", pod.Spec.NodeName))
	}
	return out
}
