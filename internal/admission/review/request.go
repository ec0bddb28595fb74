// Package review shows one write to those whom the user put in charge of it:
// webhooks and policies. They know a write by kind, resource and version, may
// speak another version than the client, and see objects as the API shows them.
// What they share is here: the versions of a write, which rules and selectors
// match it, and a cache of what is compiled from their configuration.
package review

import (
	"errors"
	"fmt"
	"reflect"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	k8sadmission "k8s.io/apiserver/pkg/admission"

	"proa/internal/admission"
	"proa/internal/apis"
	"proa/internal/store"
)

// Version is one of the group versions in which a write can be shown.
type Version struct {
	Kind     schema.GroupVersionKind
	Resource schema.GroupVersionResource

	resource *apis.Resource // of the kind in this version
	served   *apis.Served   // nil: the resource's own version
	body     bool           // of a subresource with a kind of its own, the same in every version
}

// Merge is the schema that an apply configuration of a custom resource is merged
// by; nil for a built-in kind.
func (v Version) Merge() managedfields.TypeConverter {
	if v.resource.Custom == nil {
		return nil
	}
	return v.resource.Custom.Merge()
}

// Request is one write, at one state of the store.
type Request struct {
	*admission.Attributes
	Snapshot *store.Snapshot
	Own      Version // the one that the client speaks

	catalogue *apis.Catalogue
	options   runtime.Object
}

// New returns the write that a describes.
func New(a *admission.Attributes, sn *store.Snapshot, catalogue *apis.Catalogue) *Request {
	r := &Request{Attributes: a, Snapshot: sn, catalogue: catalogue}
	r.Own = r.version(a.Resource, a.Served)
	if a.Operation != admissionv1.Connect {
		r.options = withKind(a.Options)
	}
	return r
}

// Equivalents are the other served versions of the write.
func (r *Request) Equivalents() []Version {
	own := r.Attributes.Resource
	if own.Custom != nil {
		return r.customEquivalents(own)
	}
	var out []Version
	if r.Served != nil && !own.Unserved {
		out = append(out, r.version(own, nil))
	}
	for i := range own.Also {
		if s := &own.Also[i]; s != r.Served {
			out = append(out, r.version(own, s))
		}
	}
	return out
}

// customEquivalents finds the other versions of a custom resource, each of which
// is a resource of its own.
func (r *Request) customEquivalents(own *apis.Resource) []Version {
	base, ok := r.catalogue.Stored(own.GroupResource())
	if !ok {
		return nil
	}
	var out []Version
	for _, res := range append([]*apis.Resource{base}, base.Versions...) {
		if res.Version != own.Version && !res.Unserved {
			out = append(out, r.version(res, nil))
		}
	}
	return out
}

func (r *Request) version(res *apis.Resource, s *apis.Served) Version {
	v := Version{Kind: res.GroupVersionKind(), Resource: res.GroupVersionResource(), resource: res, served: s}
	if s != nil {
		v.Kind = schema.GroupVersionKind{Group: s.Group, Version: s.Version, Kind: s.Kind}
		v.Resource.Group, v.Resource.Version = s.Group, s.Version
	}
	if sub := res.Subresource(r.Subresource); sub != nil && sub.Kind != "" {
		v.body, v.Kind.Kind = true, sub.Kind
		if sub.Version != "" {
			v.Kind.Group, v.Kind.Version = sub.Group, sub.Version
		}
	}
	if r.Operation == admissionv1.Connect && r.Options != nil {
		if kinds, _, err := apis.Scheme().ObjectKinds(r.Options); err == nil {
			v.body, v.Kind = true, kinds[0]
		}
	}
	return v
}

// Show returns the write in a version, in the form that expressions and
// AdmissionReviews are made from. The objects are shared and read-only.
func (r *Request) Show(v Version) (*k8sadmission.VersionedAttributes, error) {
	obj, err := r.shown(v, r.Object)
	if err != nil {
		return nil, err
	}
	old, err := r.shown(v, r.OldObject)
	if err != nil {
		return nil, err
	}
	if r.Operation == admissionv1.Connect {
		obj = withKind(r.Options)
	}
	shown := &k8sadmission.VersionedAttributes{VersionedKind: v.Kind}
	if obj != nil {
		shown.VersionedObject.Set(obj)
	}
	if old != nil {
		shown.VersionedOldObject.Set(old)
	}
	shown.Attributes = k8sadmission.NewAttributesRecord(obj, old, r.Own.Kind, r.Namespace, r.Name, r.Own.Resource, r.Subresource,
		k8sadmission.Operation(r.Operation), r.options, r.DryRun, r.User)
	return shown, nil
}

// shown is an object of the request in a version, with its kind; nil stays nil.
func (r *Request) shown(v Version, obj apis.Object) (runtime.Object, error) {
	if obj == nil {
		return nil, nil
	}
	var err error
	switch own := r.Attributes.Resource; {
	case v.body:
	case v.served != nil:
		obj, err = v.served.FromHub(obj)
	case own.Custom != nil && v.resource != own:
		obj, err = own.Custom.Convert(obj, v.Kind.Version)
	}
	if err != nil {
		return nil, fmt.Errorf("convert to %s: %w", v.Kind, err)
	}
	return typed(obj, v.Kind), nil
}

// Replace makes obj, an object in the given version, the one that is written. It
// keeps obj. Fields that it left out are defaulted, those that the schema of a
// custom resource does not know are dropped.
func (r *Request) Replace(v Version, obj apis.Object) error {
	obj, err := r.received(v, obj)
	if err != nil {
		return fmt.Errorf("convert %s: %w", v.Kind, err)
	}
	if res := r.Attributes.Resource; !v.body && res.Default != nil {
		res.Default(obj)
	}
	if _, custom := obj.(runtime.Unstructured); !custom {
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	into, from := reflect.ValueOf(r.Object), reflect.ValueOf(obj)
	if into.Type() != from.Type() {
		return fmt.Errorf("%s cannot become %s", into.Type(), from.Type())
	}
	into.Elem().Set(from.Elem()) // callers hold the pointer
	return nil
}

// received turns an object of a version into one as the request holds it.
func (r *Request) received(v Version, obj apis.Object) (apis.Object, error) {
	own := r.Attributes.Resource
	switch {
	case v.body:
		return obj, nil
	case v.served != nil:
		if v.served.Default != nil {
			v.served.Default(obj)
		}
		return v.served.ToHub(obj)
	case own.Custom == nil:
		return obj, nil
	case v.resource != own:
		converted, err := v.resource.Custom.Convert(obj, own.Version)
		if err != nil {
			return nil, err
		}
		obj = converted.DeepCopyObject().(apis.Object)
	}
	_, err := own.Custom.Coerce(obj, false)
	return obj, err
}

// Empty returns a new object of a version, to decode into.
func (r *Request) Empty(v Version) apis.Object {
	sub := r.Attributes.Resource.Subresource(r.Subresource)
	switch {
	case v.body && sub != nil && sub.New != nil:
		return sub.New()
	case v.served != nil:
		return v.served.New()
	}
	return v.resource.New()
}

// typed is a shallow copy of obj that says its kind; a custom resource carries its own.
func typed(obj apis.Object, gvk schema.GroupVersionKind) runtime.Object {
	if _, custom := obj.(runtime.Unstructured); custom {
		return obj
	}
	from := reflect.ValueOf(obj).Elem()
	out := reflect.New(from.Type())
	out.Elem().Set(from)
	copied := out.Interface().(runtime.Object)
	copied.GetObjectKind().SetGroupVersionKind(gvk)
	return copied
}

// withKind is a copy of options that says its kind.
func withKind(options runtime.Object) runtime.Object {
	if options == nil || reflect.ValueOf(options).IsNil() {
		return nil
	}
	out := options.DeepCopyObject()
	switch options.(type) {
	case *metav1.CreateOptions, *metav1.UpdateOptions, *metav1.PatchOptions, *metav1.DeleteOptions:
		kind := reflect.TypeOf(options).Elem().Name()
		out.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Group: metav1.GroupName, Version: "v1", Kind: kind})
	default:
		if kinds, _, err := apis.Scheme().ObjectKinds(options); err == nil {
			out.GetObjectKind().SetGroupVersionKind(kinds[0])
		}
	}
	return out
}

var namespaces = schema.GroupResource{Resource: "namespaces"}

// NamespaceObject returns the namespace that the write is in, nil for a cluster-scoped one.
func (r *Request) NamespaceObject() (*corev1.Namespace, error) {
	if r.Attributes.Namespace == "" || r.Attributes.Resource.GroupResource() == namespaces {
		return nil, nil
	}
	return r.namespace()
}

func (r *Request) namespace() (*corev1.Namespace, error) {
	item, err := r.Snapshot.Get(store.Key{Resource: namespaces, Name: r.Namespace})
	if errors.Is(err, store.ErrNotFound) {
		return nil, apierrors.NewNotFound(namespaces, r.Namespace)
	}
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return item.Object.(*corev1.Namespace), nil
}
