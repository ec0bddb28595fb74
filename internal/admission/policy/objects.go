package policy

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/admission/review"
	"proa/internal/apis"
)

// objects tells the patchers what they have to know about the object's kind: how
// to make an empty one and what it is called.
type objects struct {
	r *review.Request
	v review.Version
}

func (o objects) GetObjectCreater() runtime.ObjectCreater { return o }

func (o objects) GetObjectTyper() runtime.ObjectTyper { return o }

// The patchers neither default nor convert.
func (o objects) GetObjectDefaulter() runtime.ObjectDefaulter                   { return nil }
func (o objects) GetObjectConvertor() runtime.ObjectConvertor                   { return nil }
func (o objects) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper { return nil }

func (o objects) New(schema.GroupVersionKind) (runtime.Object, error) { return o.r.Empty(o.v), nil }

func (o objects) ObjectKinds(runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	return []schema.GroupVersionKind{o.v.Kind}, false, nil
}

func (o objects) Recognizes(gvk schema.GroupVersionKind) bool { return gvk == o.v.Kind }

// asKind turns the result of a patch into the Go type of the object's kind. The
// object that was patched stays as it is.
func asKind(r *review.Request, v review.Version, patched runtime.Object) (apis.Object, error) {
	obj := r.Empty(v)
	u, generic := patched.(*unstructured.Unstructured)
	if _, custom := obj.(*unstructured.Unstructured); generic && !custom {
		return obj, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, obj)
	}
	return patched.DeepCopyObject().(apis.Object), nil
}
