package registry

import (
	"context"
	"errors"
	"strconv"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"

	"proa/internal/admission"
	"proa/internal/apis"
	"proa/internal/apiserver/wire"
	"proa/internal/store"
)

// conditional says that a write to the kind must name the resourceVersion it is based on.
func conditional(r *apis.Resource, obj apis.Object) bool {
	_, custom := obj.(runtime.Unstructured)
	return custom || r.ConditionalUpdate
}

// edit describes one write to one object for the pipeline that puts, patches
// and subresource writes share.
type edit struct {
	// object makes the new state from the stored one, which is nil when there is
	// none and must not be changed. It runs again when the stored state moved.
	object func(ctx context.Context, old apis.Object) (apis.Object, error)
	// record notes the writer's fields; nil when object has done so.
	record  func(obj, old apis.Object)
	uid     string // the object must have it; "" for any
	create  bool   // make the object when there is none
	options runtime.Object
	// createOptions are options in the form that a create has.
	createOptions *metav1.CreateOptions
	dryRun        bool
	sub           *apis.Subresource // nil: the object itself

	// body and oldBody are what admission sees in place of the object, set by
	// object once it has let the mutating plugins at them: a Scale.
	body, oldBody apis.Object

	draft *draft // of the last run
}

// draft is a new state that has been completed and judged.
type draft struct {
	from    *store.Item // the state it replaces; nil: there is none
	obj     apis.Object
	attrs   *admission.Attributes
	differs bool
	judged  bool
}

// Update replaces an object, or the part of it that a subresource writes. It owns obj.
func (r *Registry) Update(ctx context.Context, q *Request, obj apis.Object, opts metav1.UpdateOptions) (*store.Item, bool, error) {
	if len(opts.DryRun) > 0 || opts.FieldManager != "" || opts.FieldValidation != "" {
		if err := invalidOptions("UpdateOptions", metav1validation.ValidateUpdateOptions(&opts)); err != nil {
			return nil, false, err
		}
	}
	if err := inNamespace(q, obj); err != nil {
		return nil, false, err
	}
	if err := named(q, obj); err != nil {
		return nil, false, err
	}
	sub, err := r.subresource(q, "update")
	if err != nil {
		return nil, false, err
	}
	if sub != nil && sub.Scale != nil {
		return r.updateScale(ctx, q, sub, obj, opts)
	}
	if d := q.View.Default; d != nil {
		d(obj)
	}
	dedupOwners(ctx, obj, duplicateOwners)
	return r.edit(ctx, q, &edit{
		object: func(context.Context, apis.Object) (apis.Object, error) {
			return draftOf(obj), nil
		},
		record:  r.recorder(q, opts.FieldManager),
		uid:     string(obj.GetUID()),
		create:  q.View.AllowCreateOnUpdate && sub == nil,
		options: &opts, dryRun: isDryRun(opts.DryRun), sub: sub,
		createOptions: &metav1.CreateOptions{DryRun: opts.DryRun, FieldManager: opts.FieldManager, FieldValidation: opts.FieldValidation},
	})
}

// draftOf copies an object as far as a write changes it. Of a custom resource that
// is the metadata and which fields it has: whatever changes more makes a new object.
func draftOf(obj apis.Object) apis.Object {
	if _, custom := obj.(runtime.Unstructured); custom {
		return wire.Detached(obj)
	}
	return obj.DeepCopyObject().(apis.Object)
}

// recorder notes plain writes of the request's manager.
func (r *Registry) recorder(q *Request, fieldManager string) func(obj, old apis.Object) {
	return func(obj, old apis.Object) {
		m, err := r.managers.For(q.View, q.Subresource)
		if err != nil {
			obj.SetManagedFields(old.GetManagedFields())
			return
		}
		m.Updated(obj, old, q.manager(fieldManager))
	}
}

// subresource finds the subresource that a request names, nil for the object
// itself, and checks that it takes the verb.
func (r *Registry) subresource(q *Request, verb string) (*apis.Subresource, error) {
	if q.Subresource == "" {
		return nil, nil
	}
	sub := q.View.Subresource(q.Subresource)
	if sub == nil {
		return nil, apierrors.NewNotFound(q.resource(), q.Name)
	}
	for _, v := range sub.Verbs {
		if v == verb {
			return sub, nil
		}
	}
	return nil, apierrors.NewMethodNotSupported(q.resource(), verb)
}

// edit runs one write as a transaction.
func (r *Registry) edit(ctx context.Context, q *Request, e *edit) (item *store.Item, created bool, err error) {
	err = r.write(ctx, "GuaranteedUpdate etcd3", e.dryRun, func(tx *store.Tx) (err error) {
		item, created, err = r.editIn(ctx, tx, q, e)
		return err
	}, &item)
	if err != nil {
		return nil, false, status(err, q.asked(), q.Name)
	}
	if from := e.draft.from; from != nil && !e.dryRun {
		certificates().count(item.Object, from.Object)
	}
	if from := e.draft.from; e.dryRun && from != nil && item.Object != from.Object {
		item.Object.SetResourceVersion(from.Object.GetResourceVersion()) // nothing else is to be told
	}
	return item, created, nil
}

func (r *Registry) editIn(ctx context.Context, tx *store.Tx, q *Request, e *edit) (*store.Item, bool, error) {
	existing, err := tx.Get(q.key())
	if errors.Is(err, store.ErrNotFound) && e.create {
		item, err := r.createByEdit(ctx, tx, q, e)
		return item, true, err
	}
	if err != nil {
		return nil, false, err
	}
	if d := e.draft; d == nil || d.from != existing || r.hooked(q) {
		if e.draft, err = r.drafted(ctx, tx, q, e, existing); err != nil {
			return nil, false, err
		}
	}
	if err := r.admission.Commit(tx, e.draft.attrs); err != nil {
		return nil, false, err
	}
	item, err := r.put(tx, q, existing, e.draft.obj, e.draft.differs)
	return item, false, err
}

// drafted makes the new state of an object and lets everybody judge it.
func (r *Registry) drafted(ctx context.Context, tx *store.Tx, q *Request, e *edit, existing *store.Item) (*draft, error) {
	old, err := q.load(existing)
	if err != nil {
		return nil, err
	}
	if e.uid != "" && e.uid != string(old.GetUID()) {
		return nil, r.otherUID(q, e.uid, old.GetUID())
	}
	obj, err := e.object(ctx, old)
	if err != nil {
		return nil, err
	}
	if e.record != nil {
		e.record(obj, old)
	}
	attrs := r.attributes(q, admissionv1.Update, obj, old, e.options, e.dryRun)
	if e.body != nil {
		attrs.Object, attrs.OldObject = e.body, e.oldBody
	} else if err := r.admit(ctx, q, attrs); err != nil {
		return nil, err
	}
	dedupOwners(ctx, obj, duplicateOwnersAfterMutated)
	if err := checkVersion(q, obj, old); err != nil {
		return nil, err
	}
	differs, err := r.prepareUpdate(ctx, tx, q, e, obj, old)
	if err != nil {
		return nil, err
	}
	if err := r.admission.Validate(ctx, attrs); err != nil {
		return nil, err
	}
	settle(q.View.Resource, obj)
	return &draft{from: existing, obj: obj, attrs: attrs, differs: differs.any, judged: true}, nil
}

// otherUID refuses a write to another object than the one under the name.
func (r *Registry) otherUID(q *Request, want string, have types.UID) error {
	place := q.key().String()
	if r.config.Place != nil {
		place = r.config.Place(q.key())
	}
	return conflict(q.asked(), q.Name, "StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, "+
		"AdditionalErrorMsg: Precondition failed: UID in precondition: %v, UID in object meta: %v", place, want, have)
}

// checkVersion holds a write to the resourceVersion it names.
func checkVersion(q *Request, obj, old apis.Object) error {
	rv := obj.GetResourceVersion()
	if rv == "" || rv == "0" {
		if conditional(q.View.Resource, obj) {
			kind := schema.GroupKind{Group: q.View.Group, Kind: q.View.Plural}
			return invalid(kind, q.Name, field.ErrorList{
				field.Invalid(field.NewPath("metadata").Child("resourceVersion"), 0, "must be specified for an update")})
		}
		obj.SetResourceVersion(old.GetResourceVersion())
		return nil
	}
	if _, err := strconv.ParseUint(rv, 10, 64); err != nil {
		return unknown(err.Error())
	}
	if rv != old.GetResourceVersion() {
		return conflict(q.asked(), q.Name, optimisticLock)
	}
	return nil
}

// prepareUpdate carries over what a write may not change, counts the generation and validates.
func (r *Registry) prepareUpdate(ctx context.Context, tx *store.Tx, q *Request, e *edit, obj, old apis.Object) (change, error) {
	if err := inNamespace(q, obj); err != nil {
		return change{}, err
	}
	res := q.View.Resource
	obj.SetGeneration(old.GetGeneration())
	obj.SetSelfLink("")
	switch {
	case e.sub != nil && e.sub.PrepareUpdate != nil:
		e.sub.PrepareUpdate(obj, old)
	case res.PrepareUpdate != nil:
		res.PrepareUpdate(obj, old)
	}
	if res.Stamp != nil {
		res.Stamp(obj, old, r.now().Time)
	}
	keepSystemFields(obj, old)
	if hook := r.hooks[q.resource()]; hook.update != nil && e.sub == nil {
		if err := hook.update(tx, obj, old); err != nil {
			return change{}, err
		}
	}
	differs := difference(res, obj, old)
	if !res.NoGeneration && !res.FixedGeneration && q.Subresource != "status" && differs.spec {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
	if errs := validateUpdate(ctx, q.View, e.sub, obj, old); len(errs) > 0 {
		return change{}, invalid(res.GroupVersionKind().GroupKind(), obj.GetName(), errs)
	}
	if res.Warnings != nil && e.sub == nil {
		for _, text := range res.Warnings(obj, old) {
			warning.AddWarning(ctx, "", text)
		}
	}
	return differs, nil
}

func keepSystemFields(obj, old apis.Object) {
	if obj.GetUID() == "" {
		obj.SetUID(old.GetUID())
	}
	if t := old.GetCreationTimestamp(); !t.IsZero() {
		obj.SetCreationTimestamp(t)
	}
	if t := old.GetDeletionTimestamp(); !t.IsZero() {
		obj.SetDeletionTimestamp(t)
	}
	if s := old.GetDeletionGracePeriodSeconds(); s != nil && obj.GetDeletionGracePeriodSeconds() == nil {
		obj.SetDeletionGracePeriodSeconds(s)
	}
}

// put commits what changed: nothing when nothing did, and the removal of the
// object when its last finalizer went.
func (r *Registry) put(tx *store.Tx, q *Request, existing *store.Item, obj apis.Object, differs bool) (*store.Item, error) {
	removed := removable(obj, existing.Object) && r.mayRemove(q, obj)
	if !removed && !differs && !q.outdated(existing) && !tx.Outdated(existing) {
		return existing, nil
	}
	stored, err := q.stored(obj)
	if err != nil {
		return nil, err
	}
	if removed {
		return r.removeIn(tx, q, stored)
	}
	return tx.Put(existing.Key, stored)
}

// removable says that an update took the last thing that kept a deleted object.
func removable(obj, old apis.Object) bool {
	grace := old.GetDeletionGracePeriodSeconds()
	return len(obj.GetFinalizers()) == 0 && old.GetDeletionTimestamp() != nil && (grace == nil || *grace == 0)
}

// createByEdit makes the object that an apply or a PUT found missing.
func (r *Registry) createByEdit(ctx context.Context, tx *store.Tx, q *Request, e *edit) (*store.Item, error) {
	if d := e.draft; d == nil || d.from != nil || r.hooked(q) {
		d, err := r.draftedNew(ctx, q, e)
		if err != nil {
			return nil, err
		}
		e.draft = d
	}
	return r.createIn(ctx, tx, q, e.draft.obj, e.draft.attrs, &e.draft.judged)
}

func (r *Registry) draftedNew(ctx context.Context, q *Request, e *edit) (*draft, error) {
	obj, err := e.object(ctx, nil)
	if err != nil {
		return nil, err
	}
	if e.uid != "" {
		return nil, r.otherUID(q, e.uid, "")
	}
	if uid := obj.GetUID(); uid != "" {
		return nil, conflict(q.asked(), q.Name, "uid mismatch: the provided object specified uid %s, and no existing object was found", uid)
	}
	if err := r.authorizeCreate(ctx, q); err != nil {
		return nil, err
	}
	if e.record != nil {
		if err := r.recordCreated(q, obj, e.createOptions.FieldManager); err != nil {
			return nil, err
		}
	}
	attrs := r.attributes(q, admissionv1.Create, obj, nil, e.createOptions, e.dryRun)
	if err := r.admit(ctx, q, attrs); err != nil {
		return nil, err
	}
	dedupOwners(ctx, obj, duplicateOwnersAfterMutated)
	wipe(obj)
	obj.SetResourceVersion("")
	return &draft{obj: obj, attrs: attrs}, nil
}
