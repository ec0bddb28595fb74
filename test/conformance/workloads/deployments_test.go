package workloads

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

func deployment(name string, replicas int32) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels(name)},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector(name), Template: template(name)},
	}
}

func (c *cluster) createDeployment(d *appsv1.Deployment) {
	c.t.Helper()
	must(c.AppsV1().Deployments(ns).Create(c.ctx, d, metav1.CreateOptions{}))(c)
}

// rolledOut is for deploymentUntil: so many pods of the newest template are
// available and no others are left.
func rolledOut(n int32) func(*appsv1.Deployment) error {
	return func(d *appsv1.Deployment) error {
		return all(
			want("generation", d.Status.ObservedGeneration, d.Generation), want("updated", d.Status.UpdatedReplicas, n),
			want("replicas", d.Status.Replicas, n), want("available", d.Status.AvailableReplicas, n), want("ready", d.Status.ReadyReplicas, n),
		)
	}
}

func (c *cluster) deploymentUntil(name string, ok func(*appsv1.Deployment) error) *appsv1.Deployment {
	c.t.Helper()
	l := until(c, c.AppsV1().Deployments(ns), named(name), func(l *appsv1.DeploymentList) error {
		if len(l.Items) != 1 {
			return fmt.Errorf("no Deployment %s", name)
		}
		return ok(&l.Items[0])
	})
	return &l.Items[0]
}

func TestLifeOfADeployment(t *testing.T) {
	c := start(t, 2)
	deployments := c.AppsV1().Deployments(ns)
	w := must(c.AppsV1().Deployments("").Watch(c.ctx, labelled("app=web")))(c)
	defer w.Stop()
	c.createDeployment(deployment("web", 1))
	c.deploymentUntil("web", rolledOut(1))

	must(deployments.Patch(c.ctx, "web", types.StrategicMergePatchType, []byte(
		`{"metadata":{"labels":{"stage":"patched"}},"spec":{"replicas":2,"template":{"spec":{"terminationGracePeriodSeconds":0,"containers":[{"name":"c","image":"registry.example/app:2"}]}}}}`,
	), metav1.PatchOptions{}))(c)
	d := c.deploymentUntil("web", rolledOut(2))
	if d.Labels["stage"] != "patched" || d.Annotations["deployment.kubernetes.io/revision"] != "2" {
		t.Errorf("patched: %+v", d.ObjectMeta)
	}
	for _, p := range c.pods("app=web", readyPods(2)) {
		if p.Spec.Containers[0].Image != "registry.example/app:2" {
			t.Errorf("%s runs %s", p.Name, p.Spec.Containers[0].Image)
		}
	}
	found := must(c.AppsV1().Deployments("").List(c.ctx, labelled("stage=patched")))(c)
	if len(found.Items) != 1 {
		t.Errorf("%d found by label", len(found.Items))
	}

	edit(c, deployments, "web", func(d *appsv1.Deployment) {
		*d.Spec.Replicas, d.Labels["stage"] = 3, "updated"
		d.Spec.Template.Spec.Containers[0].Image = "registry.example/app:3"
	})
	c.deploymentUntil("web", rolledOut(3))

	read := must(c.dynamic.Resource(appsv1.SchemeGroupVersion.WithResource("deployments")).Namespace(ns).Get(c.ctx, "web", metav1.GetOptions{}, "status"))(c)
	if condition(read, "Available")["status"] != "True" || condition(read, "Progressing")["reason"] != "NewReplicaSetAvailable" {
		t.Errorf("/status: %v", read.Object["status"])
	}
	must(deployments.Patch(c.ctx, "web", types.MergePatchType, []byte(`{"metadata":{"annotations":{"on":"status"}},"status":{"observedGeneration":1}}`), metav1.PatchOptions{}, "status"))(c)
	if d := c.deploymentUntil("web", rolledOut(3)); d.Annotations["on"] != "status" { // the controller sets it right again
		t.Errorf("annotations: %v", d.Annotations)
	}

	c.ok(deployments.DeleteCollection(c.ctx, background, labelled("stage=updated")))
	gone(c, deployments, named("web"), func(l *appsv1.DeploymentList) int { return len(l.Items) })
	c.pods("app=web", anyPods(0))
	var kinds []watch.EventType
	for len(kinds) == 0 || kinds[len(kinds)-1] != watch.Deleted {
		select {
		case e, open := <-w.ResultChan():
			if !open {
				t.Fatal("the watch ended")
			}
			kinds = append(kinds, e.Type)
		case <-c.ctx.Done():
			t.Fatalf("events: %v", kinds)
		}
	}
	if kinds[0] != watch.Added || len(kinds) < 4 {
		t.Errorf("events: %v", kinds)
	}
}

func TestStatusOfADeployment(t *testing.T) {
	c := start(t, 1)
	c.createDeployment(deployment("web", 1))
	c.deploymentUntil("web", rolledOut(1))
	c.statusRoundTrip(appsv1.SchemeGroupVersion.WithResource("deployments"), "web")
}

// KEP-3243: at the end of a rollout the new pods are spread among themselves.
func TestARolloutEndsEvenlySpread(t *testing.T) {
	c := start(t, 3)
	d := deployment("web", 6)
	d.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: selector("web"), MatchLabelKeys: []string{"pod-template-hash"},
	}}
	c.createDeployment(d)
	c.deploymentUntil("web", rolledOut(6))
	edit(c, c.AppsV1().Deployments(ns), "web", func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Containers[0].Image = "registry.example/app:2"
	})
	c.deploymentUntil("web", rolledOut(6))
	on := map[string]int{}
	for _, p := range c.pods("app=web", readyPods(6)) {
		on[p.Spec.NodeName]++
	}
	if len(on) != 3 || on["sim-0"] != 2 || on["sim-1"] != 2 {
		t.Errorf("new pods per node: %v", on)
	}
}
