package workloads

import (
	"strconv"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
)

// The server of a settled cluster commits the leases of its nodes and its own, which
// says that it is there, and nothing else, neither for itself nor for what runs in it.
func TestASettledServerCommitsLeasesAlone(t *testing.T) {
	const nodes = 3
	c := start(t, nodes)
	must(c.AppsV1().Deployments(ns).Create(c.ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{Replicas: new(int32(3)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/i"}}},
		}},
	}, metav1.CreateOptions{}))(c)
	must(c.CoreV1().Services(ns).Create(c.ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{}))(c)
	until(c, c.AppsV1().Deployments(ns), named("web"), func(l *appsv1.DeploymentList) error {
		return want("available", l.Items[0].Status.AvailableReplicas, 3)
	})
	_, from := c.renewals(nodes, c.revision()) // by then the last event is written
	renewed, to := c.renewals(nodes, from)
	if to-from != renewed {
		t.Errorf("%d commits, %d of them leases; changed: %v", to-from, renewed, c.changedSince(from))
	}
}

// renewals waits until every node has renewed its lease after a revision, and returns
// how many leases were renewed until then, and the revision of the last.
func (c *cluster) renewals(nodes int, from int64) (n, last int64) {
	c.t.Helper()
	w := must(c.CoordinationV1().Leases(metav1.NamespaceAll).Watch(c.ctx, metav1.ListOptions{ResourceVersion: strconv.FormatInt(from, 10)}))(c)
	defer w.Stop()
	for seen := map[string]bool{}; len(seen) < nodes; n++ {
		select {
		case e, open := <-w.ResultChan():
			if !open || e.Type != watch.Modified {
				c.t.Fatalf("watch of leases: %+v", e)
			}
			lease := e.Object.(metav1.Object)
			if lease.GetNamespace() == corev1.NamespaceNodeLease {
				seen[lease.GetName()] = true
			}
			last = number(c, lease.GetResourceVersion())
		case <-c.ctx.Done():
			c.t.Fatalf("renewed: %v", seen)
		}
	}
	return n, last
}

// revision is the store's.
func (c *cluster) revision() int64 {
	c.t.Helper()
	l := must(c.CoreV1().Namespaces().List(c.ctx, metav1.ListOptions{Limit: 1}))(c)
	return number(c, l.ResourceVersion)
}

func number(c *cluster, resourceVersion string) int64 {
	n, err := strconv.ParseInt(resourceVersion, 10, 64)
	c.ok(err)
	return n
}

// changedSince names the objects of all kinds that were written after a revision.
func (c *cluster) changedSince(revision int64) (changed []string) {
	c.t.Helper()
	lists := must(discovery.ServerPreferredResources(c.Discovery()))(c)
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		c.ok(err)
		for _, kind := range list.APIResources {
			objs, err := c.dynamic.Resource(gv.WithResource(kind.Name)).List(c.ctx, metav1.ListOptions{})
			if apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err) {
				continue
			}
			c.ok(err)
			for _, obj := range objs.Items {
				if v := obj.GetResourceVersion(); v != "" && number(c, v) > revision { // what is computed has none
					changed = append(changed, kind.Name+" "+obj.GetNamespace()+"/"+obj.GetName())
				}
			}
		}
	}
	return changed
}
