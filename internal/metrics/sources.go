package metrics

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"proa/internal/apis"
)

// Nodes answers reads of NodeMetrics.
type Nodes struct{ *Collector }

// Get returns what a node uses.
func (n Nodes) Get(_, name string) (apis.Object, error) {
	node, ok := n.nodes.Cached("", name)
	if !ok {
		return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
	}
	if m, ok := n.of(node); ok {
		return m, nil
	}
	return nil, apierrors.NewNotFound(v1beta1.Resource("nodemetrics"), name)
}

// List returns what every node uses that has answered.
func (n Nodes) List(string) []apis.Object {
	var all []apis.Object
	for _, node := range n.nodes.Select("", labels.Everything()) {
		if m, ok := n.of(node); ok {
			all = append(all, m)
		}
	}
	return all
}

func (n Nodes) of(node *corev1.Node) (*v1beta1.NodeMetrics, bool) {
	r, ok := n.reading(node.Name).node.rate(n.config.Interval)
	if !ok {
		return nil, false
	}
	return &v1beta1.NodeMetrics{
		ObjectMeta: n.meta(&node.ObjectMeta),
		Timestamp:  metav1.NewTime(r.at), Window: metav1.Duration{Duration: r.window}, Usage: r.usage,
	}, true
}

// meta is what a measurement takes over from what it measures.
func (m *Collector) meta(of *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: of.Name, Namespace: of.Namespace, Labels: of.Labels, CreationTimestamp: metav1.NewTime(m.config.Clock.Now())}
}

// Pods answers reads of PodMetrics: of running pods all of whose containers
// have been measured.
type Pods struct{ *Collector }

// Get returns what a pod's containers use.
func (p Pods) Get(namespace, name string) (apis.Object, error) {
	pod, ok := p.pods.Cached(namespace, name)
	if !ok || pod.Status.Phase != corev1.PodRunning {
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
	}
	if m, ok := p.of(pod); ok {
		return m, nil
	}
	return nil, apierrors.NewNotFound(v1beta1.Resource("podmetrics"), fmt.Sprintf("%s/%s", namespace, name))
}

// List returns what the pods of a namespace use, of all when it is empty.
func (p Pods) List(namespace string) []apis.Object {
	var all []apis.Object
	for _, pod := range p.pods.Select(namespace, labels.Everything()) {
		if m, ok := p.of(pod); ok {
			all = append(all, m)
		}
	}
	return all
}

func (p Pods) of(pod *corev1.Pod) (*v1beta1.PodMetrics, bool) {
	if pod.Status.Phase != corev1.PodRunning {
		return nil, false
	}
	containers := p.reading(pod.Spec.NodeName).pods[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}]
	if len(containers) == 0 {
		return nil, false
	}
	m := &v1beta1.PodMetrics{ObjectMeta: p.meta(&pod.ObjectMeta)}
	for name, s := range containers {
		r, ok := s.rate(p.config.Interval)
		if !ok {
			return nil, false
		}
		if m.Timestamp.IsZero() || r.at.Before(m.Timestamp.Time) {
			m.Timestamp, m.Window.Duration = metav1.NewTime(r.at), r.window
		}
		m.Containers = append(m.Containers, v1beta1.ContainerMetrics{Name: name, Usage: r.usage})
	}
	slices.SortFunc(m.Containers, func(a, b v1beta1.ContainerMetrics) int { return strings.Compare(a.Name, b.Name) })
	return m, true
}
