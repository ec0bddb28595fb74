// Package walk finds what stops an object that has pods or volumes made for it: it
// goes from a Deployment, StatefulSet, DaemonSet, Job, Service or claim to the object
// that holds it up, and says so in the words of conditions and events. It reads with
// the rights of who asks.
package walk

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
)

// Walker reads a cluster.
type Walker struct {
	API kubernetes.Interface
	// Pod explains a pod.
	Pod func(ctx context.Context, namespace, name string) ([]string, error)
}

// Step is one object on the way, and what there is to say of it.
type Step struct {
	Kind      string   `json:"kind"`
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Sentences []string `json:"sentences"`
}

func (s *Step) say(format string, args ...any) {
	s.Sentences = append(s.Sentences, fmt.Sprintf(format, args...))
}

// kind is what can be explained, with the names that people give it.
type kind struct {
	names []string
	walk  func(w *Walker, ctx context.Context, namespace, name string) ([]*Step, error)
}

var kinds = []kind{
	{[]string{"pod", "pods", "po"}, (*Walker).pod},
	{[]string{"deployment", "deployments", "deploy"}, (*Walker).deployment},
	{[]string{"replicaset", "replicasets", "rs"}, (*Walker).replicaSet},
	{[]string{"statefulset", "statefulsets", "sts"}, (*Walker).statefulSet},
	{[]string{"daemonset", "daemonsets", "ds"}, (*Walker).daemonSet},
	{[]string{"job", "jobs"}, (*Walker).job},
	{[]string{"persistentvolumeclaim", "persistentvolumeclaims", "pvc"}, (*Walker).claim},
	{[]string{"service", "services", "svc"}, (*Walker).service},
}

// Known tells whether a kind, by any of its names, can be explained.
func Known(name string) bool {
	return slices.ContainsFunc(kinds, func(k kind) bool { return slices.Contains(k.names, strings.ToLower(name)) })
}

// Kinds are the first names of what can be explained.
func Kinds() (all []string) {
	for _, k := range kinds {
		all = append(all, k.names[0])
	}
	return all
}

// Walk goes from an object to what holds it up. The first step is the object itself.
func (w *Walker) Walk(ctx context.Context, kind, namespace, name string) ([]*Step, error) {
	for _, k := range kinds {
		if slices.Contains(k.names, strings.ToLower(kind)) {
			return k.walk(w, ctx, namespace, name)
		}
	}
	return nil, fmt.Errorf("%s cannot be explained: it is one of %s", kind, strings.Join(Kinds(), ", "))
}

func (w *Walker) pod(ctx context.Context, namespace, name string) ([]*Step, error) {
	sentences, err := w.Pod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return []*Step{{Kind: "Pod", Namespace: namespace, Name: name, Sentences: sentences}}, nil
}

// deleted says why an object that is being deleted is still there.
func deleted(s *Step, obj metav1.Object) {
	if at := obj.GetDeletionTimestamp(); at != nil {
		s.say("It is being deleted since %s; it goes when its finalizers have: %s.", at.UTC().Format("2006-01-02T15:04:05Z"), strings.Join(obj.GetFinalizers(), ", "))
	}
}

// events are the warnings about an object, the newest first, at most three.
func (w *Walker) events(ctx context.Context, s *Step, obj metav1.Object, kinds ...string) error {
	list, err := w.API.CoreV1().Events(s.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.uid": string(obj.GetUID())}.String(),
	})
	if err != nil {
		return fmt.Errorf("events of %s %s: %w", s.Kind, s.Name, err)
	}
	at := func(e *corev1.Event) metav1.Time {
		if !e.LastTimestamp.IsZero() {
			return e.LastTimestamp
		}
		return metav1.Time{Time: e.EventTime.Time}
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int { return at(&b).Compare(at(&a).Time) })
	said := map[string]bool{}
	for i := range list.Items {
		e := &list.Items[i]
		if e.Type != corev1.EventTypeWarning && !slices.Contains(kinds, e.Reason) || said[e.Reason] || len(said) == 3 {
			continue
		}
		said[e.Reason] = true
		s.say("%s: %s", e.Reason, e.Message)
	}
	return nil
}

// owned are the pods that an object controls, by name.
func (w *Walker) owned(ctx context.Context, owner metav1.Object, selector *metav1.LabelSelector) ([]corev1.Pod, error) {
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return nil, err
	}
	pods, err := w.selected(ctx, owner.GetNamespace(), s)
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !metav1.IsControlledBy(&p, owner) }), err
}

func (w *Walker) selected(ctx context.Context, namespace string, s labels.Selector) ([]corev1.Pod, error) {
	list, err := w.API.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: s.String()})
	if err != nil {
		return nil, fmt.Errorf("pods: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	return list.Items, nil
}

// worst explains the pod that is farthest from what it should be; nothing when all
// pods are well.
func (w *Walker) worst(ctx context.Context, pods []corev1.Pod) ([]*Step, error) {
	var bad *corev1.Pod
	for i := range pods {
		if p := &pods[i]; trouble(p) > 0 && (bad == nil || trouble(p) > trouble(bad)) {
			bad = p
		}
	}
	if bad == nil {
		return nil, nil
	}
	return w.pod(ctx, bad.Namespace, bad.Name)
}

// trouble ranks how far a pod is from running.
func trouble(p *corev1.Pod) int {
	switch {
	case p.Status.Phase == corev1.PodSucceeded:
		return 0
	case p.Status.Phase == corev1.PodFailed:
		return 2
	case ready(p):
		return 0
	case p.Spec.NodeName == "":
		return 4
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Waiting != nil && c.State.Waiting.Reason != "ContainerCreating" && c.State.Waiting.Reason != "PodInitializing" {
			return 3
		}
	}
	return 1
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
