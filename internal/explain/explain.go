// Package explain says why a pod is as it is: why it has no node, why it does
// not run or is not ready, why it is not gone. It answers for the kind
// PodExplanation from what informers hold and from the scheduler, which asks all
// of its plugins anew.
package explain

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"

	"proa/internal/apis"
	"proa/internal/apis/explain"
	"proa/internal/client"
)

// Config of a Source. Cache and Scheduling are required.
type Config struct {
	Cache *client.Cache
	// Scheduling examines a pod without a node. It is nil and no error for a pod
	// of a scheduler that is not asked.
	Scheduling func(ctx context.Context, pod *corev1.Pod) (*explain.Scheduling, error)
	Clock      clock.PassiveClock // nil: the machine's
}

// Source answers reads of PodExplanations.
type Source struct {
	config Config
	pods   *client.Informer[*corev1.Pod]
	nodes  *client.Informer[*corev1.Node]
	quotas *client.Informer[*corev1.ResourceQuota]
}

// examination bounds how long the scheduler is waited for.
const examination = 10 * time.Second

// New returns a Source; call it before the cache runs.
func New(c Config) *Source {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	return &Source{
		config: c,
		pods:   client.Shared[*corev1.Pod](c.Cache),
		nodes:  client.Shared[*corev1.Node](c.Cache),
		quotas: client.Shared[*corev1.ResourceQuota](c.Cache),
	}
}

// Get explains a pod; for one without a node it asks the scheduler.
func (s *Source) Get(namespace, name string) (apis.Object, error) {
	pod, ok := s.pods.Cached(namespace, name)
	if !ok {
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
	}
	e := s.explanation(pod)
	if !unplaced(pod) {
		e.say(s.placedPod(pod)...)
		return &e.PodExplanation, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), examination)
	defer cancel()
	var err error
	if e.Scheduling, err = s.config.Scheduling(ctx, pod); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	e.say(s.deletion(pod)...)
	e.say(schedulingSentences(pod, e.Scheduling)...)
	e.say(s.quotaSentences(pod)...)
	return &e.PodExplanation, nil
}

// List explains the pods that are not as they should be, briefly: for those
// without a node it repeats what their condition says.
func (s *Source) List(namespace string) []apis.Object {
	var all []apis.Object
	for _, pod := range s.pods.Select(namespace, labels.Everything()) {
		e := s.explanation(pod)
		if unplaced(pod) {
			e.say(s.deletion(pod)...)
			e.say(conditionSentence(pod))
		} else {
			e.say(s.placedPod(pod)...)
		}
		if !well(pod) {
			all = append(all, &e.PodExplanation)
		}
	}
	return all
}

// answer is an explanation that is being made.
type answer struct{ explain.PodExplanation }

func (s *Source) explanation(pod *corev1.Pod) *answer {
	return &answer{explain.PodExplanation{ObjectMeta: metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, Labels: pod.Labels, CreationTimestamp: pod.CreationTimestamp,
	}}}
}

// say adds sentences; the first of all is the summary.
func (a *answer) say(sentences ...string) {
	for _, sentence := range sentences {
		if sentence == "" {
			continue
		}
		if a.Summary == "" {
			a.Summary = sentence
		}
		a.Sentences = append(a.Sentences, sentence)
	}
}

// unplaced tells whether a pod waits for a node.
func unplaced(pod *corev1.Pod) bool { return pod.Spec.NodeName == "" && !over(pod) }

func over(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// well tells whether there is nothing to explain.
func well(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && (pod.Status.Phase == corev1.PodSucceeded || isTrue(pod, corev1.PodReady))
}

func isTrue(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	c := condition(pod, kind)
	return c != nil && c.Status == corev1.ConditionTrue
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}
