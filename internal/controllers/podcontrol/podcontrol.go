// Package podcontrol is what controllers that own pods share: making a pod from
// a template, creating and deleting with the owner's events, and asking whether
// a pod counts.
package podcontrol

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
)

// Burst bounds the pods that one reconcile creates or deletes.
const Burst = 500

// Control creates and deletes pods in the name of their owners.
type Control struct {
	pods   *client.Informer[*corev1.Pod]
	events controllers.EventRecorder
}

// New returns a control that records events on owners.
func New(pods *client.Informer[*corev1.Pod], events controllers.EventRecorder) *Control {
	return &Control{pods: pods, events: events}
}

// FromTemplate returns a pod as owner's template describes it, to be named by the server.
func FromTemplate(owner metav1.Object, ref *metav1.OwnerReference, template *corev1.PodTemplateSpec) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       owner.GetNamespace(),
			GenerateName:    NamePrefix(owner.GetName()),
			Labels:          maps.Clone(template.Labels),
			Annotations:     maps.Clone(template.Annotations),
			Finalizers:      slices.Clone(template.Finalizers),
			OwnerReferences: []metav1.OwnerReference{*ref},
		},
	}
	template.Spec.DeepCopyInto(&pod.Spec)
	return pod
}

// NamePrefix is what names of owner's pods begin with.
func NamePrefix(owner string) string {
	prefix := owner + "-"
	if len(apivalidation.NameIsDNSSubdomain(prefix, true)) > 0 {
		return owner
	}
	return prefix
}

// Create creates pod and tells so in an event of owner.
func (c *Control) Create(ctx context.Context, owner client.Object, pod *corev1.Pod) (*corev1.Pod, error) {
	if len(pod.Labels) == 0 {
		return nil, fmt.Errorf("unable to create pods, no labels")
	}
	created, err := c.pods.Create(ctx, pod)
	switch {
	case NamespaceGoes(err) || err != nil && ctx.Err() != nil:
	case err != nil:
		c.events.Eventf(owner, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
	default:
		c.events.Eventf(owner, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", created.Name)
	}
	return created, err
}

// Delete deletes this very pod, not one of the same name, and tells so in an
// event of owner. A pod that is gone is no error.
func (c *Control) Delete(ctx context.Context, owner client.Object, pod *corev1.Pod) error {
	uid := pod.UID
	_, err := c.pods.Delete(ctx, pod.Namespace, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil && ctx.Err() != nil:
	case err != nil:
		c.events.Eventf(owner, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
	default:
		c.events.Eventf(owner, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", pod.Name)
	}
	return err
}

// DeleteAll deletes pods at the same time and returns the first error.
func (c *Control) DeleteAll(ctx context.Context, owner client.Object, pods []*corev1.Pod) error {
	_, err := parallel(0, len(pods), func(i int) error { return c.Delete(ctx, owner, pods[i]) })
	return err
}

// Label sets one label of a pod.
func (c *Control) Label(ctx context.Context, pod *corev1.Pod, key, value string) error {
	patch := map[string]any{"metadata": map[string]any{"uid": pod.UID, "labels": map[string]string{key: value}}}
	_, err := c.pods.MergePatch(ctx, pod.Namespace, pod.Name, patch)
	return err
}

// NamespaceGoes tells that an object was refused because its namespace is being
// deleted: there is nothing to retry.
func NamespaceGoes(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// SlowStart makes count calls in batches of 1, 2, 4 and so on, each batch at
// once. It stops after a batch with an error, so that whatever refuses the first
// pod is asked only once. It returns the number of successes and the first error.
func SlowStart(count int, call func(i int) error) (int, error) {
	done := 0
	for batch := 1; done < count; batch *= 2 {
		n := min(batch, count-done)
		succeeded, err := parallel(done, n, call)
		done += succeeded
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

func parallel(first, n int, call func(i int) error) (succeeded int, err error) {
	if n == 1 {
		if err := call(first); err != nil {
			return 0, err
		}
		return 1, nil
	}
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() { errs[i] = call(first + i) })
	}
	wg.Wait()
	for _, e := range errs {
		if e == nil {
			succeeded++
		} else if err == nil {
			err = e
		}
	}
	return succeeded, err
}
