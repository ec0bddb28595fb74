// Package wire knows the forms in which a kind crosses the API: which Go type a
// served version has, how that form becomes the hub object the server works with,
// and how JSON is read into it, strictly or not.
package wire

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/warning"
	kjson "sigs.k8s.io/json"

	"proa/internal/apis"
	"proa/internal/apiserver/codec/jsonplan"
)

// Form is one served version of a kind.
type Form struct {
	schema.GroupVersionKind
	New func() apis.Object

	served *apis.Served      // nil: this is the hub version
	def    func(apis.Object) // hub defaults, nil: none
	custom *apis.Custom      // nil: a built-in kind
}

// Of returns the form that a view's clients speak.
func Of(v apis.View) Form {
	if v.Served == nil {
		return Hub(v.Resource)
	}
	s := v.Served
	return Form{
		GroupVersionKind: schema.GroupVersionKind{Group: s.Group, Version: s.Version, Kind: s.Kind},
		New:              s.New, served: s, def: v.Default,
	}
}

// Hub returns the form of a resource's hub version.
func Hub(r *apis.Resource) Form {
	return Form{GroupVersionKind: r.GroupVersionKind(), New: r.New, def: r.Default, custom: r.Custom}
}

// Body returns the form of a subresource's body: that of the object itself
// unless the subresource has a kind of its own.
func Body(v apis.View, sub *apis.Subresource) Form {
	if sub == nil || sub.New == nil {
		return Of(v)
	}
	gvk := schema.GroupVersionKind{Group: sub.Group, Version: sub.Version, Kind: sub.Kind}
	if sub.Version == "" {
		gvk.Group, gvk.Version = v.Group, v.Version
	}
	return Form{GroupVersionKind: gvk, New: sub.New}
}

// IsUnstructured says that objects of this form are custom resources.
func (f Form) IsUnstructured() bool {
	_, ok := f.New().(runtime.Unstructured)
	return ok
}

// Default fills absent fields of an object of this form.
func (f Form) Default(obj apis.Object) {
	switch {
	case f.served != nil && f.served.Default != nil:
		f.served.Default(obj)
	case f.served == nil && f.def != nil:
		f.def(obj)
	}
}

// ToHub turns an object of this form, which it may keep, into a defaulted hub
// object without TypeMeta.
func (f Form) ToHub(obj apis.Object) (apis.Object, error) {
	f.Default(obj)
	if f.served != nil {
		hub, err := f.served.ToHub(obj)
		if err != nil {
			return nil, fmt.Errorf("convert %s to the hub version: %w", f.GroupVersionKind, err)
		}
		if f.def != nil {
			f.def(hub)
		}
		obj = hub
	}
	return Bare(obj), nil
}

// FromHub returns a hub object in this form, TypeMeta set. The result may share
// everything but its TypeMeta with obj and must not be changed.
func (f Form) FromHub(obj apis.Object) (apis.Object, error) {
	if f.served != nil {
		out, err := f.served.FromHub(obj)
		if err != nil {
			return nil, fmt.Errorf("convert to %s: %w", f.GroupVersionKind, err)
		}
		return Typed(out, f.GroupVersionKind), nil
	}
	return Typed(obj, f.GroupVersionKind), nil
}

// Typed returns a shallow copy of obj with its TypeMeta set; a custom resource
// carries its own and is returned as it is.
func Typed(obj apis.Object, gvk schema.GroupVersionKind) apis.Object {
	if _, ok := obj.(runtime.Unstructured); ok {
		return obj
	}
	out := shallow(obj)
	out.GetObjectKind().SetGroupVersionKind(gvk)
	return out
}

// Detached returns a copy of a custom resource whose metadata can be set without
// touching obj; what lies below it and beside it is shared.
func Detached(obj apis.Object) apis.Object {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj
	}
	object := maps.Clone(u.Object)
	if meta, ok := object["metadata"].(map[string]any); ok {
		object["metadata"] = maps.Clone(meta)
	}
	return &unstructured.Unstructured{Object: object}
}

// Bare clears the TypeMeta of a built-in object in place and returns it.
func Bare(obj apis.Object) apis.Object {
	if _, ok := obj.(runtime.Unstructured); !ok {
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	return obj
}

func shallow(obj apis.Object) apis.Object {
	v := reflect.ValueOf(obj).Elem()
	out := reflect.New(v.Type())
	out.Elem().Set(v)
	return out.Interface().(apis.Object)
}

// Decode reads JSON into a new object of this form. With strict set it also
// returns what strict decoding complains about (unknown and duplicate fields) and
// leaves the verdict to the caller.
func (f Form) Decode(data []byte, strict bool) (obj apis.Object, complaints []error, err error) {
	obj = f.New()
	var into any = obj
	if u, ok := obj.(*unstructured.Unstructured); ok {
		u.Object = map[string]any{}
		into = &u.Object
	} else if jsonplan.Decode(data, obj) {
		return obj, nil, nil // there is nothing to complain about
	} else {
		obj = f.New()
		into = obj
	}
	if strict {
		complaints, err = kjson.UnmarshalStrict(data, into)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(data, into)
	}
	if err != nil {
		return obj, complaints, err
	}
	unknown, err := f.Coerce(obj, strict)
	return obj, append(complaints, unknown...), err
}

// Coerce drops from a decoded object what its schema does not know, with a
// complaint for each field when report is set. Built-in types need none: decoding
// has done so.
func (f Form) Coerce(obj apis.Object, report bool) (complaints []error, err error) {
	if f.custom == nil {
		return nil, nil
	}
	unknown, err := f.custom.Coerce(obj, report)
	for _, path := range unknown {
		complaints = append(complaints, fmt.Errorf("unknown field %q", path))
	}
	return complaints, err
}

// Strict says whether a fieldValidation directive wants complaints at all. The
// empty directive is Warn, as upstream's default.
func Strict(directive string) bool { return directive != metav1.FieldValidationIgnore }

// Warn tells of complaints about a body: those of the YAML decoder, which come as one
// text, one by one.
func Warn(ctx context.Context, complaints ...string) {
	for _, text := range complaints {
		for _, line := range lines(text) {
			warning.AddWarning(ctx, "", line)
		}
	}
}

func lines(text string) []string {
	const many = "yaml: unmarshal errors:\n"
	list, ok := strings.CutPrefix(strings.TrimPrefix(text, "error converting YAML to JSON: "), many)
	if !ok {
		return []string{text}
	}
	all := strings.Split(list, "\n")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}
