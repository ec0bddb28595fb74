package registry

import (
	"context"
	"fmt"
	"maps"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/store"
)

var pods = schema.GroupResource{Resource: "pods"}

// handleSubresources registers the create-only endpoints that change other objects.
func (r *Registry) handleSubresources() {
	r.Handle(pods, "binding", r.bind)
	r.Handle(schema.GroupResource{Resource: "bindings"}, "", r.bind)
	r.Handle(pods, "eviction", r.evict)
}

// bind assigns a pod to a node. The answer has no object.
func (r *Registry) bind(ctx context.Context, q *Request, obj apis.Object, opts metav1.CreateOptions) (apis.Object, error) {
	b, ok := obj.(*corev1.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %#v", obj))
	}
	if q.Name == "" && b.Name == "" {
		return nil, apierrors.NewBadRequest("Name parameter required.")
	}
	if q.Name != "" && b.Name != q.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	attrs := r.attributes(q, admissionv1.Create, b, nil, &opts, isDryRun(opts.DryRun))
	if err := r.admission.Admit(ctx, attrs); err != nil {
		return nil, err
	}
	if errs := validateBinding(b); len(errs) > 0 {
		return nil, unknown(errs.ToAggregate().Error())
	}
	if err := r.admission.Validate(ctx, attrs); err != nil {
		return nil, err
	}
	key := store.Key{Resource: pods, Namespace: q.Namespace, Name: b.Name}
	var item *store.Item
	err := r.write(ctx, "GuaranteedUpdate etcd3", attrs.DryRun, func(tx *store.Tx) (err error) {
		if err = r.admission.Commit(tx, attrs); err == nil {
			item, err = r.assign(tx, key, b)
		}
		return err
	}, &item)
	return nil, status(err, pods, b.Name)
}

func validateBinding(b *corev1.Binding) field.ErrorList {
	var errs field.ErrorList
	if kind := b.Target.Kind; kind != "" && kind != "Node" {
		errs = append(errs, field.NotSupported(field.NewPath("target", "kind"), kind, []string{"Node", "<empty>"}))
	}
	name := field.NewPath("target", "name")
	switch {
	case b.Target.Name == "":
		errs = append(errs, field.Required(name, ""))
	case b.Target.Kind == "" || b.Target.Kind == "Node":
		for _, text := range validation.NameIsDNSSubdomain(b.Target.Name, false) {
			errs = append(errs, field.Invalid(name, b.Target.Name, text))
		}
	}
	return errs
}

// assign writes a binding into its pod. It neither counts the generation nor
// records a field manager, as upstream.
func (r *Registry) assign(tx *store.Tx, key store.Key, b *corev1.Binding) (*store.Item, error) {
	existing, err := tx.Get(key)
	if err != nil {
		return nil, err
	}
	pod := existing.Object.(*corev1.Pod)
	binding := schema.GroupResource{Resource: "pods/binding"}
	switch {
	case b.UID != "" && b.UID != pod.UID:
		return nil, conflict(pods, pod.Name, "Precondition failed: UID in precondition: %v, UID in object meta: %v", b.UID, pod.UID)
	case b.ResourceVersion != "" && b.ResourceVersion != pod.ResourceVersion:
		return nil, conflict(pods, pod.Name, "Precondition failed: ResourceVersion in precondition: %v, ResourceVersion in object meta: %v", b.ResourceVersion, pod.ResourceVersion)
	case pod.DeletionTimestamp != nil:
		return nil, conflict(binding, pod.Name, "pod %s is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		return nil, conflict(binding, pod.Name, "pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	case len(pod.Spec.SchedulingGates) > 0:
		return nil, conflict(binding, pod.Name, "pod %v has non-empty .spec.schedulingGates", pod.Name)
	}
	bound := *pod // refers to what it does not change
	bound.Spec.NodeName = b.Target.Name
	if len(b.Annotations) > 0 {
		bound.Annotations = merged(maps.Clone(pod.Annotations), b.Annotations)
	}
	if len(b.Labels) > 0 {
		bound.Labels = merged(maps.Clone(b.Labels), pod.Labels) // the pod's own win
	}
	bound.Status.NominatedNodeName = ""
	bound.Status.Conditions = slices.Clone(pod.Status.Conditions)
	setPodCondition(&bound, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, r.now())
	return tx.Put(key, &bound)
}

func merged(into, from map[string]string) map[string]string {
	if len(from) == 0 {
		return into
	}
	if into == nil {
		into = make(map[string]string, len(from))
	}
	maps.Copy(into, from)
	return into
}

// setPodCondition adds or replaces a condition; its transition time moves with its status.
func setPodCondition(pod *corev1.Pod, c corev1.PodCondition, now metav1.Time) {
	c.LastTransitionTime = now
	if pod.Status.ObservedGeneration != 0 {
		c.ObservedGeneration = pod.Generation
	}
	for i := range pod.Status.Conditions {
		old := &pod.Status.Conditions[i]
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		*old = c
		return
	}
	pod.Status.Conditions = append(pod.Status.Conditions, c)
}
