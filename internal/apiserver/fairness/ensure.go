package fairness

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
	"proa/internal/apis/flowcontrol"
	"proa/internal/client"
	"proa/internal/store"
)

// ensure makes the mandatory and the suggested objects, and keeps their specs as
// long as the user did not take them over; objects that were suggested once and are
// no more go away.
func (f *Fairness) ensure(ctx context.Context, sn *store.Snapshot) error {
	mandatoryLevels, mandatorySchemas := flowcontrol.Mandatory()
	levels, schemas := flowcontrol.Suggested()
	e := &ensurer{f: f, ctx: ctx, sn: sn}
	for _, o := range mandatoryLevels {
		keep(e, levelsResource, o, true)
	}
	for _, o := range levels {
		keep(e, levelsResource, o, false)
	}
	for _, o := range mandatorySchemas {
		keep(e, schemasResource, o, true)
	}
	for _, o := range schemas {
		keep(e, schemasResource, o, false)
	}
	for _, gr := range []schema.GroupResource{schemasResource, levelsResource} {
		e.forget(gr)
	}
	return errors.Join(e.errs...)
}

type ensurer struct {
	f    *Fairness
	ctx  context.Context
	sn   *store.Snapshot
	kept map[store.Key]bool
	errs []error
}

func (e *ensurer) note(verb string, obj apis.Object, err error) {
	if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) { // those come with an event
		e.errs = append(e.errs, fmt.Errorf("%s %T %s: %w", verb, obj, obj.GetName(), err))
	}
}

// keep makes one object, or puts its spec and its mark right.
func keep[T apis.Object](e *ensurer, gr schema.GroupResource, want T, mandatory bool) {
	if e.kept == nil {
		e.kept = map[store.Key]bool{}
	}
	key := store.Key{Resource: gr, Name: want.GetName()}
	e.kept[key] = true
	ref := client.Ref{Resource: gr.WithVersion("v1"), Name: want.GetName()}
	item, err := e.sn.Get(key)
	if err != nil {
		fresh := want.DeepCopyObject().(apis.Object)
		mark(fresh, true)
		_, err := e.f.config.API.Create(e.ctx, ref, fresh, metav1.CreateOptions{FieldManager: ensureManager})
		e.note("create", want, err)
		return
	}
	ours := automatic(item.Object)
	now := item.Object.DeepCopyObject().(apis.Object)
	if ours || mandatory {
		restore(now, want, ours)
	}
	mark(now, ours)
	if equality.Semantic.DeepEqual(now, item.Object) {
		return
	}
	_, err = e.f.config.API.Update(e.ctx, ref, now, metav1.UpdateOptions{FieldManager: ensureManager})
	e.note("update", want, err)
}

const ensureManager = "api-priority-and-fairness-config-producer-v1"

// automatic reports whether the server keeps an object's spec: as its mark says,
// or, where there is none, as long as nobody has changed it since it was made.
func automatic(o apis.Object) bool {
	if v, err := strconv.ParseBool(o.GetAnnotations()[flowcontrol.AutoUpdateAnnotation]); err == nil {
		return v
	}
	return o.GetGeneration() <= 1
}

func mark(o apis.Object, automatic bool) {
	if _, err := strconv.ParseBool(o.GetAnnotations()[flowcontrol.AutoUpdateAnnotation]); err == nil && !automatic {
		return // a user's word, however it is spelled
	}
	annotations := map[string]string{}
	for k, v := range o.GetAnnotations() {
		annotations[k] = v
	}
	annotations[flowcontrol.AutoUpdateAnnotation] = strconv.FormatBool(automatic)
	o.SetAnnotations(annotations)
}

// restore gives an object the spec that it should have. Of a mandatory level that
// the user has taken over, the numbers stay as they are.
func restore(o, want apis.Object, whole bool) {
	want = want.DeepCopyObject().(apis.Object)
	switch o := o.(type) {
	case *flowcontrolv1.FlowSchema:
		flowcontrol.FlowSchemas.Default(want)
		o.Spec = want.(*flowcontrolv1.FlowSchema).Spec
	case *flowcontrolv1.PriorityLevelConfiguration:
		flowcontrol.PriorityLevelConfigurations.Default(want)
		spec := want.(*flowcontrolv1.PriorityLevelConfiguration).Spec
		if !whole {
			keepNumbers(&spec, &o.Spec)
		}
		o.Spec = spec
	}
}

func keepNumbers(spec, old *flowcontrolv1.PriorityLevelConfigurationSpec) {
	if spec.Exempt != nil && old.Exempt != nil {
		spec.Exempt = old.Exempt
	}
	if spec.Limited != nil && old.Limited != nil {
		spec.Limited.NominalConcurrencyShares, spec.Limited.LendablePercent = old.Limited.NominalConcurrencyShares, old.Limited.LendablePercent
	}
}

// forget deletes objects that bear the server's mark and are none of its objects.
func (e *ensurer) forget(gr schema.GroupResource) {
	e.sn.Range(gr, "", store.Key{}, func(item *store.Item) bool {
		v, err := strconv.ParseBool(item.Object.GetAnnotations()[flowcontrol.AutoUpdateAnnotation])
		if err == nil && v && !e.kept[item.Key] {
			rv := item.Object.GetResourceVersion()
			ref := client.Ref{Resource: gr.WithVersion("v1"), Name: item.Key.Name}
			_, err := e.f.config.API.Delete(e.ctx, ref, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &rv}})
			e.note("delete", item.Object, err)
		}
		return true
	})
}
