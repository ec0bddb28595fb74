package registry

import (
	"context"
	"errors"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"

	"proa/internal/admission"
	"proa/internal/apis"
	"proa/internal/latency"
	"proa/internal/store"
	"proa/internal/tracing"
)

// nameAttempts is how often a name is generated before the client is told to try again.
const nameAttempts = 8

// errDryRun ends a transaction whose result is wanted but not its effect.
var errDryRun = errors.New("dry run")

func isDryRun(dryRun []string) bool { return len(dryRun) > 0 }

// Create stores a new object, or passes a review or a subresource's body to
// whoever handles it. It owns obj. A nil item without an error means that the
// answer is a Status of success: a binding or an eviction was done.
func (r *Registry) Create(ctx context.Context, q *Request, obj apis.Object, opts metav1.CreateOptions) (*store.Item, error) {
	if len(opts.DryRun) > 0 || opts.FieldManager != "" || opts.FieldValidation != "" {
		if err := invalidOptions("CreateOptions", metav1validation.ValidateCreateOptions(&opts)); err != nil {
			return nil, err
		}
	}
	if h := r.handlers[endpoint{q.resource(), q.Subresource}]; h != nil {
		return r.handle(ctx, q, h, obj, opts)
	}
	if q.Subresource != "" {
		return nil, apierrors.NewMethodNotSupported(q.resource(), "create")
	}
	return r.create(ctx, q, obj, opts)
}

// handle serves a create that stores nothing under its own name.
func (r *Registry) handle(ctx context.Context, q *Request, h Handler, obj apis.Object, opts metav1.CreateOptions) (*store.Item, error) {
	if q.View.Scope == apis.Namespaced {
		if err := inNamespace(q, obj); err != nil {
			return nil, err
		}
	}
	if err := r.recordAsked(q, obj, opts.FieldManager); err != nil {
		return nil, err
	}
	if check := q.View.Validate; check != nil && q.Subresource == "" {
		if errs := check(ctx, obj); len(errs) > 0 {
			return nil, invalid(schema.GroupKind{Group: q.View.Group}, "", errs)
		}
	}
	result, err := h(ctx, q, obj, opts)
	if err != nil {
		return nil, status(err, q.resource(), q.Name)
	}
	if result == nil {
		return nil, nil
	}
	return store.NewItem(q.key(), result), nil
}

// TokenRequests is the kind of the body of serviceaccounts/token. It is never stored.
var TokenRequests = &apis.Resource{
	Group: "authentication.k8s.io", Version: "v1", Kind: "TokenRequest", Plural: "tokenrequests",
	New: apis.New[authenticationv1.TokenRequest],
	Default: apis.On(func(t *authenticationv1.TokenRequest) {
		if t.Spec.ExpirationSeconds == nil {
			t.Spec.ExpirationSeconds = new(int64(60 * 60))
		}
	}),
}

// recordAsked notes the fields of a review or a token request, which is answered
// with its status, as the client's.
func (r *Registry) recordAsked(q *Request, obj apis.Object, fieldManager string) error {
	view := q.View
	switch {
	case q.Subresource == "token":
		view = apis.View{Resource: TokenRequests}
		TokenRequests.Default(obj)
	case q.Subresource != "" || q.View.Group == "":
		return nil // the answer is a Status
	}
	m, err := r.managers.For(view, q.Subresource)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	m.Created(obj, q.manager(fieldManager))
	return nil
}

func (r *Registry) create(ctx context.Context, q *Request, obj apis.Object, opts metav1.CreateOptions) (*store.Item, error) {
	wipe(obj)
	if err := inNamespace(q, obj); err != nil {
		return nil, err
	}
	dryRun := isDryRun(opts.DryRun)
	if rv := obj.GetResourceVersion(); rv != "" && rv != "0" && !dryRun { // upstream's storage looks at it, which a dry run does not reach
		return nil, unknown("resourceVersion should not be set on objects to be created")
	}
	obj.SetResourceVersion("")
	if d := q.View.Default; d != nil {
		d(obj)
	}
	dedupOwners(ctx, obj, duplicateOwners)
	if err := r.recordCreated(q, obj, opts.FieldManager); err != nil {
		return nil, err
	}
	attrs := r.attributes(q, admissionv1.Create, obj, nil, &opts, dryRun)
	if err := r.admit(ctx, q, attrs); err != nil {
		return nil, err
	}
	dedupOwners(ctx, obj, duplicateOwnersAfterMutated)
	return r.insert(ctx, q, obj, attrs)
}

func (r *Registry) recordCreated(q *Request, obj apis.Object, fieldManager string) error {
	m, err := r.managers.For(q.View, q.Subresource)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	m.Created(obj, q.manager(fieldManager))
	return nil
}

// insert commits an admitted object, under up to nameAttempts names when the server picks the name.
func (r *Registry) insert(ctx context.Context, q *Request, obj apis.Object, attrs *admission.Attributes) (*store.Item, error) {
	generate := obj.GetGenerateName() != "" && obj.GetName() == ""
	hooked := r.hooked(q)
	for attempt := 1; ; attempt++ {
		if generate {
			obj.SetName(generateName(obj.GetGenerateName()))
		}
		var run struct {
			obj    apis.Object
			item   *store.Item
			judged bool
		}
		run.obj = obj
		err := r.write(ctx, "Create etcd3", attrs.DryRun, func(tx *store.Tx) (err error) {
			if hooked { // a hook writes what it allocates into the object; a run that conflicts gives it back
				run.obj, run.judged = obj.DeepCopyObject().(apis.Object), false
			}
			run.item, err = r.createIn(ctx, tx, q, run.obj, attrs, &run.judged)
			return err
		}, &run.item)
		if err == nil {
			return run.item, nil
		}
		if !errors.Is(err, store.ErrExists) {
			return nil, status(err, q.asked(), run.obj.GetName())
		}
		if !generate || attempt == nameAttempts {
			return nil, r.exists(q, run.obj, generate)
		}
	}
}

// hooked says that writes to the request's kind write other objects, too. Every run
// of their transaction starts from the beginning.
func (r *Registry) hooked(q *Request) bool {
	_, ok := r.hooks[q.resource()]
	return ok
}

// write runs a transaction. In a dry run nothing of it is kept, but *item, which
// fn sets, becomes an item that is not stored.
//
// The store does not hear of a transaction before fn returns, and nobody waits
// for fn: it may ask webhooks. What it found out about an object is kept when it
// has to run again and finds the object unchanged, so that a webhook judges every
// state of an object once, and the state it judged is the one that is committed.
func (r *Registry) write(ctx context.Context, span string, dryRun bool, fn func(tx *store.Tx) error, item **store.Item) (err error) {
	ctx, traced := tracing.Start(ctx, span)
	defer func() { traced.End(err) }()
	if spent := latency.Of(ctx); spent != nil {
		stop := spent.Track(latency.Store)
		judge := fn
		fn = func(tx *store.Tx) error { // what it takes is not the store's
			start := time.Now()
			defer func() { spent.Add(latency.Store, -time.Since(start)) }()
			return judge(tx)
		}
		defer stop()
	}
	_, err = r.store.Update(ctx, func(tx *store.Tx) error {
		err := fn(tx)
		if err == nil && dryRun {
			err = errDryRun
		}
		return err
	})
	if errors.Is(err, errDryRun) {
		*item = store.NewItem((*item).Key, (*item).Object)
		return nil
	}
	return err
}

// createIn is the part of a create that may depend on stored state. What is judged
// by an earlier run is only committed.
func (r *Registry) createIn(ctx context.Context, tx *store.Tx, q *Request, obj apis.Object, attrs *admission.Attributes, judged *bool) (*store.Item, error) {
	if err := inNamespace(q, obj); err != nil {
		return nil, err
	}
	if err := q.defined(tx); err != nil {
		return nil, err
	}
	if !*judged {
		if err := r.judgeCreate(ctx, tx, q, obj, attrs); err != nil {
			return nil, err
		}
		*judged = true
	}
	key := store.Key{Resource: q.resource(), Namespace: obj.GetNamespace(), Name: obj.GetName()}
	if _, err := tx.Get(key); err == nil {
		return nil, store.ErrExists // an invalid object is told so first, and no quota is charged
	}
	if err := r.admission.Commit(tx, attrs); err != nil {
		return nil, err
	}
	stored, err := q.stored(obj)
	if err != nil {
		return nil, err
	}
	return tx.Create(key, stored)
}

// judgeCreate completes a new object and lets everybody judge it.
func (r *Registry) judgeCreate(ctx context.Context, tx *store.Tx, q *Request, obj apis.Object, attrs *admission.Attributes) error {
	obj.SetCreationTimestamp(r.now())
	obj.SetUID(newUID())
	res, hook := q.View.Resource, r.hooks[q.resource()]
	if res.PrepareCreate != nil {
		res.PrepareCreate(obj)
	}
	if res.Requestor != nil {
		res.Requestor(obj, q.User)
	}
	if res.Stamp != nil {
		res.Stamp(obj, nil, r.now().Time)
	}
	if hook.create != nil {
		if err := hook.create(tx, obj); err != nil {
			return err
		}
	}
	if !res.NoGeneration && !res.GenerationFromZero {
		obj.SetGeneration(1)
	}
	if errs := validate(ctx, q.View, obj); len(errs) > 0 {
		return invalid(res.GroupVersionKind().GroupKind(), obj.GetName(), errs)
	}
	if res.Warnings != nil {
		for _, text := range res.Warnings(obj, nil) {
			warning.AddWarning(ctx, "", text)
		}
	}
	attrs.Object, attrs.Name = obj, obj.GetName()
	if err := r.admission.Validate(ctx, attrs); err != nil {
		return err
	}
	settle(res, obj)
	return nil
}

// settle gives an object that everybody agrees to the form it is stored in.
func settle(r *apis.Resource, obj apis.Object) {
	if r.Settle != nil {
		r.Settle(obj)
	}
}

// exists is the error for a name that is taken.
func (r *Registry) exists(q *Request, obj apis.Object, generated bool) error {
	err := apierrors.NewAlreadyExists(q.asked(), obj.GetName())
	if generated {
		err = apierrors.NewGenerateNameConflict(q.asked(), obj.GetName(), 1)
	}
	key := store.Key{Resource: q.resource(), Namespace: obj.GetNamespace(), Name: obj.GetName()}
	if item, getErr := r.store.Get(key); getErr == nil && item.Object.GetDeletionTimestamp() != nil {
		err.ErrStatus.Message = "object is being deleted: " + err.ErrStatus.Message
	}
	return err
}

func (r *Registry) attributes(q *Request, op admissionv1.Operation, obj, old apis.Object, opts runtime.Object, dryRun bool) *admission.Attributes {
	a := &admission.Attributes{
		Operation: op, Resource: q.View.Resource, Served: q.View.Served, Subresource: q.Subresource,
		Namespace: q.namespace(), Name: q.Name, Options: opts, User: q.User, DryRun: dryRun,
	}
	if q.resource().Group == "" && q.resource().Resource == "namespaces" {
		a.Namespace = q.Name // as upstream: a namespace is in itself
	}
	if obj != nil {
		a.Object = obj
		if a.Name == "" {
			a.Name = obj.GetName()
		}
	}
	if old != nil {
		a.OldObject = old
	}
	return a
}

// admit lets the mutating plugins complete the object and fills in what they left out.
func (r *Registry) admit(ctx context.Context, q *Request, a *admission.Attributes) error {
	if err := r.admission.Admit(ctx, a); err != nil {
		return err
	}
	if obj := a.Object; obj != nil && q.View.Default != nil {
		q.View.Default(obj)
	}
	return nil
}

// authorizeCreate checks that a write which turned into a create may be one.
func (r *Registry) authorizeCreate(ctx context.Context, q *Request) error {
	return r.authorize(ctx, q, "create", q.Name)
}

func (r *Registry) authorize(ctx context.Context, q *Request, verb, name string) error {
	return r.decide(ctx, authorization(q, verb, name))
}

// authorization is what an authorizer is asked about q.
func authorization(q *Request, verb, name string) authorizer.AttributesRecord {
	group, version := q.View.Group, q.View.Version
	if s := q.View.Served; s != nil {
		group, version = s.Group, s.Version
	}
	attrs := authorizer.AttributesRecord{
		User: q.User, Verb: verb, ResourceRequest: true, Namespace: q.namespace(), Name: name,
		APIGroup: group, APIVersion: version, Resource: q.View.Plural, Subresource: q.Subresource,
	}
	if group == "" && q.View.Plural == "namespaces" {
		attrs.Namespace = name
	}
	return attrs
}

func (r *Registry) decide(ctx context.Context, attrs authorizer.AttributesRecord) error {
	if r.authorizer == nil {
		return nil
	}
	decision, reason, err := r.authorizer.Authorize(ctx, attrs)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil && reason == "" {
		reason = err.Error()
	}
	return forbidden(&attrs, reason)
}
