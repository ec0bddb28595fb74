package workloads

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func budget(name string, minAvailable int) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels(name)},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt(minAvailable)), Selector: selector(name)},
	}
}

func (c *cluster) createBudget(b *policyv1.PodDisruptionBudget) {
	c.t.Helper()
	must(c.PolicyV1().PodDisruptionBudgets(ns).Create(c.ctx, b, metav1.CreateOptions{}))(c)
}

func (c *cluster) budgetUntil(name string, ok func(*policyv1.PodDisruptionBudget) error) *policyv1.PodDisruptionBudget {
	c.t.Helper()
	l := until(c, c.PolicyV1().PodDisruptionBudgets(ns), named(name), func(l *policyv1.PodDisruptionBudgetList) error {
		if len(l.Items) != 1 {
			return fmt.Errorf("no budget %s", name)
		}
		return all(want("generation", l.Items[0].Status.ObservedGeneration, l.Items[0].Generation), ok(&l.Items[0]))
	})
	return &l.Items[0]
}

func (c *cluster) evict(pod string) error {
	return c.CoreV1().Pods(ns).EvictV1(c.ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: ns}, DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: new(int64)},
	})
}

func TestVerbsOfDisruptionBudgets(t *testing.T) {
	c := start(t, 1)
	budgets := c.PolicyV1().PodDisruptionBudgets(ns)
	c.createBudget(budget("web", 1))
	c.budgetUntil("web", func(b *policyv1.PodDisruptionBudget) error { return want("allowed", b.Status.DisruptionsAllowed, 0) })
	updated := edit(c, budgets, "web", func(b *policyv1.PodDisruptionBudget) { b.Spec.MinAvailable = new(intstr.FromString("50%")) })
	if updated.Spec.MinAvailable.String() != "50%" || updated.Generation != 2 {
		t.Errorf("updated: %+v", updated)
	}
	c.budgetUntil("web", func(*policyv1.PodDisruptionBudget) error { return nil })
	patched := must(budgets.Patch(c.ctx, "web", types.MergePatchType, []byte(`{"spec":{"minAvailable":2}}`), metav1.PatchOptions{}))(c)
	if patched.Spec.MinAvailable.IntValue() != 2 {
		t.Errorf("patched: %+v", patched)
	}
	c.budgetUntil("web", func(*policyv1.PodDisruptionBudget) error { return nil })
	c.ok(budgets.Delete(c.ctx, "web", metav1.DeleteOptions{}))
	if _, err := budgets.Get(c.ctx, "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("deleted: %v", err)
	}
}

func TestDisruptionBudgetsOfAllNamespaces(t *testing.T) {
	c := start(t, 1)
	must(c.CoreV1().Namespaces().Create(c.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{}))(c)
	for _, name := range []string{"a", "b", "c"} {
		b := budget(name, 1)
		b.Labels = labels("collected")
		c.createBudget(b)
	}
	c.createBudget(budget("kept", 1))
	other := budget("elsewhere", 1)
	other.Labels = labels("collected")
	must(c.PolicyV1().PodDisruptionBudgets("other").Create(c.ctx, other, metav1.CreateOptions{}))(c)
	count := func(in string, n int) {
		t.Helper()
		if l := must(c.PolicyV1().PodDisruptionBudgets(in).List(c.ctx, labelled("app=collected")))(c); len(l.Items) != n {
			t.Errorf("%d in namespace %q, want %d", len(l.Items), in, n)
		}
	}
	count("", 4)
	count(ns, 3)
	c.ok(c.PolicyV1().PodDisruptionBudgets(ns).DeleteCollection(c.ctx, metav1.DeleteOptions{}, labelled("app=collected")))
	count(ns, 0)
	count("", 1)
	must(c.PolicyV1().PodDisruptionBudgets(ns).Get(c.ctx, "kept", metav1.GetOptions{}))(c)
}

func TestStatusOfADisruptionBudget(t *testing.T) {
	c := start(t, 1)
	c.createReplicaSet(replicaSet("web", 3))
	pods := c.pods("app=web", readyPods(3))
	c.createBudget(budget("web", 1))
	c.budgetUntil("web", func(b *policyv1.PodDisruptionBudget) error {
		return all(want("allowed", b.Status.DisruptionsAllowed, 2), want("healthy", b.Status.CurrentHealthy, 3))
	})
	budgets := c.PolicyV1().PodDisruptionBudgets(ns)
	b := must(budgets.Get(c.ctx, "web", metav1.GetOptions{}))(c)
	b.Status.DisruptedPods = map[string]metav1.Time{pods[0].Name: metav1.NewTime(time.Now())}
	b.Spec.MinAvailable = new(intstr.FromInt(2))
	if b = must(budgets.UpdateStatus(c.ctx, b, metav1.UpdateOptions{}))(c); b.Spec.MinAvailable.IntValue() != 1 {
		t.Error("an update of the status changed the spec")
	}
	// The controller takes what is being disrupted off what may be.
	b = c.budgetUntil("web", func(b *policyv1.PodDisruptionBudget) error {
		return all(want("allowed", b.Status.DisruptionsAllowed, 1), want("disrupted", len(b.Status.DisruptedPods), 1))
	})
	patch := fmt.Sprintf(`{"status":{"disruptedPods":{%q:%q}}}`, pods[1].Name, time.Now().UTC().Format(time.RFC3339))
	must(budgets.Patch(c.ctx, "web", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"))(c)
	c.budgetUntil("web", func(b *policyv1.PodDisruptionBudget) error {
		return all(want("allowed", b.Status.DisruptionsAllowed, 0), want("disrupted", len(b.Status.DisruptedPods), 2))
	})
}

// KEP-3017.
func TestUnhealthyPodsUnderABudget(t *testing.T) {
	c := start(t, 0)
	budgets := c.PolicyV1().PodDisruptionBudgets(ns)
	unknown := budget("web", 3)
	unknown.Spec.UnhealthyPodEvictionPolicy = new(policyv1.UnhealthyPodEvictionPolicyType("Sometimes"))
	_, err := budgets.Create(c.ctx, unknown, metav1.CreateOptions{})
	c.refused(err, `spec.unhealthyPodEvictionPolicy: Unsupported value: "Sometimes": supported values: "AlwaysAllow", "IfHealthyBudget"`)

	c.node("node")
	c.createReplicaSet(replicaSet("web", 3))
	names := func() (list []string) {
		for _, p := range c.pods("app=web", func(pods []corev1.Pod) error {
			for _, p := range pods {
				if p.Spec.NodeName == "" || p.DeletionTimestamp != nil {
					return fmt.Errorf("%s has no node, or goes", p.Name)
				}
			}
			return want("pods", len(pods), 3)
		}) {
			list = append(list, p.Name)
		}
		return list
	}
	for _, p := range names() {
		c.play(p, unready)
	}
	c.createBudget(budget("web", 2))
	healthy := func(n int32) {
		t.Helper()
		c.budgetUntil("web", func(b *policyv1.PodDisruptionBudget) error { return want("healthy", b.Status.CurrentHealthy, n) })
	}
	refused := func(pod string) {
		t.Helper()
		if err := c.evict(pod); !apierrors.IsTooManyRequests(err) || !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
			t.Errorf("evict %s: %v, want 429", pod, err)
		}
	}
	healthy(0)
	pods := names()
	refused(pods[0]) // as when unset: 0 healthy of 2 desired

	c.play(pods[1], running(time.Now()))
	c.play(pods[2], running(time.Now()))
	healthy(2)
	refused(pods[1])       // ready pods follow the budget, and none can be spared
	c.ok(c.evict(pods[0])) // but the budget is healthy: what is not ready may go
	pending := names()     // with one in its place that does not run yet
	for _, p := range pending {
		if p != pods[1] && p != pods[2] {
			c.ok(c.evict(p)) // whatever the budget
		}
	}

	edit(c, budgets, "web", func(b *policyv1.PodDisruptionBudget) { b.Spec.UnhealthyPodEvictionPolicy = new(policyv1.AlwaysAllow) })
	pods = names()
	for _, p := range pods {
		c.play(p, unready)
	}
	healthy(0)
	c.ok(c.evict(pods[0]))
	pods = names()
	for _, p := range pods {
		c.play(p, running(time.Now()))
	}
	healthy(3)
	c.ok(c.evict(pods[0]))
	healthy(2)
	for _, p := range names() {
		if p == pods[1] || p == pods[2] {
			refused(p)
		}
	}

	// What has ended needs no budget.
	for i, code := range []int32{0, 1} {
		name := fmt.Sprintf("ended-%d", i)
		c.createPod(newPod(name, func(p *corev1.Pod) { p.Labels, p.Spec.RestartPolicy = labels("web"), corev1.RestartPolicyNever }))
		c.scheduled(name)
		c.play(name, exited(code))
		c.ok(c.evict(name))
	}
}
