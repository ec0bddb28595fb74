package objects

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"proa/pkg/proatest"
)

// TestAFinalizerOfANamespace holds the namespace until it is taken away, by the
// subresource that alone writes spec.finalizers.
func TestAFinalizerOfANamespace(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{Controllers: []string{"namespace-controller"}})
	ctx := within(t)
	namespaces := s.CoreV1().Namespaces()
	const finalizer = corev1.FinalizerName("e2e.example.com/fake")
	ns := must(namespaces.Get(ctx, space, metav1.GetOptions{}))(t)
	if !slices.Equal(ns.Spec.Finalizers, []corev1.FinalizerName{corev1.FinalizerKubernetes}) {
		t.Fatalf("a new namespace has the finalizers %v", ns.Spec.Finalizers)
	}
	w := must(namespaces.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + space, ResourceVersion: ns.ResourceVersion}))(t)
	defer w.Stop()

	ns.Spec.Finalizers = append(ns.Spec.Finalizers, finalizer)
	plain := must(namespaces.Update(ctx, ns, metav1.UpdateOptions{}))(t)
	if slices.Contains(plain.Spec.Finalizers, finalizer) {
		t.Error("a plain update writes spec.finalizers")
	}
	ns.ResourceVersion = plain.ResourceVersion
	added := must(namespaces.Finalize(ctx, ns, metav1.UpdateOptions{}))(t)
	if got := must(namespaces.Get(ctx, space, metav1.GetOptions{}))(t); !slices.Contains(added.Spec.Finalizers, finalizer) || !slices.Equal(got.Spec.Finalizers, added.Spec.Finalizers) {
		t.Errorf("answered are %v, read are %v", added.Spec.Finalizers, got.Spec.Finalizers)
	}
	if err := namespaces.Delete(ctx, space, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for { // until its content is gone and only the finalizer is left
		e := next(ctx, t, w)
		ns = e.Object.(*corev1.Namespace)
		if e.Type == watch.Deleted {
			t.Fatal("it went with its finalizer")
		}
		if slices.Equal(ns.Spec.Finalizers, []corev1.FinalizerName{finalizer}) {
			break
		}
	}
	if ns.Status.Phase != corev1.NamespaceTerminating {
		t.Errorf("its phase is %s", ns.Status.Phase)
	}
	ns.Spec.Finalizers = nil
	if without := must(namespaces.Finalize(ctx, ns, metav1.UpdateOptions{}))(t); len(without.Spec.Finalizers) != 0 {
		t.Errorf("left are the finalizers %v", without.Spec.Finalizers)
	}
	for next(ctx, t, w).Type != watch.Deleted {
	}
	if _, err := namespaces.Get(ctx, space, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("without finalizers it reads %v", err)
	}
}

func TestANamespaceIsUpdatedAndPatched(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	ctx := within(t)
	namespaces := s.CoreV1().Namespaces()
	ns := must(namespaces.Get(ctx, space, metav1.GetOptions{}))(t)
	if ns.Labels[corev1.LabelMetadataName] != space {
		t.Errorf("a new namespace has the labels %v", ns.Labels)
	}
	ns.Labels["updated"] = "yes"
	updated := must(namespaces.Update(ctx, ns, metav1.UpdateOptions{}))(t)
	patched := must(namespaces.Patch(ctx, space, types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"patched":"yes"}}}`), metav1.PatchOptions{}))(t)
	read := must(namespaces.Get(ctx, space, metav1.GetOptions{}))(t)
	if updated.Labels["updated"] != "yes" {
		t.Errorf("updated to %v", updated.Labels)
	}
	for _, got := range []*corev1.Namespace{patched, read} {
		if got.Labels["updated"] != "yes" || got.Labels["patched"] != "yes" || got.Labels[corev1.LabelMetadataName] != space {
			t.Errorf("patched to %v", got.Labels)
		}
	}
	if left := must(namespaces.List(ctx, metav1.ListOptions{LabelSelector: "patched=yes"}))(t); len(left.Items) != 1 {
		t.Errorf("the label lists %v", left.Items)
	}
}

func TestTheStatusOfANamespace(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	ctx := within(t)
	namespaces := s.CoreV1().Namespaces()
	var ns corev1.Namespace
	if err := s.CoreV1().RESTClient().Get().Resource("namespaces").Name(space).SubResource("status").Do(ctx).Into(&ns); err != nil {
		t.Fatal(err)
	}
	if ns.Status.Phase != corev1.NamespaceActive || len(ns.Status.Conditions) != 0 {
		t.Errorf("a new namespace is %v", ns.Status)
	}
	patch := `{"metadata":{"annotations":{"by":"patch"}},"spec":{"finalizers":["a.example.com/b"]},"status":{"conditions":[{"type":"StatusPatch","status":"True","reason":"E2E","message":"Patched by a test"}]}}`
	patched := must(namespaces.Patch(ctx, space, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"))(t)
	if len(patched.Status.Conditions) != 1 || patched.Status.Conditions[0].Type != "StatusPatch" || patched.Annotations["by"] != "patch" {
		t.Errorf("patched to %v, %v", patched.Annotations, patched.Status)
	}
	if !slices.Equal(patched.Spec.Finalizers, ns.Spec.Finalizers) {
		t.Errorf("a patch of the status changed the spec to %v", patched.Spec)
	}
	patched.Status.Conditions = append(patched.Status.Conditions, corev1.NamespaceCondition{
		Type: "StatusUpdate", Status: corev1.ConditionTrue, Reason: "E2E", Message: "Updated by a test",
	})
	must(namespaces.UpdateStatus(ctx, patched, metav1.UpdateOptions{}))(t)
	read := must(namespaces.Get(ctx, space, metav1.GetOptions{}))(t)
	if len(read.Status.Conditions) != 2 || read.Status.Conditions[1].Message != "Updated by a test" || read.Status.Phase != corev1.NamespaceActive {
		t.Errorf("updated to %v", read.Status)
	}
	read.Status.Conditions = nil
	if got := must(namespaces.Update(ctx, read, metav1.UpdateOptions{}))(t); len(got.Status.Conditions) != 2 {
		t.Errorf("a plain update changed the status to %v", got.Status)
	}
}
