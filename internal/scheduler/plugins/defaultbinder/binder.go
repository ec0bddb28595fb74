// Package defaultbinder writes the decision: a Binding of the pod to the node.
package defaultbinder

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/scheduler/framework"
)

const Name = "DefaultBinder"

type Plugin struct{ pods *client.Informer[*corev1.Pod] }

func New(h *framework.Handle) (framework.Plugin, error) {
	return &Plugin{client.Shared[*corev1.Pod](h.Cache)}, nil
}

func (*Plugin) Name() string { return Name }

func (p *Plugin) Bind(ctx context.Context, _ *framework.CycleState, pod *framework.PodInfo, node string) *framework.Status {
	_, err := p.pods.CreateSubresource(ctx, pod.Pod.Namespace, pod.Pod.Name, "binding", &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Pod.Namespace, Name: pod.Pod.Name, UID: pod.Pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	})
	return framework.AsStatus(err)
}

func (*Plugin) EventsToRegister() []framework.HintedEvent { return nil }
