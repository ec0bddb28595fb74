package registry

import (
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"proa/internal/apis"
)

// checkedMeta is the metadata of a custom resource for validation, which looks at
// who manages fields but never at the fields. Reading those costs more than all else.
type checkedMeta struct {
	metav1.Object
	entries []metav1.ManagedFieldsEntry
}

// GetManagedFields returns the entries without their fields and times.
func (m checkedMeta) GetManagedFields() []metav1.ManagedFieldsEntry { return m.entries }

// metaOf returns what validation is to see of an object's metadata.
func metaOf(obj apis.Object) metav1.Object {
	raw, ok := rawManagers(obj)
	if !ok {
		return obj
	}
	entries := make([]metav1.ManagedFieldsEntry, len(raw))
	for i, item := range raw {
		object, ok := item.(map[string]any)
		if !ok {
			return obj
		}
		text := func(name string) string {
			s, isText := object[name].(string)
			ok = ok && (isText || object[name] == nil)
			return s
		}
		entries[i] = metav1.ManagedFieldsEntry{
			Manager: text("manager"), Operation: metav1.ManagedFieldsOperationType(text("operation")),
			FieldsType: text("fieldsType"), Subresource: text("subresource"),
		}
		if !ok {
			return obj
		}
	}
	return checkedMeta{obj, entries}
}

// rawManagers returns managedFields as they lie in a custom resource.
func rawManagers(obj apis.Object) ([]any, bool) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, false
	}
	meta, _ := u.Object["metadata"].(map[string]any)
	list, ok := meta["managedFields"].([]any)
	return list, ok
}

// sameManaged compares the managedFields of two objects without their times.
func sameManaged(obj, old apis.Object) bool {
	a, okA := rawManagers(obj)
	b, okB := rawManagers(old)
	if !okA || !okB {
		return sameManagers(obj.GetManagedFields(), old.GetManagedFields())
	}
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !sameRawManager(a[i], b[i]) {
			return false
		}
	}
	return true
}

func sameRawManager(a, b any) bool {
	x, okX := a.(map[string]any)
	y, okY := b.(map[string]any)
	if !okX || !okY {
		return sameValue(a, b)
	}
	for _, pair := range [2][2]map[string]any{{x, y}, {y, x}} {
		for name, v := range pair[0] {
			if other, ok := pair[1][name]; name != "time" && (!ok || !sameValue(v, other)) {
				return false
			}
		}
	}
	return true
}

// sameValue is reflect.DeepEqual for JSON values, in a fraction of its time.
func sameValue(a, b any) bool {
	switch a := a.(type) {
	case string:
		b, ok := b.(string)
		return ok && a == b
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) || (a == nil) != (b == nil) {
			return false
		}
		if reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() {
			return true
		}
		for name, v := range a {
			if other, ok := b[name]; !ok || !sameValue(v, other) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		return ok && (a == nil) == (b == nil) && slices.EqualFunc(a, b, sameValue)
	}
	return reflect.DeepEqual(a, b)
}
