package suites

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
)

const (
	kwokNodes         = 1000
	kwokDeployments   = 100
	podsOfADeployment = 100
	kwokPods          = kwokDeployments * podsOfADeployment
	responsive        = 5 * time.Second // within which a plain request is answered all the while
)

// KWOK's controller, as its module builds it, plays a thousand nodes with ten
// thousand pods: it renews their leases and writes the statuses, and the control
// plane answers all the while.
func TestKwokPlaysAThousandNodes(t *testing.T) {
	if !named("kwok") {
		t.Skip("PROA_SUITES does not name kwok: building it and its 10 000 pods take minutes")
	}
	assets := writeAssets(t)
	module := kwokctl.copy(t)
	dir := t.TempDir()
	kwokctl.goTool(t, module, "build", "-o", dir, "./cmd/kwok")
	kubeconfig := serve(t, assets)
	access, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	access.QPS = -1
	client := kubernetes.NewForConfigOrDie(access)
	stages, err := exec.Command(filepath.Join(assets, "kubectl"), "kustomize", filepath.Join(module, "kustomize/stage/fast")).Output()
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "kwok.yaml")
	if err := os.WriteFile(config, stages, 0o600); err != nil {
		t.Fatal(err)
	}
	kwok := exec.Command(filepath.Join(dir, "kwok"), "--kubeconfig", kubeconfig, "--config", config, "--manage-all-nodes", "--node-lease-duration-seconds=40")
	log, err := os.Create(filepath.Join(root(t), "build", "suites", "kwok-scale.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	kwok.Stdout, kwok.Stderr = log, log
	if err := kwok.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = kwok.Wait()
	}()
	t.Cleanup(func() {
		_ = kwok.Process.Kill()
		<-ended
	})

	ctx := t.Context()
	began := time.Now()
	for i := range kwokNodes {
		if _, err := client.CoreV1().Nodes().Create(ctx, nodeOfKwok(i), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range kwokDeployments {
		if _, err := client.AppsV1().Deployments("default").Create(ctx, deploymentForKwok(i), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	slowest := time.Duration(0)
	for deadline := time.Now().Add(15 * time.Minute); ; time.Sleep(time.Second) {
		asked := time.Now()
		within, cancel := context.WithTimeout(ctx, responsive)
		_, err := client.CoreV1().Namespaces().Get(within, "default", metav1.GetOptions{})
		cancel()
		if err != nil {
			t.Fatalf("a plain request is not answered in %s: %v", responsive, err)
		}
		slowest = max(slowest, time.Since(asked))
		running := countOf(t, client, "status.phase=Running")
		if running == kwokPods {
			break
		}
		select {
		case <-ended:
			t.Fatalf("KWOK has ended; see %s", log.Name())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d pods run", running, kwokPods)
		}
	}
	t.Logf("%d nodes and %d pods in %s; the slowest of a get every second took %s", kwokNodes, kwokPods, time.Since(began), slowest)
	for i := range kwokDeployments {
		d, err := client.AppsV1().Deployments("default").Get(ctx, fmt.Sprint("d", i), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if d.Status.AvailableReplicas != podsOfADeployment {
			t.Errorf("%s has %d available replicas", d.Name, d.Status.AvailableReplicas)
		}
	}
	leases, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if renewed := renewedOf(leases.Items, began); renewed != kwokNodes {
		t.Errorf("%d of %d leases are renewed", renewed, kwokNodes)
	}
}

func nodeOfKwok(i int) *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("kwok-", i), Labels: map[string]string{corev1.LabelHostname: fmt.Sprint("kwok-", i)}},
		Status:     corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
	}
}

func deploymentForKwok(i int) *appsv1.Deployment {
	labels := map[string]string{"app": fmt.Sprint("d", i)}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("d", i)},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(podsOfADeployment)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "image"}}},
			},
		},
	}
}

func countOf(t *testing.T, client kubernetes.Interface, fields string) int {
	t.Helper()
	pods, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{FieldSelector: fields, ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	return len(pods.Items)
}

func renewedOf(leases []coordinationv1.Lease, since time.Time) int {
	renewed := 0
	for i := range leases {
		if at := leases[i].Spec.RenewTime; at != nil && at.After(since) {
			renewed++
		}
	}
	return renewed
}
