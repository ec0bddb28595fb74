// Package hint shortens the queueing hints of plugins.
package hint

import (
	corev1 "k8s.io/api/core/v1"

	"proa/internal/scheduler/framework"
)

// On registers for actions on a resource. A nil f means that every one helps.
func On(resource framework.EventResource, action framework.Action, f framework.HintFunc) framework.HintedEvent {
	return framework.HintedEvent{Event: framework.Event{Resource: resource, Action: action}, Hint: f}
}

// Node turns a question about the new node object into a hint: the event helps
// when the pod passes on it. A node that passed before the change as well was
// rejected for another reason, so the change does not help.
func Node(passes func(pod *corev1.Pod, node *corev1.Node) bool) framework.HintFunc {
	return func(pod *corev1.Pod, old, new any) framework.Hint {
		node, ok := new.(*corev1.Node)
		if !ok || node == nil {
			return framework.QueueSkip
		}
		if before, ok := old.(*corev1.Node); ok && before != nil && passes(pod, before) {
			return framework.QueueSkip
		}
		return framework.Hint(passes(pod, node))
	}
}

// Pods returns the pods of an event, nil where there is none.
func Pods(old, new any) (before, after *corev1.Pod) {
	before, _ = old.(*corev1.Pod)
	after, _ = new.(*corev1.Pod)
	return before, after
}
