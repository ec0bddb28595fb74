// Package defaultbinder writes the decision: a Binding of the pod to the node.
package defaultbinder

import (
	"context"
	"errors"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/scheduler/framework"
)

const Name = "DefaultBinder"

// questions after a Binding whose outcome is in doubt; they may fail as it did.
const questions = 3

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
	if err != nil && inDoubt(err) && p.bound(ctx, pod.Pod, node) {
		return nil
	}
	return framework.AsStatus(err)
}

// inDoubt tells of an error that does not say whether anything was written.
func inDoubt(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || status.Status().Code >= http.StatusInternalServerError
}

// bound asks whether the pod has the node. What was taken for it must not be given
// back then.
func (p *Plugin) bound(ctx context.Context, pod *corev1.Pod, node string) bool {
	for range questions {
		latest, err := p.pods.Resource.Get(ctx, pod.Namespace, pod.Name)
		if err == nil {
			return latest.UID == pod.UID && latest.Spec.NodeName == node
		}
		if !inDoubt(err) {
			return false
		}
	}
	return false
}

func (*Plugin) EventsToRegister() []framework.HintedEvent { return nil }
