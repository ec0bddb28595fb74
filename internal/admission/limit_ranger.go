package admission

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	podresource "k8s.io/component-helpers/resource"

	"proa/internal/store"
)

// LimitRanger gives containers the default resources of their namespace and
// holds pods and claims to its LimitRanges.
type LimitRanger struct{ Store *store.Store }

func (LimitRanger) Name() string { return "LimitRanger" }

const limitRangerAnnotation = "kubernetes.io/limit-ranger"

var limitRanges = schema.GroupResource{Resource: "limitranges"}

func (p LimitRanger) Admit(_ context.Context, a *Attributes) error {
	pod, ok := a.podCreated()
	if !ok {
		return nil
	}
	for _, lr := range all[*corev1.LimitRange](p.Store.Snapshot(), limitRanges, a.Namespace) {
		setContainerDefaults(pod, lr)
	}
	return nil
}

func (p LimitRanger) Validate(_ context.Context, a *Attributes) error {
	if !limited(a) {
		return nil
	}
	for _, lr := range all[*corev1.LimitRange](p.Store.Snapshot(), limitRanges, a.Namespace) {
		var errs []error
		switch obj := a.Object.(type) {
		case *corev1.Pod:
			errs = podLimits(lr, obj)
		case *corev1.PersistentVolumeClaim:
			errs = claimLimits(lr, obj)
		}
		if len(errs) > 0 {
			return a.forbidden(utilerrors.NewAggregate(errs))
		}
	}
	return nil
}

// limited tells which writes change resources: creates, resizes of pods and
// updates of claims, unless the object is already being deleted.
func limited(a *Attributes) bool {
	if a.OldObject != nil && a.OldObject.GetDeletionTimestamp() != nil {
		return false
	}
	switch {
	case a.of(pods):
		return a.Operation == admissionv1.Create && a.Subresource == "" ||
			a.Operation == admissionv1.Update && a.Subresource == "resize"
	case a.of(claims):
		return (a.Operation == admissionv1.Create || a.Operation == admissionv1.Update) && a.Subresource == ""
	}
	return false
}

func setContainerDefaults(pod *corev1.Pod, lr *corev1.LimitRange) {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	for _, l := range lr.Spec.Limits {
		if l.Type == corev1.LimitTypeContainer {
			maps.Copy(requests, l.DefaultRequest)
			maps.Copy(limits, l.Default)
		}
	}
	var set []string
	each := func(c *corev1.Container, kind string) {
		if names := addMissing(&c.Resources.Requests, requests); len(names) > 0 {
			set = append(set, fmt.Sprintf("%s request for %s %s", strings.Join(names, ", "), kind, c.Name))
		}
		if names := addMissing(&c.Resources.Limits, limits); len(names) > 0 {
			set = append(set, fmt.Sprintf("%s limit for %s %s", strings.Join(names, ", "), kind, c.Name))
		}
	}
	for i := range pod.Spec.Containers {
		each(&pod.Spec.Containers[i], "container")
	}
	for i := range pod.Spec.InitContainers {
		each(&pod.Spec.InitContainers[i], "init container")
	}
	if len(set) > 0 {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations[limitRangerAnnotation] = "LimitRanger plugin set: " + strings.Join(set, "; ")
	}
}

func addMissing(to *corev1.ResourceList, defaults corev1.ResourceList) (names []string) {
	for name, q := range defaults {
		if _, there := (*to)[name]; there {
			continue
		}
		if *to == nil {
			*to = corev1.ResourceList{}
		}
		(*to)[name] = q.DeepCopy()
		names = append(names, string(name))
	}
	slices.Sort(names)
	return names
}

func podLimits(lr *corev1.LimitRange, pod *corev1.Pod) (errs []error) {
	for i := range lr.Spec.Limits {
		l := &lr.Spec.Limits[i]
		switch l.Type {
		case corev1.LimitTypeContainer:
			for j := range pod.Spec.Containers {
				errs = append(errs, computeLimits(l, pod.Spec.Containers[j].Resources.Requests, pod.Spec.Containers[j].Resources.Limits)...)
			}
			for j := range pod.Spec.InitContainers {
				errs = append(errs, computeLimits(l, pod.Spec.InitContainers[j].Resources.Requests, pod.Spec.InitContainers[j].Resources.Limits)...)
			}
		case corev1.LimitTypePod:
			opts := podresource.PodResourcesOptions{ExcludeOverhead: true}
			errs = append(errs, computeLimits(l, podresource.PodRequests(pod, opts), podresource.PodLimits(pod, opts))...)
		}
	}
	return errs
}

func computeLimits(l *corev1.LimitRangeItem, requests, limits corev1.ResourceList) (errs []error) {
	for _, name := range sortedNames(l.Min) {
		errs = append(errs, atLeast(l.Type, name, l.Min[name], requests, limits))
	}
	for _, name := range sortedNames(l.Max) {
		errs = append(errs, atMost(l.Type, name, l.Max[name], requests, limits))
	}
	for _, name := range sortedNames(l.MaxLimitRequestRatio) {
		errs = append(errs, ratio(l.Type, name, l.MaxLimitRequestRatio[name], requests, limits))
	}
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

func claimLimits(lr *corev1.LimitRange, claim *corev1.PersistentVolumeClaim) (errs []error) {
	requests := claim.Spec.Resources.Requests
	for i := range lr.Spec.Limits {
		l := &lr.Spec.Limits[i]
		if l.Type != corev1.LimitTypePersistentVolumeClaim {
			continue
		}
		for _, name := range sortedNames(l.Min) {
			errs = append(errs, atLeast(l.Type, name, l.Min[name], requests, nil))
		}
		for _, name := range sortedNames(l.Max) {
			errs = append(errs, requestAtMost(l.Type, name, l.Max[name], requests))
		}
	}
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

func sortedNames(list corev1.ResourceList) []corev1.ResourceName {
	return slices.Sorted(maps.Keys(list))
}

func atLeast(t corev1.LimitType, name corev1.ResourceName, least resource.Quantity, requests, limits corev1.ResourceList) error {
	request, requested := requests[name]
	limit, limited := limits[name]
	switch {
	case !requested:
		return fmt.Errorf("minimum %s usage per %s is %s.  No request is specified", name, t, least.String())
	case request.Cmp(least) < 0:
		return fmt.Errorf("minimum %s usage per %s is %s, but request is %s", name, t, least.String(), request.String())
	case limited && limit.Cmp(least) < 0:
		return fmt.Errorf("minimum %s usage per %s is %s, but limit is %s", name, t, least.String(), limit.String())
	}
	return nil
}

func atMost(t corev1.LimitType, name corev1.ResourceName, most resource.Quantity, requests, limits corev1.ResourceList) error {
	limit, limited := limits[name]
	switch {
	case !limited:
		return fmt.Errorf("maximum %s usage per %s is %s.  No limit is specified", name, t, most.String())
	case limit.Cmp(most) > 0:
		return fmt.Errorf("maximum %s usage per %s is %s, but limit is %s", name, t, most.String(), limit.String())
	}
	if request, requested := requests[name]; requested && request.Cmp(most) > 0 {
		return fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, t, most.String(), request.String())
	}
	return nil
}

func requestAtMost(t corev1.LimitType, name corev1.ResourceName, most resource.Quantity, requests corev1.ResourceList) error {
	request, requested := requests[name]
	switch {
	case !requested:
		return fmt.Errorf("maximum %s usage per %s is %s.  No request is specified", name, t, most.String())
	case request.Cmp(most) > 0:
		return fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, t, most.String(), request.String())
	}
	return nil
}

func ratio(t corev1.LimitType, name corev1.ResourceName, most resource.Quantity, requests, limits corev1.ResourceList) error {
	request, limit := requests[name], limits[name]
	if request.IsZero() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no request is specified or request is 0", name, t, most.String())
	}
	if limit.IsZero() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no limit is specified or limit is 0", name, t, most.String())
	}
	if observed := limit.AsApproximateFloat64() / request.AsApproximateFloat64(); observed > most.AsApproximateFloat64() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but provided ratio is %f", name, t, most.String(), observed)
	}
	return nil
}
