package registry

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/apis"
)

var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

func TestCustomResourcesTakeTheSamePath(t *testing.T) {
	w := newWorld(t)
	err := w.catalogue.Add(&apis.Resource{
		Group: "example.com", Version: "v1", Kind: "Widget", Plural: "widgets",
		New:     func() apis.Object { return &unstructured.Unstructured{Object: map[string]any{}} },
		NewList: func() runtime.Object { return &unstructured.UnstructuredList{} },
	})
	if err != nil {
		t.Fatal(err)
	}
	made := w.create(widgets, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": "a"}, "spec": map[string]any{"size": int64(1)},
	}}).(*unstructured.Unstructured)
	if made.GetUID() == "" || made.GetGeneration() != 1 || len(made.GetManagedFields()) != 1 {
		t.Fatalf("made %v", made)
	}
	obj, err := w.patch(widgets, "a", types.MergePatchType, `{"spec":{"size":2}}`)
	if err != nil || obj.GetGeneration() != 2 {
		t.Fatalf("%v, %v", obj, err)
	}
	obj, err = w.patch(widgets, "a", types.ApplyYAMLPatchType, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"colour":"red"}}`)
	if err != nil {
		t.Fatal(err)
	}
	if spec := obj.(*unstructured.Unstructured).Object["spec"].(map[string]any); spec["colour"] != "red" || spec["size"] != int64(2) {
		t.Errorf("spec %v", spec)
	}
	_, err = w.patch(widgets, "a", types.StrategicMergePatchType, `{}`)
	wantError(t, err, "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml")
	stale := made.DeepCopy()
	stale.SetResourceVersion("")
	_, err = w.admin.Update(w.ctx, in(widgets, "a"), stale, metav1.UpdateOptions{})
	wantError(t, err, "metadata.resourceVersion: Invalid value: 0: must be specified for an update")
}
