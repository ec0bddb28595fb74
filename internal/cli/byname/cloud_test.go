package byname

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/node/util"
	"k8s.io/utils/ptr"
)

// runCloud starts upstream's cloud-controller-manager for a cloud in its memory
// (test/peers/cloudmanager), and returns how to end it.
func runCloud(t *testing.T, kubeconfig string, args ...string) (stop func()) {
	t.Helper()
	cmd := exec.Command(cloudManager(t), append([]string{
		"--cloud-provider=memory", "--kubeconfig=" + kubeconfig, "--secure-port=0", "--webhook-secure-port=0", "--min-resync-period=1s",
		"--allocate-node-cidrs", "--node-monitor-period=100ms", "--route-reconciliation-period=1s",
		"--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=50ms",
	}, args...)...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		_ = cmd.Process.Signal(syscall.SIGKILL) // as a machine that fails
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("cloud-controller-manager:\n%s", log.Bytes()[max(0, log.Len()-6000):])
		}
	}
	t.Cleanup(stop)
	return stop
}

func cloudManager(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../../build/peers/cloud-controller-manager")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("PROA_PEERS") == "required" {
			t.Fatal(err)
		}
		t.Skip("cloud-controller-manager is not built: make peers")
	}
	return path
}

const uninitialized = "node.cloudprovider.kubernetes.io/uninitialized"

// join makes a node as a kubelet with --cloud-provider=external does.
func join(t *testing.T, api kubernetes.Interface, name string) {
	t.Helper()
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}
	_, err := api.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: uninitialized, Value: "true", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{ready}, Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// awaitNode waits until nothing is wrong with a node any more.
func awaitNode(t *testing.T, api kubernetes.Interface, name string, wrong func(*corev1.Node) string) (node *corev1.Node) {
	t.Helper()
	last := ""
	defer func() {
		if t.Failed() {
			t.Log(last)
		}
	}()
	eventually(t, "node "+name, func(ctx context.Context) (bool, error) {
		var err error
		if node, err = api.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return false, err
		}
		last = wrong(node)
		return last == "", nil
	})
	return node
}

func unknownToCloud(n *corev1.Node) string {
	for _, taint := range n.Spec.Taints {
		if taint.Key == uninitialized {
			return "it is tainted as uninitialized"
		}
	}
	return ""
}

func patchNode(t *testing.T, api kubernetes.Interface, name, body string, sub ...string) {
	t.Helper()
	if _, err := api.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, sub...); err != nil {
		t.Fatal(err)
	}
}

// What a cloud says of an instance gets to its node, routes are made, and a node
// whose instance is gone goes.
func TestACloudControllerManagerSeesToNodes(t *testing.T) {
	cloudManager(t)
	api, kubeconfig, dir := serve(t)
	manage(t, kubeconfig, dir, "--cloud-provider=external", "--controllers=node-ipam-controller", "--allocate-node-cidrs", "--cluster-cidr=10.77.0.0/16")
	join(t, api, "n1")
	runCloud(t, kubeconfig, "--leader-elect=false", "--cluster-cidr=10.77.0.0/16", "--controllers=*,-node-ipam-controller")
	n := awaitNode(t, api, "n1", func(n *corev1.Node) string {
		if wrong := unknownToCloud(n); wrong != "" {
			return wrong
		}
		if _, c := util.GetNodeCondition(&n.Status, corev1.NodeNetworkUnavailable); c == nil || c.Status != corev1.ConditionFalse || c.Reason != "RouteCreated" {
			return fmt.Sprintf("it has no route: %+v", c)
		}
		if len(n.Status.Addresses) < 3 {
			return fmt.Sprintf("addresses %v", n.Status.Addresses)
		}
		return ""
	})
	if n.Spec.ProviderID != "memory://n1" {
		t.Errorf("providerID %q", n.Spec.ProviderID)
	}
	for name, want := range map[string]string{
		corev1.LabelTopologyZone: "zone-1", corev1.LabelTopologyRegion: "region-1", corev1.LabelInstanceTypeStable: "m1.memory", "memory.example/rack": "r1",
	} {
		if n.Labels[name] != want {
			t.Errorf("label %s is %q, want %q", name, n.Labels[name], want)
		}
	}
	addresses := map[corev1.NodeAddressType]string{}
	for _, a := range n.Status.Addresses {
		addresses[a.Type] = a.Address
	}
	if fmt.Sprint(addresses) != "map[ExternalIP:198.51.100.10 Hostname:n1 InternalIP:192.0.2.10]" {
		t.Errorf("addresses %v", addresses)
	}
	patchNode(t, api, "n1", `{"metadata":{"labels":{"memory.example/gone":"yes"}}}`)
	patchNode(t, api, "n1", `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "status")
	eventually(t, "the node of an instance that is gone goes", func(ctx context.Context) (bool, error) {
		_, err := api.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

// A Service of type LoadBalancer gets its address and the way it arrives; one with
// a class is another's.
func TestACloudControllerManagerSeesToLoadBalancers(t *testing.T) {
	cloudManager(t)
	api, kubeconfig, _ := serve(t)
	services := api.CoreV1().Services("default")
	create := func(name string, change func(*corev1.Service)) {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}},
		}}
		change(s)
		if _, err := services.Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create("another", func(s *corev1.Service) { s.Spec.LoadBalancerClass = ptr.To("example.com/x") })
	create("plain", func(*corev1.Service) {})
	runCloud(t, kubeconfig, "--leader-elect=false", "--configure-cloud-routes=false", "--cluster-cidr=10.77.0.0/16")
	arrives := func(name, mode string) {
		t.Helper()
		eventually(t, "Service "+name+" gets an address", func(ctx context.Context) (bool, error) {
			s, err := services.Get(ctx, name, metav1.GetOptions{})
			if err != nil || len(s.Status.LoadBalancer.Ingress) == 0 {
				return false, err
			}
			if in := s.Status.LoadBalancer.Ingress[0]; !strings.HasPrefix(in.IP, "203.0.113.") || string(*in.IPMode) != mode {
				return false, fmt.Errorf("%s has %+v, mode %s", name, in, *in.IPMode)
			}
			return true, nil
		})
	}
	arrives("plain", "VIP")
	create("proxied", func(s *corev1.Service) { s.Annotations = map[string]string{"memory.example/mode": "Proxy"} })
	arrives("proxied", "Proxy")
	if s, err := services.Get(t.Context(), "another", metav1.GetOptions{}); err != nil || len(s.Status.LoadBalancer.Ingress) > 0 || len(s.Finalizers) > 0 {
		t.Errorf("the Service of another class: %v, %v, %v", s.Status.LoadBalancer, s.Finalizers, err)
	}
	if err := services.Delete(t.Context(), "plain", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the balancer and its Service go", func(ctx context.Context) (bool, error) {
		_, err := services.Get(ctx, "plain", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

// KEP-2436: a controller moves between kube-controller-manager and upstream's
// cloud-controller-manager, and runs in one of them at any time. Which one gave a
// node its range of addresses tells which.
func TestAControllerMovesToTheCloudControllerManagerAndBack(t *testing.T) {
	cloudManager(t)
	api, kubeconfig, dir := serve(t)
	config := filepath.Join(dir, "migration.yaml")
	err := os.WriteFile(config, []byte(`
apiVersion: controllermanager.config.k8s.io/v1
kind: LeaderMigrationConfiguration
leaderName: node-migration
controllerLeaders:
- {name: node-ipam-controller, component: "*"}
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	migration := []string{"--enable-leader-migration", "--leader-migration-config=" + config}
	own := append(migration[:2:2], "--controllers=node-ipam-controller,replicaset-controller", "--allocate-node-cidrs", "--cluster-cidr=10.77.0.0/16")
	clouds := append(migration[:2:2], "--configure-cloud-routes=false", "--cluster-cidr=10.88.0.0/16")
	const runs = `running_managed_controllers\{manager="kube-controller-manager",name="%s"\} %d`
	gets := func(name, prefix string) {
		t.Helper()
		join(t, api, name)
		n := awaitNode(t, api, name, func(n *corev1.Node) string {
			if n.Spec.PodCIDR == "" {
				return "it has no range"
			}
			return ""
		})
		if !strings.HasPrefix(n.Spec.PodCIDR, prefix) {
			t.Errorf("node %s got %s from the wrong manager, want %s", name, n.Spec.PodCIDR, prefix)
		}
	}

	first, stopFirst := manage(t, kubeconfig, dir, own...)
	awaitMeasured(t, first, fmt.Sprintf(runs, "node-ipam-controller", 1))
	gets("a", "10.77.")
	stopCloud := runCloud(t, kubeconfig, clouds...)
	awaitNode(t, api, "a", unknownToCloud) // what is not migrated runs there
	gets("b", "10.77.")
	stopFirst()
	gets("c", "10.88.")
	second, _ := manage(t, kubeconfig, dir, own...)
	awaitMeasured(t, second, fmt.Sprintf(runs, "replicaset-controller", 1))
	gets("d", "10.88.")
	if measured(t, second, fmt.Sprintf(runs, "node-ipam-controller", 1)) {
		t.Error("the controller runs in both")
	}
	stopCloud()
	gets("e", "10.77.")
}

// Upstream's clouds have left the tree: only "external" and none are known.
func TestTheControllerManagerKnowsNoCloud(t *testing.T) {
	for cloud, want := range map[string]string{
		"": "", "external": "",
		"aws": `cloud provider "aws" was specified, but built-in cloud providers are disabled. Please set --cloud-provider=external and migrate to an external cloud provider`,
	} {
		m := &controllerManager{cloud: cloud}
		m.syncs = defaultSyncs()
		got := ""
		if _, err := m.config(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("--cloud-provider=%s: %q, want %q", cloud, got, want)
		}
	}
}
