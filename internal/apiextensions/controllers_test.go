package apiextensions_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// Controllers that work on every kind learn of those that come later.
func TestControllersOfAllKindsFollow(t *testing.T) {
	w := newWorld(t)
	core := kubernetes.NewForConfigOrDie(w.config).CoreV1()
	if _, err := core.Namespaces().Create(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.establish(definition(t, "Namespaced", spec(size)))
	gone := func(name string) {
		t.Helper()
		events, err := w.in("v1", "default").Watch(w.ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil {
			t.Fatal(err)
		}
		defer events.Stop()
		if _, err := w.in("v1", "default").Get(w.ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return
		}
		for e := range events.ResultChan() {
			if e.Type == watch.Deleted {
				return
			}
		}
	}
	used := func(want string) {
		t.Helper()
		events, err := core.ResourceQuotas("default").Watch(w.ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer events.Stop()
		for e := range events.ResultChan() {
			q, ok := e.Object.(*corev1.ResourceQuota)
			if n := q.Status.Used["count/widgets.example.com"]; ok && n.String() == want {
				return
			}
		}
	}

	owner := w.create("spec: {}")
	dependent := widget(t, "dependent", "spec: {}")
	dependent.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Widget", Name: "a", UID: owner.GetUID()}})
	if _, err := w.in("v1", "default").Create(w.ctx, dependent, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"count/widgets.example.com": resource.MustParse("2")},
	}}
	if _, err := core.ResourceQuotas("default").Create(w.ctx, quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	used("2")
	_, err := w.in("v1", "default").Create(w.ctx, widget(t, "third", "spec: {}"), metav1.CreateOptions{})
	wantError(t, err, 403, "exceeded quota: q, requested: count/widgets.example.com=1, used: count/widgets.example.com=2, limited: count/widgets.example.com=2")

	if err := w.in("v1", "default").Delete(w.ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone("dependent")
	used("0")

	if _, err := w.in("v1", "default").Create(w.ctx, widget(t, "last", "spec: {}"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := core.Namespaces().Delete(w.ctx, "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone("last")
}
