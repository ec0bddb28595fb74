package registry

import (
	"context"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/ptr"

	"proa/internal/apis"
	"proa/internal/store"
)

var jobs = schema.GroupResource{Group: "batch", Resource: "jobs"}

const jobOrphanWarning = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning"

// Delete removes an object, or marks it as being deleted while a grace period or
// finalizers keep it. It returns the last state and whether the object is gone.
func (r *Registry) Delete(ctx context.Context, q *Request, opts metav1.DeleteOptions) (item *store.Item, removed bool, err error) {
	if err := invalidOptions("DeleteOptions", metav1validation.ValidateDeleteOptions(&opts)); err != nil {
		return nil, false, err
	}
	if q.resource() == jobs && opts.OrphanDependents == nil && opts.PropagationPolicy == nil { //nolint:staticcheck // clients still send it
		warning.AddWarning(ctx, "", jobOrphanWarning)
	}
	dryRun := isDryRun(opts.DryRun)
	if ptr.Deref(opts.IgnoreStoreReadErrorWithClusterBreakingPotential, false) {
		return nil, true, r.deleteUnreadable(ctx, q, dryRun)
	}
	var judged *store.Item
	err = r.write(ctx, "Delete etcd3", dryRun, func(tx *store.Tx) (err error) {
		attempt := *opts.DeepCopy() // an attempt fills in the grace period
		item, removed, err = r.deleteIn(ctx, tx, q, &attempt, dryRun, &judged)
		return err
	}, &item)
	if err != nil {
		return nil, false, status(err, q.asked(), q.Name)
	}
	if dryRun && !removed && item.Object != judged.Object {
		item.Object.SetResourceVersion(judged.Object.GetResourceVersion()) // nothing else is to be told
	}
	return item, removed, nil
}

// deleteIn deletes in a transaction. Judged is the state whose deletion admission
// let pass in an earlier run.
func (r *Registry) deleteIn(ctx context.Context, tx *store.Tx, q *Request, opts *metav1.DeleteOptions, dryRun bool, judged **store.Item) (*store.Item, bool, error) {
	existing, err := tx.Get(q.key())
	if err != nil {
		return nil, false, err
	}
	old := existing.Object
	if err := checkPreconditions(q, old, opts); err != nil {
		return nil, false, err
	}
	if old, err = q.load(existing); err != nil {
		return nil, false, err
	}
	attrs := r.attributes(q, admissionv1.Delete, nil, old, opts, dryRun)
	if *judged != existing {
		if err := r.admission.Admit(ctx, attrs); err != nil {
			return nil, false, err
		}
		if err := r.admission.Validate(ctx, attrs); err != nil {
			return nil, false, err
		}
		*judged = existing
	}
	if err := r.admission.Commit(tx, attrs); err != nil {
		return nil, false, err
	}
	obj := existing.Object.DeepCopyObject().(apis.Object)
	if crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok && crd.DeletionTimestamp == nil {
		return r.deleteDefinition(tx, existing, crd)
	}
	if ns, ok := obj.(*corev1.Namespace); ok {
		return r.deleteNamespace(tx, q, existing, ns, opts)
	}
	return r.terminate(tx, q, existing, obj, opts)
}

func checkPreconditions(q *Request, obj apis.Object, opts *metav1.DeleteOptions) error {
	p := opts.Preconditions
	if p == nil {
		return nil
	}
	kind := schema.GroupResource{Group: q.View.Group, Resource: q.View.Kind}
	if ns, ok := obj.(*corev1.Namespace); ok && ns.DeletionTimestamp == nil {
		return checkUntouched(q, obj, p)
	}
	if p.UID != nil && *p.UID != obj.GetUID() {
		return conflict(kind, obj.GetName(), "the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *p.UID, obj.GetUID())
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != obj.GetResourceVersion() {
		return conflict(kind, obj.GetName(), "the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", *p.ResourceVersion, obj.GetResourceVersion())
	}
	return nil
}

// checkUntouched is checkPreconditions of a namespace's first delete, which is an update.
func checkUntouched(q *Request, obj apis.Object, p *metav1.Preconditions) error {
	switch {
	case p.UID != nil && *p.UID != obj.GetUID():
		return conflict(q.resource(), obj.GetName(), "Precondition failed: UID in precondition: %v, UID in object meta: %v", *p.UID, obj.GetUID())
	case p.ResourceVersion != nil && *p.ResourceVersion != obj.GetResourceVersion():
		return conflict(q.resource(), obj.GetName(), "Precondition failed: ResourceVersion in precondition: %v, ResourceVersion in object meta: %v", *p.ResourceVersion, obj.GetResourceVersion())
	}
	return nil
}

// terminate moves an object one step towards removal: obj, a copy of the stored
// one, becomes what is stored or what was removed.
func (r *Registry) terminate(tx *store.Tx, q *Request, existing *store.Item, obj apis.Object, opts *metav1.DeleteOptions) (*store.Item, bool, error) {
	graceful, pending := r.grace(q.View.Resource, obj, opts)
	if pending {
		return existing, false, nil
	}
	obj.SetFinalizers(garbageFinalizers(q.View.Dependents, obj, opts))
	switch {
	case len(obj.GetFinalizers()) > 0:
		if !graceful {
			r.markDeleting(obj)
		}
	case graceful && *opts.GracePeriodSeconds > 0:
	default:
		item, err := r.removeIn(tx, q, obj)
		return item, true, err
	}
	if equality.Semantic.DeepEqual(obj, existing.Object) {
		return existing, false, nil
	}
	item, err := tx.Put(existing.Key, obj)
	return item, false, err
}

// grace sets when a kind that stops gracefully has to be gone. Pending means that
// an earlier delete already set an end that is as early.
func (r *Registry) grace(res *apis.Resource, obj apis.Object, opts *metav1.DeleteOptions) (graceful, pending bool) {
	if s := opts.GracePeriodSeconds; s != nil && *s < 0 {
		opts.GracePeriodSeconds = ptr.To[int64](1)
	}
	if s := obj.GetDeletionGracePeriodSeconds(); s != nil && *s < 0 {
		obj.SetDeletionGracePeriodSeconds(ptr.To[int64](1))
	}
	if res.GracefulDelete == nil {
		return false, false
	}
	if obj.GetDeletionTimestamp() != nil {
		return r.shorten(obj, opts)
	}
	period := res.GracefulDelete(obj, opts)
	opts.GracePeriodSeconds = &period
	end := metav1.NewTime(r.now().Add(time.Duration(period) * time.Second))
	obj.SetDeletionTimestamp(&end)
	obj.SetDeletionGracePeriodSeconds(&period)
	if g := obj.GetGeneration(); g > 0 {
		obj.SetGeneration(g + 1)
	}
	return true, false
}

// shorten lets a later delete end the grace period earlier, never later.
func (r *Registry) shorten(obj apis.Object, opts *metav1.DeleteOptions) (graceful, pending bool) {
	set := obj.GetDeletionGracePeriodSeconds()
	if set == nil || *set == 0 {
		return false, false
	}
	if opts.GracePeriodSeconds == nil || *opts.GracePeriodSeconds >= *set {
		return false, true
	}
	period := *opts.GracePeriodSeconds
	end := metav1.NewTime(obj.GetDeletionTimestamp().Add(time.Duration(period-*set) * time.Second))
	if now := r.now(); end.Before(&now) {
		end = now
		if period != 0 { // the end has passed, but who stops the object still confirms with a zero period
			period = 1
		}
	}
	obj.SetDeletionTimestamp(&end)
	obj.SetDeletionGracePeriodSeconds(&period)
	opts.GracePeriodSeconds = ptr.To(period)
	return true, false
}

// markDeleting marks an object that only finalizers keep.
func (r *Registry) markDeleting(obj apis.Object) {
	now := r.now()
	t := obj.GetDeletionTimestamp()
	if g := obj.GetGeneration(); t == nil && g > 0 {
		obj.SetGeneration(g + 1)
	}
	if t == nil || t.After(now.Time) {
		obj.SetDeletionTimestamp(&now)
	}
	obj.SetDeletionGracePeriodSeconds(ptr.To[int64](0))
}

// garbageFinalizers returns the object's finalizers with those for the garbage
// collector as the delete wants them: orphan, foreground or neither.
func garbageFinalizers(dependents apis.Dependents, obj apis.Object, opts *metav1.DeleteOptions) []string {
	old := obj.GetFinalizers()
	kept := slices.DeleteFunc(slices.Clone(old), func(f string) bool {
		return f == metav1.FinalizerOrphanDependents || f == metav1.FinalizerDeleteDependents
	})
	if want := dependentsFinalizer(dependents, old, opts); want != "" {
		kept = append(kept, want)
	}
	if sameSet(kept, old) {
		return old
	}
	return kept
}

func sameSet(a, b []string) bool {
	for _, s := range a {
		if !slices.Contains(b, s) {
			return false
		}
	}
	for _, s := range b {
		if !slices.Contains(a, s) {
			return false
		}
	}
	return true
}

func dependentsFinalizer(dependents apis.Dependents, finalizers []string, opts *metav1.DeleteOptions) string {
	if dependents == apis.NoDependents {
		return ""
	}
	if orphan := opts.OrphanDependents; orphan != nil { //nolint:staticcheck // clients still send it
		if *orphan {
			return metav1.FinalizerOrphanDependents
		}
		return ""
	}
	if policy := opts.PropagationPolicy; policy != nil {
		switch *policy {
		case metav1.DeletePropagationOrphan:
			return metav1.FinalizerOrphanDependents
		case metav1.DeletePropagationForeground:
			return metav1.FinalizerDeleteDependents
		}
		return ""
	}
	for _, f := range finalizers {
		if f == metav1.FinalizerOrphanDependents || f == metav1.FinalizerDeleteDependents {
			return f
		}
	}
	if dependents == apis.DependentsOrphaned {
		return metav1.FinalizerOrphanDependents
	}
	return ""
}

// removeIn takes an object out of the store, with what its kind holds elsewhere.
// Last is the state that watchers see.
func (r *Registry) removeIn(tx *store.Tx, q *Request, last apis.Object) (*store.Item, error) {
	if hook := r.hooks[q.resource()]; hook.remove != nil {
		if err := hook.remove(tx, last); err != nil {
			return nil, err
		}
	}
	return tx.DeleteAs(store.Key{Resource: q.resource(), Namespace: last.GetNamespace(), Name: last.GetName()}, last)
}

// deleteNamespace marks a namespace as terminating. It is removed when the
// namespace controller has taken its finalizer from spec; one that has none stays
// until it is deleted once more.
func (r *Registry) deleteNamespace(tx *store.Tx, q *Request, existing *store.Item, ns *corev1.Namespace, opts *metav1.DeleteOptions) (*store.Item, bool, error) {
	if ns.DeletionTimestamp == nil {
		now := r.now()
		ns.DeletionTimestamp = &now
		ns.Status.Phase = corev1.NamespaceTerminating
		ns.Finalizers = namespaceFinalizers(ns.Finalizers, opts)
		item, err := tx.Put(existing.Key, ns)
		return item, false, err
	}
	if len(ns.Spec.Finalizers) > 0 {
		return existing, false, nil
	}
	return r.terminate(tx, q, existing, ns, opts)
}

// namespaceFinalizers adds or removes the orphan finalizer as the options say.
func namespaceFinalizers(old []string, opts *metav1.DeleteOptions) []string {
	kept := slices.DeleteFunc(slices.Clone(old), func(f string) bool { return f == metav1.FinalizerOrphanDependents })
	if dependentsFinalizer(apis.DependentsDeleted, old, opts) == metav1.FinalizerOrphanDependents {
		kept = append(kept, metav1.FinalizerOrphanDependents)
	}
	return kept
}

// mayRemove says whether an object without finalizers may go: a namespace only
// when its spec has none either.
func (r *Registry) mayRemove(q *Request, obj apis.Object) bool {
	ns, ok := obj.(*corev1.Namespace)
	return !ok || len(ns.Spec.Finalizers) == 0
}

// DeleteCollection deletes what the list options select, one object at a time,
// and returns the list of them as they were. It is not atomic.
func (r *Registry) DeleteCollection(ctx context.Context, q *Request, opts metav1.DeleteOptions, list metav1.ListOptions) (*ItemList, error) {
	if err := invalidOptions("DeleteOptions", metav1validation.ValidateDeleteOptions(&opts)); err != nil {
		return nil, err
	}
	if ptr.Deref(opts.IgnoreStoreReadErrorWithClusterBreakingPotential, false) {
		return nil, invalidOptions("DeleteOptions", field.ErrorList{field.Invalid(
			field.NewPath("ignoreStoreReadErrorWithClusterBreakingPotential"), true, "is not allowed with DELETECOLLECTION, try again after removing the option")})
	}
	if list.ResourceVersion != "" && !anyVersion(list.ResourceVersion) && list.ResourceVersionMatch == "" && list.Continue == "" {
		list.ResourceVersionMatch = metav1.ResourceVersionMatchExact // as of lists in pages
	}
	selected, err := r.List(ctx, q, list)
	if err != nil {
		return nil, err
	}
	for _, item := range selected.Items {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		one := *q
		one.Namespace, one.Name = item.Key.Namespace, item.Key.Name
		if _, _, err := r.Delete(ctx, &one, *opts.DeepCopy()); err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	return selected, nil
}
