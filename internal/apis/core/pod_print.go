package core

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
)

var podColumns = []metav1.TableColumnDefinition{
	apis.NameColumn,
	apis.Column("Ready", "string", "The aggregate readiness state of this pod for accepting traffic."),
	apis.Column("Status", "string", "The aggregate status of the containers in this pod."),
	apis.Column("Restarts", "string", "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted."),
	apis.AgeColumn,
	apis.Wide("IP", "string", corev1.PodStatus{}.SwaggerDoc()["podIP"]),
	apis.Wide("Node", "string", corev1.PodSpec{}.SwaggerDoc()["nodeName"]),
	apis.Wide("Nominated Node", "string", corev1.PodStatus{}.SwaggerDoc()["nominatedNodeName"]),
	apis.Wide("Readiness Gates", "string", corev1.PodSpec{}.SwaggerDoc()["readinessGates"]),
}

func podRow(p *corev1.Pod, now time.Time) []any {
	s := summarize(p)
	restarts := strconv.Itoa(s.restarts)
	if s.restarts != 0 && !s.lastRestart.IsZero() {
		restarts = fmt.Sprintf("%d (%s ago)", s.restarts, apis.Age(s.lastRestart, now))
	}
	ip := p.Status.PodIP
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	return []any{
		p.Name, fmt.Sprintf("%d/%d", s.ready, s.containers), s.reason, restarts, apis.AgeOf(p, now),
		apis.Or(ip, "<none>"), apis.Or(p.Spec.NodeName, "<none>"), apis.Or(p.Status.NominatedNodeName, "<none>"), printGates(p),
	}
}

func printGates(p *corev1.Pod) string {
	if len(p.Spec.ReadinessGates) == 0 {
		return "<none>"
	}
	passed := 0
	for _, gate := range p.Spec.ReadinessGates {
		if hasCondition(p, gate.ConditionType) {
			passed++
		}
	}
	return fmt.Sprintf("%d/%d", passed, len(p.Spec.ReadinessGates))
}

func hasCondition(p *corev1.Pod, t corev1.PodConditionType) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == t {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// podSummary is a pod in the few words of a table.
type podSummary struct {
	ready, containers, restarts int
	lastRestart                 metav1.Time
	reason                      string
}

func (s *podSummary) restarted(c *corev1.ContainerStatus) {
	s.restarts += int(c.RestartCount)
	if t := c.LastTerminationState.Terminated; t != nil && s.lastRestart.Before(&t.FinishedAt) {
		s.lastRestart = t.FinishedAt
	}
}

func summarize(p *corev1.Pod) podSummary {
	s := podSummary{containers: len(p.Spec.Containers), reason: string(p.Status.Phase)}
	if p.Status.Reason != "" {
		s.reason = p.Status.Reason
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated {
			s.reason = corev1.PodReasonSchedulingGated
		}
	}
	sidecars := map[string]bool{}
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sidecars[c.Name] = true
			s.containers++
		}
	}
	initializing, ofSidecars := s.initialization(p, sidecars)
	if !initializing || hasCondition(p, corev1.PodInitialized) {
		// Once the pod runs, restarts before that no longer count.
		s.restarts, s.lastRestart = ofSidecars.restarts, ofSidecars.lastRestart
		s.running(p)
	}
	if p.DeletionTimestamp != nil {
		switch {
		case p.Status.Reason == "NodeLost":
			s.reason = "Unknown"
		case p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded:
			s.reason = "Terminating"
		}
	}
	return s
}

// initialization looks for the init container that the pod waits for, and sums
// up the restarts of sidecars apart.
func (s *podSummary) initialization(p *corev1.Pod, sidecars map[string]bool) (initializing bool, ofSidecars podSummary) {
	for i := range p.Status.InitContainerStatuses {
		c := &p.Status.InitContainerStatuses[i]
		s.restarted(c)
		if sidecars[c.Name] {
			ofSidecars.restarted(c)
		}
		switch ended, waiting := c.State.Terminated, c.State.Waiting; {
		case ended != nil && ended.ExitCode == 0:
			continue
		case sidecars[c.Name] && c.Started != nil && *c.Started:
			if c.Ready {
				s.ready++
			}
			continue
		case ended != nil:
			s.reason = "Init:" + terminationReason(ended)
		case waiting != nil && waiting.Reason != "" && waiting.Reason != "PodInitializing":
			s.reason = "Init:" + waiting.Reason
		default:
			s.reason = fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
		}
		return true, ofSidecars
	}
	return false, ofSidecars
}

// running lets the first container with trouble name the pod's state.
func (s *podSummary) running(p *corev1.Pod) {
	hasRunning := false
	for i := len(p.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := &p.Status.ContainerStatuses[i]
		s.restarted(c)
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			s.reason = c.State.Waiting.Reason
		case c.State.Terminated != nil:
			s.reason = terminationReason(c.State.Terminated)
		case c.Ready && c.State.Running != nil:
			hasRunning = true
			s.ready++
		}
	}
	if s.reason == "Completed" && hasRunning {
		s.reason = "NotReady"
		if hasCondition(p, corev1.PodReady) {
			s.reason = "Running"
		}
	}
}

func terminationReason(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	default:
		return fmt.Sprintf("ExitCode:%d", t.ExitCode)
	}
}

// podConditions marks pods that have come to their end.
func podConditions(obj apis.Object) []metav1.TableRowCondition {
	completed := metav1.TableRowCondition{Type: metav1.RowCompleted, Status: metav1.ConditionTrue}
	switch obj.(*corev1.Pod).Status.Phase {
	case corev1.PodSucceeded:
		completed.Reason, completed.Message = string(corev1.PodSucceeded), "The pod has completed successfully."
	case corev1.PodFailed:
		completed.Reason, completed.Message = string(corev1.PodFailed), "The pod failed."
	default:
		return nil
	}
	return []metav1.TableRowCondition{completed}
}
