package policy

import (
	"errors"
	"reflect"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
	"proa/internal/store"
)

// findParams returns the objects that a reference names or selects, in the order
// of their names and in the version that the policy asks for.
func findParams(sn *store.Snapshot, view apis.View, namespace string, ref *admissionregistrationv1.ParamRef) ([]runtime.Object, error) {
	if ref.Name != "" {
		item, err := sn.Get(store.Key{Resource: view.GroupResource(), Namespace: namespace, Name: ref.Name})
		if errors.Is(err, store.ErrNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		param, err := versioned(view, item.Object)
		return []runtime.Object{param}, err
	}
	selector, err := metav1.LabelSelectorAsSelector(ref.Selector)
	if err != nil {
		return nil, err
	}
	var found []runtime.Object
	sn.Range(view.GroupResource(), namespace, store.Key{}, func(item *store.Item) bool {
		if !selector.Matches(labels.Set(item.Object.GetLabels())) {
			return true
		}
		var param runtime.Object
		if param, err = versioned(view, item.Object); err == nil {
			found = append(found, param)
		}
		return err == nil
	})
	return found, err
}

// versioned is a stored object in the version of a view, with its kind.
func versioned(view apis.View, stored apis.Object) (runtime.Object, error) {
	if view.Custom != nil {
		return view.Custom.Load(stored)
	}
	gvk, obj := view.GroupVersionKind(), stored
	if s := view.Served; s != nil {
		gvk = schema.GroupVersionKind{Group: s.Group, Version: s.Version, Kind: s.Kind}
		converted, err := s.FromHub(stored)
		if err != nil {
			return nil, err
		}
		obj = converted
	}
	from := reflect.ValueOf(obj).Elem()
	out := reflect.New(from.Type())
	out.Elem().Set(from)
	param := out.Interface().(runtime.Object)
	param.GetObjectKind().SetGroupVersionKind(gvk)
	return param, nil
}
