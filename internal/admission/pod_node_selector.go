package admission

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"proa/internal/store"
)

// PodNodeSelector keeps the pods of a namespace on the nodes that its annotation
// selects, by default those of the configuration's clusterDefaultNodeSelector.
// The configuration may also say which labels a namespace's pods may select by.
// Off unless enabled.
type PodNodeSelector struct {
	Store     *store.Store
	selectors map[string]string // by namespace; the default under its own name
}

const (
	nodeSelectorAnnotation = "scheduler.alpha.kubernetes.io/node-selector"
	defaultNodeSelector    = "clusterDefaultNodeSelector"
)

// NewPodNodeSelector reads the configuration; nil says nothing.
func NewPodNodeSelector(s *store.Store, config []byte) (PodNodeSelector, error) {
	var c struct {
		Selectors map[string]string `json:"podNodeSelectorPluginConfig"`
	}
	err := yaml.Unmarshal(config, &c)
	return PodNodeSelector{s, c.Selectors}, err
}

func (PodNodeSelector) Name() string { return "PodNodeSelector" }

func (p PodNodeSelector) Admit(_ context.Context, a *Attributes) error {
	pod, ok := a.podCreated()
	if !ok {
		return nil
	}
	own, err := p.of(a.Namespace)
	if err != nil {
		return err
	}
	if labels.Conflicts(own, pod.Spec.NodeSelector) {
		return p.conflict(pod, "pod node label selector conflicts with its namespace node label selector")
	}
	pod.Spec.NodeSelector = labels.Merge(own, pod.Spec.NodeSelector)
	return nil
}

func (p PodNodeSelector) Validate(_ context.Context, a *Attributes) error {
	pod, ok := a.podCreated()
	if !ok {
		return nil
	}
	own, err := p.of(a.Namespace)
	if err != nil {
		return err
	}
	if labels.Conflicts(own, pod.Spec.NodeSelector) {
		return p.conflict(pod, "pod node label selector conflicts with its namespace node label selector")
	}
	allowed, err := labels.ConvertSelectorToLabelsMap(p.selectors[a.Namespace])
	if err != nil {
		return err
	}
	for key, value := range pod.Spec.NodeSelector {
		if got, ok := allowed[key]; len(allowed) > 0 && (!ok || got != value) {
			return p.conflict(pod, "pod node label selector labels conflict with its namespace whitelist")
		}
	}
	return nil
}

func (PodNodeSelector) conflict(pod *corev1.Pod, what string) error {
	return apierrors.NewForbidden(pods, pod.Name, errors.New(what))
}

// of is what a namespace's pods select by.
func (p PodNodeSelector) of(namespace string) (labels.Set, error) {
	ns, err := find[*corev1.Namespace](p.Store.Snapshot(), namespaces, "", namespace)
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewInternalError(fmt.Errorf("namespace %s does not exist", namespace))
	}
	if err != nil {
		return nil, err
	}
	selector, ok := ns.Annotations[nodeSelectorAnnotation]
	if !ok {
		selector = p.selectors[defaultNodeSelector]
	}
	return labels.ConvertSelectorToLabelsMap(selector)
}
