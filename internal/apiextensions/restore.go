package apiextensions

import (
	"fmt"
	"reflect"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// accept checks that a webhook returned the object it was given, in the version
// it was asked for.
func accept(in, out *unstructured.Unstructured, to schema.GroupVersion) error {
	if got := out.GroupVersionKind().GroupVersion(); got != to {
		return fmt.Errorf("invalid groupVersion (expected %v, received %v)", to, got)
	}
	if in.GetKind() != out.GetKind() {
		return fmt.Errorf("invalid kind (expected %v, received %v)", in.GetKind(), out.GetKind())
	}
	if _, ok := out.Object["metadata"].(map[string]any); !ok {
		if out.Object["metadata"] == nil {
			return fmt.Errorf("missing metadata in converted object")
		}
		return fmt.Errorf("invalid metadata of type %T in converted object", out.Object["metadata"])
	}
	for _, same := range []struct{ what, in, out string }{
		{"name", in.GetName(), out.GetName()},
		{"namespace", in.GetNamespace(), out.GetNamespace()},
		{"UID", string(in.GetUID()), string(out.GetUID())},
	} {
		if same.in != same.out {
			return fmt.Errorf("must have the same %s: %v != %v", same.what, same.in, same.out)
		}
	}
	return nil
}

// restoreMeta gives a converted object the metadata it had, but for labels and
// annotations, which a webhook may change.
func restoreMeta(in, out *unstructured.Unstructured) error {
	answered := out.Object["metadata"].(map[string]any)
	original, _ := in.Object["metadata"].(map[string]any)
	meta, _ := runtime.DeepCopyJSONValue(map[string]any(original)).(map[string]any)
	if meta == nil {
		meta = map[string]any{}
	}
	out.Object["metadata"] = meta
	for _, name := range []string{"labels", "annotations"} {
		value := answered[name]
		if value == nil {
			delete(meta, name)
			continue
		}
		if err := checkStrings(name, value, meta[name]); err != nil {
			return err
		}
		meta[name] = value
	}
	return nil
}

// checkStrings validates labels or annotations that the webhook changed.
func checkStrings(name string, value, original any) error {
	m, ok := value.(map[string]any)
	if !ok {
		return fmt.Errorf("invalid metadata.%s of type %T in converted object", name, value)
	}
	texts := make(map[string]string, len(m))
	for k, v := range m {
		s, ok := v.(string)
		if !ok {
			return fmt.Errorf("metadata.%s[%s] must be a string, but is %T in converted object", name, k, v)
		}
		texts[k] = s
	}
	if reflect.DeepEqual(value, original) {
		return nil
	}
	if name == "labels" {
		return metav1validation.ValidateLabels(texts, field.NewPath("metadata", "labels")).ToAggregate()
	}
	return apivalidation.ValidateAnnotations(texts, field.NewPath("metadata", "annotation")).ToAggregate()
}
