package workloads

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

var background = metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}

func replicaSet(name string, replicas int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels(name)},
		Spec:       appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: selector(name), Template: template(name)},
	}
}

func (c *cluster) createReplicaSet(rs *appsv1.ReplicaSet) *appsv1.ReplicaSet {
	c.t.Helper()
	return must(c.AppsV1().ReplicaSets(ns).Create(c.ctx, rs, metav1.CreateOptions{}))(c)
}

// replicaSetOf waits for a ReplicaSet to be as it should.
func (c *cluster) replicaSetOf(name string, ok func(*appsv1.ReplicaSet) error) {
	c.t.Helper()
	until(c, c.AppsV1().ReplicaSets(ns), named(name), func(l *appsv1.ReplicaSetList) error {
		if len(l.Items) != 1 {
			return fmt.Errorf("no ReplicaSet %s", name)
		}
		return ok(&l.Items[0])
	})
}

func TestAReplicaSetScalesAndTakesAPatch(t *testing.T) {
	c := start(t, 2)
	sets := c.AppsV1().ReplicaSets(ns)
	c.createReplicaSet(replicaSet("web", 1))
	c.pods("app=web", readyPods(1))
	edit(c, sets, "web", func(rs *appsv1.ReplicaSet) { *rs.Spec.Replicas = 2 })
	c.pods("app=web", readyPods(2))
	patch := `{"metadata":{"labels":{"patched":"yes"}},"spec":{"replicas":3,"template":{"spec":{"terminationGracePeriodSeconds":7,"containers":[{"name":"c","image":"registry.example/app:2"}]}}}}`
	rs := must(sets.Patch(c.ctx, "web", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}))(c)
	if spec := rs.Spec.Template.Spec; rs.Labels["patched"] != "yes" || *spec.TerminationGracePeriodSeconds != 7 || spec.Containers[0].Image != "registry.example/app:2" {
		t.Errorf("patched: %+v", rs)
	}
	pods := c.pods("app=web", readyPods(3))
	images := map[string]int{}
	for _, p := range pods {
		images[p.Spec.Containers[0].Image]++
	}
	if images["registry.example/app:1"] != 2 || images["registry.example/app:2"] != 1 {
		t.Errorf("a ReplicaSet replaces no pods: %v", images)
	}
	c.replicaSetOf("web", func(rs *appsv1.ReplicaSet) error {
		return all(want("ready", rs.Status.ReadyReplicas, 3), want("available", rs.Status.AvailableReplicas, 3), want("generation", rs.Status.ObservedGeneration, rs.Generation))
	})
}

func TestScaleOfAReplicaSet(t *testing.T) {
	c := start(t, 1)
	c.createReplicaSet(replicaSet("web", 1))
	scaleOf(c, c.AppsV1().ReplicaSets(ns), "web", "app=web")
	c.replicaSetOf("web", func(rs *appsv1.ReplicaSet) error { return want("replicas", *rs.Spec.Replicas, 4) })
}

func TestAReplicaSetAdoptsAndReleasesPods(t *testing.T) {
	c := start(t, 1)
	c.createPod(newPod("web"))
	c.pod("web", func(p *corev1.Pod) error { return want("ready", isReady(p), true) })
	rs := c.createReplicaSet(replicaSet("web", 1))
	c.adoptsAndReleases("web", rs.UID, "ReplicaSet", "apps/v1")
}

// adoptsAndReleases checks that the owner of a pod found and keeps it, until its
// label goes; then it makes another.
func (c *cluster) adoptsAndReleases(pod string, owner types.UID, kind, version string) {
	c.t.Helper()
	adopted := c.pod(pod, func(p *corev1.Pod) error {
		ref := metav1.GetControllerOf(p)
		if ref == nil {
			return fmt.Errorf("pod %s has no controller", p.Name)
		}
		return all(want("controller", ref.UID, owner), want("kind", ref.Kind, kind), want("version", ref.APIVersion, version))
	})
	pods := must(c.CoreV1().Pods(ns).List(c.ctx, labelled("app="+pod)))(c)
	if len(pods.Items) != 1 {
		c.t.Errorf("%d pods beside the one adopted", len(pods.Items))
	}
	edit(c, c.CoreV1().Pods(ns), pod, func(p *corev1.Pod) { p.Labels = labels("released") })
	c.pod(pod, func(p *corev1.Pod) error {
		return all(want("owners", len(p.OwnerReferences), 0), want("is the same pod", p.UID, adopted.UID))
	})
	others := c.pods("app="+pod, readyPods(1))
	if ref := metav1.GetControllerOf(&others[0]); ref == nil || ref.UID != owner {
		c.t.Errorf("the pod in its place: %+v", ref)
	}
}

func TestReplicaSetsAreFoundByLabelAndRemovedTogether(t *testing.T) {
	c := start(t, 1)
	sets := c.AppsV1().ReplicaSets(ns)
	for i := range 3 {
		rs := replicaSet(fmt.Sprintf("web-%d", i), 1)
		rs.Labels = labels("collected")
		c.createReplicaSet(rs)
	}
	c.createReplicaSet(replicaSet("kept", 1))
	c.pods("app in (web-0,web-1,web-2)", readyPods(3))
	for _, list := range []*appsv1.ReplicaSetList{
		must(sets.List(c.ctx, labelled("app=collected")))(c), must(c.AppsV1().ReplicaSets("").List(c.ctx, labelled("app=collected")))(c),
	} {
		if len(list.Items) != 3 {
			t.Errorf("%d found by label", len(list.Items))
		}
	}
	c.ok(sets.DeleteCollection(c.ctx, background, labelled("app=collected")))
	gone(c, sets, labelled("app=collected"), func(l *appsv1.ReplicaSetList) int { return len(l.Items) })
	c.pods("app in (web-0,web-1,web-2)", anyPods(0))
	c.pods("app=kept", readyPods(1))
}

func TestStatusOfAReplicaSet(t *testing.T) {
	c := start(t, 1)
	c.createReplicaSet(replicaSet("web", 1))
	c.replicaSetOf("web", func(rs *appsv1.ReplicaSet) error { return want("available", rs.Status.AvailableReplicas, 1) })
	c.statusRoundTrip(appsv1.SchemeGroupVersion.WithResource("replicasets"), "web")
}

func controllerOf(name string, replicas int32) *corev1.ReplicationController {
	t := template(name)
	return &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels(name)},
		Spec:       corev1.ReplicationControllerSpec{Replicas: &replicas, Selector: labels(name), Template: &t},
	}
}

func (c *cluster) createController(rc *corev1.ReplicationController) *corev1.ReplicationController {
	c.t.Helper()
	return must(c.CoreV1().ReplicationControllers(ns).Create(c.ctx, rc, metav1.CreateOptions{}))(c)
}

// controllerUntil waits for a ReplicationController to be as it should.
func (c *cluster) controllerUntil(name string, ok func(*corev1.ReplicationController) error) {
	c.t.Helper()
	until(c, c.CoreV1().ReplicationControllers(ns), named(name), func(l *corev1.ReplicationControllerList) error {
		if len(l.Items) != 1 {
			return fmt.Errorf("no ReplicationController %s", name)
		}
		return ok(&l.Items[0])
	})
}

func TestAReplicationControllerAdoptsAndReleasesPods(t *testing.T) {
	c := start(t, 1)
	c.createPod(newPod("web"))
	c.pod("web", func(p *corev1.Pod) error { return want("ready", isReady(p), true) })
	rc := c.createController(controllerOf("web", 1))
	c.adoptsAndReleases("web", rc.UID, "ReplicationController", "v1")
}

func TestScaleOfAReplicationController(t *testing.T) {
	c := start(t, 1)
	c.createController(controllerOf("web", 1))
	scaleOf(c, c.CoreV1().ReplicationControllers(ns), "web", "app=web")
}

func TestAReplicationControllerBeyondItsQuotaSaysSo(t *testing.T) {
	c := start(t, 1)
	quotas := c.CoreV1().ResourceQuotas(ns)
	must(quotas.Create(c.ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "two"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2")}},
	}, metav1.CreateOptions{}))(c)
	until(c, quotas, named("two"), func(l *corev1.ResourceQuotaList) error {
		pods := l.Items[0].Status.Hard[corev1.ResourcePods]
		return want("pods allowed", pods.Value(), 2)
	})
	c.createController(controllerOf("web", 3))
	failure := func(rc *corev1.ReplicationController) *corev1.ReplicationControllerCondition {
		for i := range rc.Status.Conditions {
			if rc.Status.Conditions[i].Type == corev1.ReplicationControllerReplicaFailure {
				return &rc.Status.Conditions[i]
			}
		}
		return nil
	}
	c.controllerUntil("web", func(rc *corev1.ReplicationController) error {
		f := failure(rc)
		if f == nil {
			return fmt.Errorf("no condition ReplicaFailure: %+v", rc.Status)
		}
		return all(want("status", f.Status, corev1.ConditionTrue), want("reason", f.Reason, "FailedCreate"), want("replicas", rc.Status.Replicas, 2))
	})
	c.pods("app=web", readyPods(2))
	c.event("web", "FailedCreate", "exceeded quota: two, requested: pods=1, used: pods=2, limited: pods=2")
	edit(c, c.CoreV1().ReplicationControllers(ns), "web", func(rc *corev1.ReplicationController) { *rc.Spec.Replicas = 2 })
	c.controllerUntil("web", func(rc *corev1.ReplicationController) error {
		return want("failure", failure(rc), nil)
	})
}

func TestLifeOfAReplicationController(t *testing.T) {
	c := start(t, 1)
	controllers := c.CoreV1().ReplicationControllers(ns)
	w := must(c.CoreV1().ReplicationControllers("").Watch(c.ctx, labelled("app=web")))(c)
	defer w.Stop()
	// next waits for an event whose object is as it should be.
	next := func(kind watch.EventType, ok func(*corev1.ReplicationController) bool) {
		t.Helper()
		for {
			select {
			case e, open := <-w.ResultChan():
				if rc, is := e.Object.(*corev1.ReplicationController); open && is && e.Type == kind && ok(rc) {
					return
				} else if !open {
					t.Fatal("the watch ended")
				}
			case <-c.ctx.Done():
				t.Fatalf("no event %s", kind)
			}
		}
	}
	c.createController(controllerOf("web", 1))
	next(watch.Added, func(*corev1.ReplicationController) bool { return true })
	next(watch.Modified, func(rc *corev1.ReplicationController) bool {
		return rc.Status.ReadyReplicas == 1 && rc.Status.AvailableReplicas == 1 && rc.Status.FullyLabeledReplicas == 1
	})
	must(controllers.Patch(c.ctx, "web", types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"test":"patched"}}}`), metav1.PatchOptions{}))(c)
	next(watch.Modified, func(rc *corev1.ReplicationController) bool { return rc.Labels["test"] == "patched" })

	patched := must(controllers.Patch(c.ctx, "web", types.StrategicMergePatchType,
		[]byte(`{"status":{"conditions":[{"type":"Watched","status":"True"}]}}`), metav1.PatchOptions{}, "status"))(c)
	if len(patched.Status.Conditions) != 1 || patched.Status.ReadyReplicas != 1 {
		t.Errorf("a patched status: %+v", patched.Status)
	}
	next(watch.Modified, func(rc *corev1.ReplicationController) bool { return len(rc.Status.Conditions) == 1 })
	read := must(c.dynamic.Resource(corev1.SchemeGroupVersion.WithResource("replicationcontrollers")).Namespace(ns).Get(c.ctx, "web", metav1.GetOptions{}, "status"))(c)
	if condition(read, "Watched") == nil {
		t.Errorf("read from /status: %v", read.Object["status"])
	}

	must(controllers.Patch(c.ctx, "web", types.StrategicMergePatchType, []byte(`{"spec":{"replicas":3}}`), metav1.PatchOptions{}, "scale"))(c)
	next(watch.Modified, func(rc *corev1.ReplicationController) bool {
		return *rc.Spec.Replicas == 3 && rc.Status.ReadyReplicas == 3
	})
	edit(c, controllers, "web", func(rc *corev1.ReplicationController) { rc.Labels["test"] = "updated" })
	next(watch.Modified, func(rc *corev1.ReplicationController) bool { return rc.Labels["test"] == "updated" })

	found := must(c.CoreV1().ReplicationControllers("").List(c.ctx, labelled("app=web")))(c)
	if len(found.Items) != 1 {
		t.Errorf("%d found by label", len(found.Items))
	}
	c.ok(controllers.DeleteCollection(c.ctx, background, labelled("app=web")))
	next(watch.Deleted, func(*corev1.ReplicationController) bool { return true })
	c.pods("app=web", anyPods(0))
}

// KEP-2185: pods that have been ready for about as long go in no order.
func TestScalingDownTakesPodsOfEveryAge(t *testing.T) {
	c := start(t, 0)
	for i := range 20 {
		c.node(fmt.Sprintf("node-%02d", i), func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1") })
	}
	c.createReplicaSet(replicaSet("web", 20))
	pods := c.pods("app=web", func(pods []corev1.Pod) error {
		for i := range pods {
			if pods[i].Spec.NodeName == "" {
				return fmt.Errorf("%s has no node", pods[i].Name)
			}
		}
		return want("pods", len(pods), 20)
	})
	younger := map[string]bool{}
	now := time.Now()
	for i, p := range pods {
		age := 6000 * time.Second // both ages lie between 2^42 and 2^43 nanoseconds
		if younger[p.Name] = i%2 == 0; younger[p.Name] {
			age = 5000 * time.Second
		}
		c.play(p.Name, running(now.Add(-age)))
	}
	c.replicaSetOf("web", func(rs *appsv1.ReplicaSet) error { return want("ready", rs.Status.ReadyReplicas, 20) })
	edit(c, c.AppsV1().ReplicaSets(ns), "web", func(rs *appsv1.ReplicaSet) { *rs.Spec.Replicas = 10 })
	left := c.pods("app=web", anyPods(10))
	kept := 0
	for _, p := range left {
		if younger[p.Name] {
			kept++
		}
	}
	if kept == 0 || kept == 10 {
		t.Errorf("%d of 10 younger pods are left: one age went first", kept)
	}
}

// scaler is the part of a typed client that scales.
type scaler[T any] interface {
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, subresources ...string) (T, error)
	GetScale(ctx context.Context, name string, o metav1.GetOptions) (*autoscalingv1.Scale, error)
	UpdateScale(ctx context.Context, name string, s *autoscalingv1.Scale, o metav1.UpdateOptions) (*autoscalingv1.Scale, error)
}

// scaleOf reads the scale of an object of one replica, and updates and patches it.
func scaleOf[T any](c *cluster, of scaler[T], name, pods string) {
	c.t.Helper()
	c.pods(pods, readyPods(1))
	scale := must(of.GetScale(c.ctx, name, metav1.GetOptions{}))(c)
	if scale.Spec.Replicas != 1 || scale.Name != name {
		c.t.Errorf("scale: %+v", scale)
	}
	scale.ResourceVersion = ""
	scale.Spec.Replicas = 2
	if scale = must(of.UpdateScale(c.ctx, name, scale, metav1.UpdateOptions{}))(c); scale.Spec.Replicas != 2 {
		c.t.Errorf("updated: %+v", scale)
	}
	c.pods(pods, readyPods(2))
	_, err := of.Patch(c.ctx, name, types.MergePatchType, []byte(`{"spec":{"replicas":4}}`), metav1.PatchOptions{}, "scale")
	c.ok(err)
	c.pods(pods, readyPods(4))
	if scale = must(of.GetScale(c.ctx, name, metav1.GetOptions{}))(c); scale.Spec.Replicas != 4 || scale.Status.Selector != pods {
		c.t.Errorf("patched: %+v", scale)
	}
}
