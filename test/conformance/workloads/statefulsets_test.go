package workloads

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func statefulSet(name string, replicas int32, change ...func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	s := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels(name)},
		Spec:       appsv1.StatefulSetSpec{Replicas: &replicas, ServiceName: name, Selector: selector(name), Template: template(name)},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func (c *cluster) createStatefulSet(s *appsv1.StatefulSet) {
	c.t.Helper()
	must(c.AppsV1().StatefulSets(ns).Create(c.ctx, s, metav1.CreateOptions{}))(c)
}

func (c *cluster) statefulSetUntil(name string, ok func(*appsv1.StatefulSet) error) *appsv1.StatefulSet {
	c.t.Helper()
	l := until(c, c.AppsV1().StatefulSets(ns), named(name), func(l *appsv1.StatefulSetList) error {
		if len(l.Items) != 1 {
			return fmt.Errorf("no StatefulSet %s", name)
		}
		return ok(&l.Items[0])
	})
	return &l.Items[0]
}

func TestScaleOfAStatefulSet(t *testing.T) {
	c := start(t, 1)
	c.createStatefulSet(statefulSet("web", 1))
	scaleOf(c, c.AppsV1().StatefulSets(ns), "web", "app=web")
	if s := must(c.AppsV1().StatefulSets(ns).Get(c.ctx, "web", metav1.GetOptions{}))(c); *s.Spec.Replicas != 4 {
		t.Errorf("replicas: %d", *s.Spec.Replicas)
	}
}

func TestStatefulSetsAreFoundByLabelPatchedAndRemovedTogether(t *testing.T) {
	c := start(t, 1)
	sets := c.AppsV1().StatefulSets(ns)
	c.createStatefulSet(statefulSet("web", 2))
	c.createStatefulSet(statefulSet("kept", 1))
	c.pods("app=web", readyPods(2))
	if l := must(c.AppsV1().StatefulSets("").List(c.ctx, labelled("app=web")))(c); len(l.Items) != 1 || l.Items[0].Name != "web" {
		t.Errorf("found by label: %v", l.Items)
	}
	patch := `{"metadata":{"labels":{"stage":"patched"}},"spec":{"replicas":4,"template":{"spec":{"containers":[{"name":"c","image":"registry.example/app:2"}]}}}}`
	must(sets.Patch(c.ctx, "web", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}))(c)
	c.pods("app=web", func(pods []corev1.Pod) error {
		for i := range pods {
			if err := want(pods[i].Name, pods[i].Spec.Containers[0].Image, "registry.example/app:2"); err != nil {
				return err
			}
		}
		return readyPods(4)(pods)
	})
	c.ok(sets.DeleteCollection(c.ctx, background, labelled("stage=patched")))
	gone(c, sets, labelled("app=web"), func(l *appsv1.StatefulSetList) int { return len(l.Items) })
	c.pods("app=web", anyPods(0))
	c.pods("app=kept", readyPods(1))
}

func TestStatusOfAStatefulSet(t *testing.T) {
	c := start(t, 1)
	c.createStatefulSet(statefulSet("web", 1))
	c.statefulSetUntil("web", func(s *appsv1.StatefulSet) error { return want("available", s.Status.AvailableReplicas, 1) })
	c.statusRoundTrip(appsv1.SchemeGroupVersion.WithResource("statefulsets"), "web")
}

// exactly is for cluster.pods: these, all Ready.
func exactly(names ...string) func([]corev1.Pod) error {
	return func(pods []corev1.Pod) error {
		var have []string
		for _, p := range pods {
			have = append(have, p.Name)
		}
		return all(want("pods", strings.Join(have, " "), strings.Join(names, " ")), want("ready", ready(pods), len(names)))
	}
}

// KEP-3335: a set is numbered from where its spec says.
func TestAStatefulSetStartsAtItsOrdinal(t *testing.T) {
	c := start(t, 1)
	sets := c.AppsV1().StatefulSets(ns)
	_, err := sets.Create(c.ctx, statefulSet("web", 3, func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: -1} }), metav1.CreateOptions{})
	c.refused(err, `spec.ordinals.start: Invalid value: -1: must be greater than or equal to 0`)
	c.createStatefulSet(statefulSet("web", 3, func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 5} }))
	pods := c.pods("app=web", exactly("web-5", "web-6", "web-7"))
	for _, p := range pods {
		ordinal := strings.TrimPrefix(p.Name, "web-")
		if p.Spec.Hostname != p.Name || p.Spec.Subdomain != "web" || p.Labels["apps.kubernetes.io/pod-index"] != ordinal {
			t.Errorf("%s: %+v %s.%s", p.Name, p.Labels, p.Spec.Hostname, p.Spec.Subdomain)
		}
	}
	if !inOrder(pods[0].CreationTimestamp, pods[1].CreationTimestamp, pods[2].CreationTimestamp) {
		t.Error("not created in ascending order")
	}

	edit(c, sets, "web", func(s *appsv1.StatefulSet) { // a canary: the partition counts from the start
		s.Spec.Template.Spec.Containers[0].Image = "registry.example/app:2"
		s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(2))}
	})
	c.statefulSetUntil("web", func(s *appsv1.StatefulSet) error {
		return all(want("generation", s.Status.ObservedGeneration, s.Generation), want("updated", s.Status.UpdatedReplicas, 1), want("ready", s.Status.ReadyReplicas, 3))
	})
	for _, p := range c.pods("app=web", exactly("web-5", "web-6", "web-7")) {
		if updated := p.Spec.Containers[0].Image == "registry.example/app:2"; updated != (p.Name == "web-7") {
			t.Errorf("%s runs %s", p.Name, p.Spec.Containers[0].Image)
		}
	}

	edit(c, sets, "web", func(s *appsv1.StatefulSet) { s.Spec.Ordinals.Start = 0 })
	c.pods("app=web", exactly("web-0", "web-1", "web-2"))
	edit(c, sets, "web", func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 2} })
	c.pods("app=web", exactly("web-2", "web-3", "web-4"))
	edit(c, sets, "web", func(s *appsv1.StatefulSet) { *s.Spec.Replicas = 1 })
	c.pods("app=web", exactly("web-2"))
}

func inOrder(times ...metav1.Time) bool {
	return slices.IsSortedFunc(times, func(a, b metav1.Time) int { return a.Compare(b.Time) })
}

// KEP-2599: a pod lets the next one come, or be updated, once it has been ready
// for minReadySeconds. Times in the API are whole seconds, rounded down.
func TestAStatefulSetWaitsForMinReadySeconds(t *testing.T) {
	const minReady = 2 * time.Second
	c := start(t, 1)
	w := must(c.AppsV1().StatefulSets(ns).Watch(c.ctx, named("web")))(c)
	defer w.Stop()
	c.createStatefulSet(statefulSet("web", 2, func(s *appsv1.StatefulSet) { s.Spec.MinReadySeconds = int32(minReady.Seconds()) }))
	lagged := false
	for available := int32(0); available < 2; {
		select {
		case e := <-w.ResultChan():
			s, ok := e.Object.(*appsv1.StatefulSet)
			if !ok {
				t.Fatalf("watch: %+v", e)
			}
			lagged = lagged || s.Status.ReadyReplicas > s.Status.AvailableReplicas
			if available = s.Status.AvailableReplicas; available > s.Status.ReadyReplicas {
				t.Errorf("%d available of %d ready", available, s.Status.ReadyReplicas)
			}
		case <-c.ctx.Done():
			t.Fatal("never available")
		}
	}
	if !lagged {
		t.Error("pods were available as soon as they were ready")
	}
	// follows tells that b was made minReady after a had become ready.
	follows := func(b, a *corev1.Pod) {
		t.Helper()
		at := podCondition(a, corev1.PodReady).LastTransitionTime
		if since := b.CreationTimestamp.Sub(at.Time); since < minReady {
			t.Errorf("%s was made %s after %s had become ready", b.Name, since, a.Name)
		}
	}
	old := c.pods("app=web", readyPods(2))
	follows(&old[1], &old[0])
	edit(c, c.AppsV1().StatefulSets(ns), "web", func(s *appsv1.StatefulSet) {
		s.Spec.Template.Spec.Containers[0].Image = "registry.example/app:2"
	})
	c.statefulSetUntil("web", func(s *appsv1.StatefulSet) error {
		return all(want("generation", s.Status.ObservedGeneration, s.Generation), want("updated", s.Status.UpdatedReplicas, 2), want("available", s.Status.AvailableReplicas, 2), want("current", s.Status.CurrentRevision, s.Status.UpdateRevision))
	})
	updated := c.pods("app=web", readyPods(2))
	follows(&updated[0], &updated[1]) // from the highest ordinal down
}
