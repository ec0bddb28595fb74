package registry

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"proa/internal/apis"
	"proa/internal/apiserver/apply"
	"proa/internal/apiserver/patch"
	"proa/internal/apiserver/wire"
	"proa/internal/store"
)

// Scales is the kind of a scale subresource's body. It is never stored.
var Scales = &apis.Resource{
	Group: "autoscaling", Version: "v1", Kind: "Scale", Plural: "scales",
	New: apis.New[autoscalingv1.Scale],
	Columns: []metav1.TableColumnDefinition{
		apis.Column("Name", "string", metav1.ObjectMeta{}.SwaggerDoc()["name"]),
		apis.Column("Desired", "integer", autoscalingv1.ScaleSpec{}.SwaggerDoc()["replicas"]),
		apis.Column("Available", "integer", autoscalingv1.ScaleStatus{}.SwaggerDoc()["replicas"]),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(s *autoscalingv1.Scale, now time.Time) []any {
		return []any{s.Name, s.Spec.Replicas, s.Status.Replicas, apis.AgeOf(s, now)}
	}),
}

// CustomScales is Scales as it is printed for custom resources.
var CustomScales = func() *apis.Resource {
	r := *Scales
	r.Columns = []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Desired", "integer", "Number of desired replicas"),
		apis.Column("Available", "integer", "Number of actual replicas"),
		apis.Column("Age", "date", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]),
	}
	return &r
}()

// scaleOf computes the scale of an object.
func scaleOf(sub *apis.Subresource, obj apis.Object) *autoscalingv1.Scale {
	return &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name: obj.GetName(), Namespace: obj.GetNamespace(), UID: obj.GetUID(),
			ResourceVersion: obj.GetResourceVersion(), CreationTimestamp: obj.GetCreationTimestamp(),
		},
		Spec:   autoscalingv1.ScaleSpec{Replicas: sub.Scale.Replicas(obj)},
		Status: autoscalingv1.ScaleStatus{Replicas: sub.Scale.StatusReplicas(obj), Selector: sub.Scale.Selector(obj)},
	}
}

func (r *Registry) scaleItem(q *Request, sub *apis.Subresource, item *store.Item) (*store.Item, error) {
	obj, err := q.load(item)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if missing := sub.Scale.Missing; missing != nil && missing(obj) {
		return nil, apierrors.NewInternalError(fmt.Errorf("the spec replicas field %q does not exist", replicasPath(q, sub)))
	}
	return store.NewItem(item.Key, scaleOf(sub, obj)), nil
}

// scaleHandler maps ownership of the object's replicas to that of the scale's.
func scaleHandler(q *Request, sub *apis.Subresource, obj apis.Object) *managedfields.ScaleHandler {
	if sub.Scale.Paths != nil {
		paths := managedfields.ResourcePathMappings{}
		for version, names := range sub.Scale.Paths {
			paths[version] = nil
			for _, name := range names {
				paths[version] = append(paths[version], fieldpath.PathElement{FieldName: &name})
			}
		}
		return managedfields.NewScaleHandler(obj.GetManagedFields(), wire.Of(q.View).GroupVersion(), paths)
	}
	replicas := fieldpath.MakePathOrDie("spec", "replicas")
	paths := managedfields.ResourcePathMappings{q.View.GroupVersionKind().GroupVersion().String(): replicas}
	for _, s := range q.View.Also {
		paths[schema.GroupVersion{Group: s.Group, Version: s.Version}.String()] = replicas
	}
	return managedfields.NewScaleHandler(obj.GetManagedFields(), wire.Of(q.View).GroupVersion(), paths)
}

// replicasPath is where an object has its replicas, as its definition says it.
func replicasPath(q *Request, sub *apis.Subresource) string {
	return "." + strings.Join(sub.Scale.Paths[q.View.GroupVersionKind().GroupVersion().String()], ".")
}

// noReplicas stands for replicas that an object does not have, while they are written.
const noReplicas = math.MinInt32

// scaleWrite is one write through a scale subresource.
type scaleWrite struct {
	sub     *apis.Subresource
	options *metav1.UpdateOptions
	uid     string
	// scale makes the new scale from the old one, managedFields included.
	scale func(ctx context.Context, m *apply.Manager, old *autoscalingv1.Scale) (apis.Object, error)
}

func (r *Registry) updateScale(ctx context.Context, q *Request, sub *apis.Subresource, obj apis.Object, opts metav1.UpdateOptions) (*store.Item, bool, error) {
	body, ok := obj.(*autoscalingv1.Scale)
	if !ok {
		return nil, false, apierrors.NewBadRequest("expected input object type to be Scale")
	}
	return r.writeScale(ctx, q, &scaleWrite{sub: sub, options: &opts, uid: string(body.UID),
		scale: func(_ context.Context, m *apply.Manager, old *autoscalingv1.Scale) (apis.Object, error) {
			scale := body.DeepCopy()
			m.Updated(scale, old, q.manager(opts.FieldManager))
			return scale, nil
		}})
}

func (r *Registry) patchScale(ctx context.Context, q *Request, sub *apis.Subresource, pt types.PatchType, data []byte, opts metav1.PatchOptions) (*store.Item, bool, error) {
	w := &scaleWrite{sub: sub, options: &metav1.UpdateOptions{DryRun: opts.DryRun, FieldManager: opts.FieldManager, FieldValidation: opts.FieldValidation}}
	if pt == types.ApplyYAMLPatchType {
		w.scale = func(ctx context.Context, m *apply.Manager, old *autoscalingv1.Scale) (apis.Object, error) {
			config, err := readApply(ctx, data, opts.FieldValidation)
			if err != nil {
				return nil, err
			}
			scale, err := applied(m.Apply(old, config, opts.FieldManager, opts.Force != nil && *opts.Force))
			if err != nil {
				return nil, err
			}
			return scale, sameScale(q, scale, old)
		}
		return r.writeScale(ctx, q, w)
	}
	p := &patch.Patch{Type: pt, Data: data, Form: wire.Hub(Scales), FieldValidation: opts.FieldValidation}
	w.scale = func(ctx context.Context, m *apply.Manager, old *autoscalingv1.Scale) (apis.Object, error) {
		scale, err := p.Apply(ctx, old)
		if err != nil {
			return nil, err
		}
		m.Updated(scale, old, q.manager(opts.FieldManager))
		return scale, sameScale(q, scale, old)
	}
	return r.writeScale(ctx, q, w)
}

// sameScale refuses a patch that would make the scale another object's.
func sameScale(q *Request, scale, old apis.Object) error {
	if err := named(q, scale); err != nil {
		return err
	}
	if uid := scale.GetUID(); uid != "" && uid != old.GetUID() {
		resource := q.resource()
		resource.Resource += "/scale"
		return conflict(resource, q.Name, "Precondition failed: UID in precondition: %v, UID in object meta: %v", uid, old.GetUID())
	}
	return nil
}

// writeScale changes the replicas of an object through its scale.
func (r *Registry) writeScale(ctx context.Context, q *Request, w *scaleWrite) (*store.Item, bool, error) {
	m, err := r.managers.For(apis.View{Resource: Scales}, "scale")
	if err != nil {
		return nil, false, apierrors.NewInternalError(err)
	}
	e := &edit{options: w.options, dryRun: isDryRun(w.options.DryRun), sub: w.sub, uid: w.uid}
	e.object = func(ctx context.Context, parent apis.Object) (apis.Object, error) {
		handler := scaleHandler(q, w.sub, parent)
		old := scaleOf(w.sub, parent)
		if missing := w.sub.Scale.Missing; missing != nil && missing(parent) {
			old.Spec.Replicas = noReplicas
		}
		if old.ManagedFields, err = handler.ToSubresource(); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		made, err := w.scale(ctx, m, old)
		if err != nil {
			return nil, err
		}
		scale, ok := made.(*autoscalingv1.Scale)
		if !ok {
			return nil, apierrors.NewBadRequest("expected input object type to be Scale")
		}
		e.body, e.oldBody = scale, old
		attrs := r.attributes(q, admissionv1.Update, scale, old, w.options, e.dryRun)
		if err := r.admission.Admit(ctx, attrs); err != nil {
			return nil, err
		}
		return r.scaled(q, w, handler, scale, parent)
	}
	item, _, err := r.edit(ctx, q, e)
	if err != nil {
		return nil, false, err
	}
	item, err = r.scaleItem(q, w.sub, item)
	return item, false, err
}

// scaled returns parent with what scale says.
func (r *Registry) scaled(q *Request, w *scaleWrite, handler *managedfields.ScaleHandler, scale *autoscalingv1.Scale, parent apis.Object) (apis.Object, error) {
	if scale.Spec.Replicas == noReplicas {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the spec replicas field %q cannot be empty", replicasPath(q, w.sub)))
	}
	if scale.Spec.Replicas < 0 && q.View.Custom == nil { // that of a custom resource is judged where it lies
		return nil, invalid(Scales.GroupVersionKind().GroupKind(), scale.Name, field.ErrorList{
			field.Invalid(field.NewPath("spec", "replicas"), scale.Spec.Replicas, "must be greater than or equal to 0")})
	}
	obj := parent.DeepCopyObject().(apis.Object)
	w.sub.Scale.SetReplicas(obj, scale.Spec.Replicas)
	if scale.ResourceVersion != "" {
		obj.SetResourceVersion(scale.ResourceVersion)
	}
	entries, err := handler.ToParent(scale.ManagedFields)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	obj.SetManagedFields(entries)
	return obj, nil
}
