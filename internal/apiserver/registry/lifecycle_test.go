package registry

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// gone reports whether an object is no longer stored.
func (w *world) gone(gvr schema.GroupVersionResource, name string) bool {
	_, err := w.admin.Get(w.ctx, in(gvr, name), metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

func (w *world) delete(t *testing.T, gvr schema.GroupVersionResource, name string, opts metav1.DeleteOptions) metav1.Object {
	t.Helper()
	obj, err := w.admin.Delete(w.ctx, in(gvr, name), opts)
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

func TestDeleteOfAnObjectWithFinalizers(t *testing.T) {
	w := newWorld(t)
	c := configMap("a", nil)
	c.Finalizers = []string{"example.com/hold"}
	w.create(configMaps, c)
	w.delete(t, configMaps, "a", metav1.DeleteOptions{})
	held := w.get(configMaps, "a").(*corev1.ConfigMap).DeepCopy()
	if held.DeletionTimestamp == nil || *held.DeletionGracePeriodSeconds != 0 {
		t.Fatalf("deletionTimestamp %v", held.DeletionTimestamp)
	}
	more := held.DeepCopy()
	more.Finalizers = append(more.Finalizers, "example.com/more")
	w.update(t, configMaps, more, "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted")
	held.Finalizers = nil
	w.update(t, configMaps, held, "")
	if !w.gone(configMaps, "a") {
		t.Error("still there without finalizers")
	}
}

func TestPropagationPolicy(t *testing.T) {
	tests := []struct {
		name string
		opts metav1.DeleteOptions
		want string // finalizer; "" for gone
	}{
		{"background removes at once", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}, ""},
		{"none removes at once", metav1.DeleteOptions{}, ""},
		{"orphan waits", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationOrphan)}, "orphan"},
		{"orphanDependents waits", metav1.DeleteOptions{OrphanDependents: ptr.To(true)}, "orphan"}, //nolint:staticcheck // still sent
		{"foreground waits", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}, "foregroundDeletion"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.create(deployments, deployment("web", 1))
			w.delete(t, deployments, "web", tt.opts)
			if tt.want == "" {
				if !w.gone(deployments, "web") {
					t.Fatal("still there")
				}
				return
			}
			d := w.get(deployments, "web")
			if f := d.GetFinalizers(); len(f) != 1 || f[0] != tt.want || d.GetDeletionTimestamp() == nil || d.GetGeneration() != 2 {
				t.Errorf("finalizers %v, generation %d", f, d.GetGeneration())
			}
		})
	}
}

func TestDeletePreconditions(t *testing.T) {
	w := newWorld(t)
	w.create(configMaps, configMap("a", nil))
	_, err := w.admin.Delete(w.ctx, in(configMaps, "a"), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID("x"))}})
	wantError(t, err, "the UID in the precondition (x) does not match the UID in record")
	_, err = w.admin.Delete(w.ctx, in(configMaps, "a"), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: ptr.To("x")}})
	wantError(t, err, "the ResourceVersion in the precondition (x) does not match the ResourceVersion in record")
	_, err = w.admin.Delete(w.ctx, in(configMaps, "b"), metav1.DeleteOptions{})
	wantError(t, err, `configmaps "b" not found`)
}

// bound makes a pod that runs on a node.
func (w *world) bound(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	w.create(podsV1, pod(name))
	_, err := w.admin.Create(w.ctx, in(podsV1, name, "binding"), &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Target: corev1.ObjectReference{Kind: "Node", Name: "n1"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := w.get(podsV1, name).(*corev1.Pod).DeepCopy()
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
	return w.update(t, podsV1, p, "", "status").(*corev1.Pod)
}

func TestBinding(t *testing.T) {
	w := newWorld(t)
	p := w.bound(t, "a")
	if p.Spec.NodeName != "n1" || p.Generation != 1 {
		t.Errorf("node %q, generation %d", p.Spec.NodeName, p.Generation)
	}
	if c := p.Status.Conditions[0]; c.Type != corev1.PodScheduled || c.Status != corev1.ConditionTrue {
		t.Errorf("condition %v", c)
	}
	_, err := w.admin.Create(w.ctx, in(podsV1, "a", "binding"), &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: "a"}, Target: corev1.ObjectReference{Name: "n2"}}, metav1.CreateOptions{})
	wantError(t, err, `Operation cannot be fulfilled on pods/binding "a": pod a is already assigned to node "n1"`)
	_, err = w.admin.Create(w.ctx, in(podsV1, "z", "binding"), &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: "z"}, Target: corev1.ObjectReference{Name: "n2"}}, metav1.CreateOptions{})
	wantError(t, err, `pods "z" not found`)
}

func TestGracefulPodDeletion(t *testing.T) {
	w := newWorld(t)
	w.create(podsV1, pod("unscheduled"))
	w.delete(t, podsV1, "unscheduled", metav1.DeleteOptions{})
	if !w.gone(podsV1, "unscheduled") {
		t.Error("an unscheduled pod waits for its grace period")
	}

	p := w.bound(t, "a")
	w.delete(t, podsV1, "a", metav1.DeleteOptions{})
	dying := w.get(podsV1, "a").(*corev1.Pod)
	if *dying.DeletionGracePeriodSeconds != 30 || dying.Generation != 2 ||
		!dying.DeletionTimestamp.Time.Equal(w.clock.Now().Truncate(time.Second).Add(30*time.Second)) {
		t.Fatalf("grace %v, timestamp %v, generation %d", *dying.DeletionGracePeriodSeconds, dying.DeletionTimestamp, dying.Generation)
	}
	w.delete(t, podsV1, "a", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](60)})
	if w.get(podsV1, "a") != dying {
		t.Error("a later delete changed a grace period that is shorter")
	}
	w.delete(t, podsV1, "a", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](5)})
	if short := w.get(podsV1, "a").(*corev1.Pod); *short.DeletionGracePeriodSeconds != 5 ||
		!short.DeletionTimestamp.Time.Equal(w.clock.Now().Truncate(time.Second).Add(5*time.Second)) {
		t.Errorf("grace %v, timestamp %v", *short.DeletionGracePeriodSeconds, short.DeletionTimestamp)
	}
	w.delete(t, podsV1, "a", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &p.UID}})
	if !w.gone(podsV1, "a") {
		t.Error("the node agent's delete left the pod")
	}
}

func TestNamespaceDeletion(t *testing.T) {
	w := newWorld(t)
	w.create(namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}})
	w.delete(t, namespaces, "team", metav1.DeleteOptions{})
	ns := w.get(namespaces, "team").(*corev1.Namespace).DeepCopy()
	if ns.Status.Phase != corev1.NamespaceTerminating || ns.DeletionTimestamp == nil {
		t.Fatalf("phase %s", ns.Status.Phase)
	}
	ns.Spec.Finalizers = nil
	w.update(t, namespaces, ns, "", "finalize")
	if !w.gone(namespaces, "team") {
		t.Error("still there after finalize")
	}
}

func TestDeleteCollection(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		c := configMap(name, nil)
		c.Labels = map[string]string{"keep": map[bool]string{true: "yes", false: "no"}[name == "b"]}
		w.create(configMaps, c)
	}
	err := w.admin.DeleteCollection(w.ctx, in(configMaps, ""), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "keep=no"})
	if err != nil || !w.gone(configMaps, "a") || w.gone(configMaps, "b") || !w.gone(configMaps, "c") {
		t.Error(err)
	}
}

func TestEviction(t *testing.T) {
	budget := func(w *world, change func(*policyv1.PodDisruptionBudget)) {
		gvr := schema.GroupVersionResource{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"}
		pdb := w.create(gvr, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{GenerateName: "pdb-"},
			Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}).(*policyv1.PodDisruptionBudget).DeepCopy()
		pdb.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: 1, CurrentHealthy: 1, DesiredHealthy: 1, ExpectedPods: 1}
		change(pdb)
		if _, err := w.admin.Update(w.ctx, in(gvr, pdb.Name, "status"), pdb, metav1.UpdateOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}
	tests := []struct {
		name    string
		budgets []func(*policyv1.PodDisruptionBudget)
		want    string // cause or message; "" for evicted
	}{
		{"without a budget", nil, ""},
		{"within the budget", []func(*policyv1.PodDisruptionBudget){func(*policyv1.PodDisruptionBudget) {}}, ""},
		{"over the budget", []func(*policyv1.PodDisruptionBudget){func(p *policyv1.PodDisruptionBudget) { p.Status.DisruptionsAllowed = 0 }},
			"needs 1 healthy pods and has 1 currently"},
		{"of a budget not yet seen by its controller", []func(*policyv1.PodDisruptionBudget){func(p *policyv1.PodDisruptionBudget) { p.Status.ObservedGeneration = 0 }},
			"is still being processed by the server."},
		{"of two budgets", []func(*policyv1.PodDisruptionBudget){func(*policyv1.PodDisruptionBudget) {}, func(*policyv1.PodDisruptionBudget) {}},
			"This pod has more than one PodDisruptionBudget"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.bound(t, "a")
			for _, b := range tt.budgets {
				budget(w, b)
			}
			_, err := w.admin.Create(w.ctx, in(podsV1, "a", "eviction"), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
			if tt.want == "" {
				if err != nil || w.get(podsV1, "a").GetDeletionTimestamp() == nil {
					t.Fatal(err)
				}
				return
			}
			status, ok := err.(*apierrors.StatusError)
			if !ok {
				t.Fatal(err)
			}
			if apierrors.IsTooManyRequests(err) {
				causes := status.ErrStatus.Details.Causes
				wantError(t, &apierrors.StatusError{ErrStatus: metav1.Status{Message: causes[len(causes)-1].Message}}, tt.want)
				return
			}
			wantError(t, err, tt.want)
		})
	}
}
