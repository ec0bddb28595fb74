package namespace

import (
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis/builtin"
	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

const doomed = "doomed"

func start(w *controllertest.World) (stop func()) {
	stop = w.Start(func(c controllers.Config) []controllertest.Runner {
		return []controllertest.Runner{New(c, builtin.Catalogue())}
	})
	w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: doomed}})
	return stop
}

func podWith(finalizers ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: doomed, Finalizers: finalizers},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

func config(name string, finalizers ...string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: doomed, Finalizers: finalizers}}
}

func namespaces(w *controllertest.World) []string {
	var names []string
	for _, ns := range controllertest.List[*corev1.Namespace](w) {
		names = append(names, ns.Name)
	}
	return names
}

func condition(ns *corev1.Namespace, kind corev1.NamespaceConditionType) corev1.NamespaceCondition {
	for _, c := range ns.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NamespaceCondition{}
}

func TestANamespaceGoesWithAllThatIsInIt(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(config("a"))
		w.Create(config("b"))
		w.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: doomed}})
		w.Create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: doomed}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}}})
		w.Create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"}})
		w.Settle()
		if got := w.Writes(); len(got) != 0 {
			t.Errorf("wrote %v while nothing was deleted", got)
		}
		controllertest.Delete[*corev1.Namespace](w, doomed)
		if slices.Contains(namespaces(w), doomed) {
			t.Error("the namespace is still there")
		}
		if left := controllertest.List[*corev1.ConfigMap](w); len(left) != 1 || left[0].Name != "elsewhere" {
			t.Errorf("config maps left: %v", left)
		}
		if left := controllertest.List[*corev1.Service](w); len(left) != 0 {
			t.Errorf("services left: %v", left)
		}
	})
}

func TestNothingElseGoesBeforeThePods(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(podWith("example.com/hold"))
		w.Create(config("a"))
		controllertest.Delete[*corev1.Namespace](w, doomed)
		cm := controllertest.List[*corev1.ConfigMap](w)
		if len(cm) != 1 || cm[0].DeletionTimestamp != nil {
			t.Fatalf("config maps while a pod is held: %v", cm)
		}
		ns := controllertest.Get[*corev1.Namespace](w, doomed)
		if c := condition(ns, corev1.NamespaceContentRemaining); c.Status != corev1.ConditionTrue || c.Message != "Some resources are remaining: pods. has 1 resource instances" {
			t.Errorf("remaining: %+v", c)
		}
		if c := condition(ns, corev1.NamespaceFinalizersRemaining); c.Message != "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances" {
			t.Errorf("finalizers: %+v", c)
		}
		if c := condition(ns, corev1.NamespaceDeletionContentFailure); c.Status != corev1.ConditionFalse || c.Reason != "ContentDeleted" {
			t.Errorf("content: %+v", c)
		}
		pods := client.Of[*corev1.Pod](w.API)
		if _, err := pods.MergePatch(w.T.Context(), doomed, "pod", map[string]any{"metadata": map[string]any{"finalizers": nil}}); err != nil {
			t.Fatal(err)
		}
		if _, err := pods.Delete(w.T.Context(), doomed, "pod", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
			t.Log(err) // gone with its finalizer
		}
		w.Settle()
		if slices.Contains(namespaces(w), doomed) {
			t.Error("the namespace is still there after the last pod")
		}
	})
}

func TestFinalizersOfContentsAreWaitedFor(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(config("a", "example.com/hold"))
		controllertest.Delete[*corev1.Namespace](w, doomed)
		time.Sleep(time.Minute)
		w.Settle()
		written := w.Writes()
		if want := map[string]int{"update namespaces/status": 1}; !maps.Equal(written, want) {
			t.Errorf("wrote %v while waiting, want %v", written, want)
		}
		if _, err := client.Of[*corev1.ConfigMap](w.API).MergePatch(w.T.Context(), doomed, "a", map[string]any{"metadata": map[string]any{"finalizers": nil}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(longestWait)
		w.Settle()
		if slices.Contains(namespaces(w), doomed) {
			t.Error("the namespace is still there")
		}
	})
}

func TestANamespaceWithAFinalizerOfItsOwnStaysEmpty(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		controllertest.Change(w, doomed, func(ns *corev1.Namespace) { ns.Finalizers = []string{"example.com/hold"} })
		w.Create(config("a"))
		controllertest.Delete[*corev1.Namespace](w, doomed)
		ns := controllertest.Get[*corev1.Namespace](w, doomed)
		if len(ns.Spec.Finalizers) != 0 || ns.Status.Phase != corev1.NamespaceTerminating || len(ns.Status.Conditions) != len(fine) {
			t.Errorf("namespace: %+v %+v", ns.Spec, ns.Status)
		}
		if left := controllertest.List[*corev1.ConfigMap](w); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	})
}
