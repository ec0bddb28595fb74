package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/store"
)

// RuntimeClass gives pods the overhead and the scheduling constraints of their runtime.
type RuntimeClass struct{ Store *store.Store }

func (RuntimeClass) Name() string { return "RuntimeClass" }

var runtimeClasses = schema.GroupResource{Group: nodev1.GroupName, Resource: "runtimeclasses"}

func (p RuntimeClass) Admit(_ context.Context, a *Attributes) error {
	pod, ok := a.podCreated()
	if !ok {
		return nil
	}
	class, err := p.of(a, pod)
	if err != nil || class == nil {
		return err
	}
	if class.Overhead != nil {
		if pod.Spec.Overhead != nil && !equality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return a.forbidden(errOverhead)
		}
		pod.Spec.Overhead = class.Overhead.PodFixed.DeepCopy()
	}
	if class.Scheduling != nil {
		return setScheduling(a, pod, class.Scheduling)
	}
	return nil
}

var errOverhead = errors.New("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")

func (p RuntimeClass) Validate(_ context.Context, a *Attributes) error {
	pod, ok := a.podWritten()
	if !ok || a.Operation != admissionv1.Create {
		return nil
	}
	class, err := p.of(a, pod)
	if err != nil {
		return err
	}
	if class != nil && class.Overhead != nil {
		if !equality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return a.forbidden(errOverhead)
		}
		return nil
	}
	if len(pod.Spec.Overhead) > 0 {
		return a.forbidden(errors.New("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"))
	}
	return nil
}

func (p RuntimeClass) of(a *Attributes, pod *corev1.Pod) (*nodev1.RuntimeClass, error) {
	if pod.Spec.RuntimeClassName == nil {
		return nil, nil
	}
	name := *pod.Spec.RuntimeClassName
	class, err := find[*nodev1.RuntimeClass](p.Store.Snapshot(), runtimeClasses, "", name)
	if apierrors.IsNotFound(err) {
		return nil, a.forbidden(fmt.Errorf("pod rejected: RuntimeClass %q not found", name))
	}
	return class, err
}

func setScheduling(a *Attributes, pod *corev1.Pod, s *nodev1.Scheduling) error {
	for _, key := range slices.Sorted(maps.Keys(s.NodeSelector)) {
		value := s.NodeSelector[key]
		if own, there := pod.Spec.NodeSelector[key]; there && own != value {
			return a.forbidden(fmt.Errorf("conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", key, value, key, own))
		}
		if pod.Spec.NodeSelector == nil {
			pod.Spec.NodeSelector = map[string]string{}
		}
		pod.Spec.NodeSelector[key] = value
	}
	for i := range s.Tolerations {
		if !slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return equality.Semantic.DeepEqual(t, s.Tolerations[i]) }) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, s.Tolerations[i])
		}
	}
	return nil
}
