package proatest_test

import (
	"context"
	"fmt"
	"testing"

	"go.uber.org/goleak"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"proa/pkg/proatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAServerAloneRunsNoController(t *testing.T) {
	t.Parallel()
	api := newClient(t, proatest.Start(t, proatest.Options{}))
	ctx := t.Context()
	if _, err := api.AppsV1().Deployments("default").Create(ctx, deployment(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	svc, err := api.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil || svc.Spec.ClusterIP == "" {
		t.Fatalf("service %+v: %v", svc, err)
	}
	if _, err := api.CoreV1().Pods("default").Create(ctx, pod(), metav1.CreateOptions{}); err != nil {
		t.Fatalf("a pod without any service account: %v", err)
	}
	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		if _, err := api.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
}

func TestControllersAndSchedulerWorkWhereAskedFor(t *testing.T) {
	t.Parallel()
	api := newClient(t, proatest.Start(t, proatest.Options{Controllers: []string{"*"}, Scheduler: true}))
	ctx := t.Context()
	if _, err := api.CoreV1().Nodes().Create(ctx, node(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.AppsV1().Deployments("default").Create(ctx, deployment(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w, err := api.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if p, ok := e.Object.(*corev1.Pod); ok && e.Type != watch.Deleted && p.Spec.NodeName == "node" {
			return
		}
	}
	t.Fatal("the watch ended before the pod of the Deployment was bound")
}

func TestServersDoNotKnowEachOther(t *testing.T) {
	t.Parallel()
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			api := newClient(t, proatest.Start(t, proatest.Options{}))
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
			if _, err := api.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestAnImpersonatedUserIsHeldToRBAC(t *testing.T) {
	t.Parallel()
	access := rest.CopyConfig(proatest.Start(t, proatest.Options{}))
	access.Impersonate.UserName = "jane"
	_, err := newClient(t, access).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Fatalf("want forbidden, got %v", err)
	}
}

func TestAnOpenWatchEndsWithTheServer(t *testing.T) {
	var open watch.Interface
	t.Run("server", func(t *testing.T) {
		api := newClient(t, proatest.Start(t, proatest.Options{}))
		var err error
		if open, err = api.CoreV1().Pods("").Watch(context.WithoutCancel(t.Context()), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	for range open.ResultChan() {
	}
}

func newClient(t testing.TB, access *rest.Config) kubernetes.Interface {
	t.Helper()
	api, err := kubernetes.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}
	return api
}

func podSpec() corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx"}}}
}

func pod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "alone"}, Spec: podSpec()}
}

func deployment() *appsv1.Deployment {
	labels := map[string]string{"app": "web"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec()},
		},
	}
}

func node() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node"},
		Status: corev1.NodeStatus{
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}},
			Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")},
		},
	}
}
