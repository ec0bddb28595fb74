package apply

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"proa/internal/apis"
	"proa/internal/apiserver/wire"
)

// converter shows the versions of one resource to structured-merge-diff: it
// converts, defaults and creates objects of them. Objects it returns have their
// TypeMeta set and may share fields with those it got.
type converter struct{ resource *apis.Resource }

func (c *converter) forms() []wire.Form {
	forms := []wire.Form{wire.Hub(c.resource)}
	for i := range c.resource.Also {
		forms = append(forms, wire.Of(apis.View{Resource: c.resource, Served: &c.resource.Also[i]}))
	}
	return forms
}

func (c *converter) form(gv schema.GroupVersion) (wire.Form, error) {
	for _, f := range c.forms() {
		if f.GroupVersion() == gv {
			return f, nil
		}
	}
	return wire.Form{}, runtime.NewNotRegisteredErrForKind("catalogue", gv.WithKind(c.resource.Kind))
}

// empty returns a hub object with nothing in it but, for a custom resource, its kind.
func (c *converter) empty() apis.Object {
	obj := c.resource.New()
	if _, ok := obj.(runtime.Unstructured); ok {
		obj.GetObjectKind().SetGroupVersionKind(c.resource.GroupVersionKind())
	}
	return obj
}

// ConvertToVersion implements runtime.ObjectConvertor.
func (c *converter) ConvertToVersion(in runtime.Object, to runtime.GroupVersioner) (runtime.Object, error) {
	gv, ok := to.(schema.GroupVersion)
	if !ok {
		return nil, fmt.Errorf("convert to %v: not one version", to)
	}
	if c.resource.Custom != nil {
		return c.custom(in, gv)
	}
	target, err := c.form(gv)
	if err != nil {
		return nil, err
	}
	obj, source, err := c.typed(in)
	if err != nil || source.GroupVersionKind == target.GroupVersionKind {
		return obj, err
	}
	if source.GroupVersionKind == c.resource.GroupVersionKind() {
		return target.FromHub(wire.Bare(obj)) // what is stored is complete, and what is empty stays so
	}
	if obj, err = source.ToHub(obj.DeepCopyObject().(apis.Object)); err != nil {
		return nil, err
	}
	return target.FromHub(obj)
}

// custom is ConvertToVersion for custom resources. What it returns may be given
// other metadata without harm to in.
func (c *converter) custom(in runtime.Object, to schema.GroupVersion) (runtime.Object, error) {
	obj, ok := in.(apis.Object)
	if !ok || to.Group != c.resource.Group {
		return nil, runtime.NewNotRegisteredErrForKind("custom resources", to.WithKind(c.resource.Kind))
	}
	converted, err := c.resource.Custom.Convert(obj, to.Version)
	if err != nil {
		return nil, err
	}
	return wire.Detached(converted), nil
}

// typed returns in as the Go type of its version, and that version.
func (c *converter) typed(in runtime.Object) (apis.Object, wire.Form, error) {
	gvk := in.GetObjectKind().GroupVersionKind()
	source := wire.Hub(c.resource)
	if !gvk.Empty() {
		var err error
		if source, err = c.form(gvk.GroupVersion()); err != nil {
			return nil, source, err
		}
	}
	u, ok := in.(*unstructured.Unstructured)
	if !ok {
		obj, isObject := in.(apis.Object)
		if !isObject {
			return nil, source, fmt.Errorf("%T is not an API object", in)
		}
		return wire.Typed(obj, source.GroupVersionKind), source, nil
	}
	if source.IsUnstructured() {
		return wire.Detached(u), source, nil
	}
	obj := source.New()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, obj); err != nil {
		return nil, source, err
	}
	return obj, source, nil
}

// Convert implements runtime.ObjectConvertor.
func (c *converter) Convert(in, out, context any) error {
	return errors.New("conversion into a given object is not offered")
}

// ConvertFieldLabel implements runtime.ObjectConvertor.
func (c *converter) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// Default implements runtime.ObjectDefaulter.
func (c *converter) Default(in runtime.Object) {
	if obj, ok := in.(apis.Object); ok && c.resource.Custom != nil {
		if in.GetObjectKind().GroupVersionKind().Version == c.resource.Version {
			c.resource.Default(obj)
		}
	} else if ok {
		if form, err := c.form(in.GetObjectKind().GroupVersionKind().GroupVersion()); err == nil {
			form.Default(obj)
		}
	}
}

// New implements runtime.ObjectCreater.
func (c *converter) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	if c.resource.Custom != nil {
		obj := c.resource.New()
		obj.GetObjectKind().SetGroupVersionKind(gvk)
		return obj, nil
	}
	form, err := c.form(gvk.GroupVersion())
	if err != nil {
		return nil, err
	}
	obj := form.New()
	obj.GetObjectKind().SetGroupVersionKind(form.GroupVersionKind)
	return obj, nil
}

// known uses the schema of the built-in kinds and deduces one for a kind that is
// not among them.
type known struct {
	managedfields.TypeConverter
	deduced managedfields.TypeConverter
}

func (k known) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	gvk := obj.GetObjectKind().GroupVersionKind()
	if !apis.Scheme().Recognizes(gvk) {
		return k.deduced.ObjectToTyped(obj, opts...)
	}
	return k.TypeConverter.ObjectToTyped(obj, opts...)
}
