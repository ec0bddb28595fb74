package byname

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	migration "k8s.io/controller-manager/config"

	"proa/internal/manager"
)

// serve starts an API server. It returns the way to it, as a client and as a kubeconfig.
func serve(t *testing.T) (api kubernetes.Interface, kubeconfig, dir string) {
	t.Helper()
	dir, authority, port := t.TempDir(), envtestFiles(t), freePort(t)
	authority.write(dir)
	start(t, &apiServer{}, "--authorization-mode=RBAC", "--bind-address=127.0.0.1", "--cert-dir="+dir,
		"--client-ca-file="+filepath.Join(dir, "client-cert-auth-ca.crt"), "--disable-admission-plugins=ServiceAccount",
		"--etcd-servers="+startEtcd(t), "--secure-port="+port, "--service-account-issuer=https://127.0.0.1:"+port+"/",
		"--service-account-key-file="+filepath.Join(dir, "sa-signer.crt"), "--service-account-signing-key-file="+filepath.Join(dir, "sa-signer.key"),
		"--service-cluster-ip-range=10.0.0.0/24")
	await(t, "https://127.0.0.1:"+port+"/healthz")
	return kubernetes.NewForConfigOrDie(authority.access(port)), authority.kubeconfig(t, dir, port), dir
}

// manage starts a controller manager and returns where it serves, and how to end it.
func manage(t *testing.T, kubeconfig, dir string, args ...string) (address string, stop func()) {
	t.Helper()
	port, m := freePort(t), &controllerManager{}
	fs := pflag.NewFlagSet("daemon", pflag.ContinueOnError)
	m.add(fs)
	args = append(args, "--kubeconfig="+kubeconfig, "--bind-address=127.0.0.1", "--secure-port="+port, "--cert-dir="+dir,
		"--authorization-always-allow-paths=/healthz,/metrics",
		"--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=50ms")
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.run(ctx) }()
	stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended <- nil
	}
	t.Cleanup(stop)
	return "https://127.0.0.1:" + port, stop
}

// measured says whether a line of /metrics matches.
func measured(t *testing.T, address, line string) bool {
	t.Helper()
	answer, err := anyone.Get(address + "/metrics")
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	page, err := io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("/metrics: %s", page)
	}
	return err == nil && regexp.MustCompile(`(?m)^`+line+`$`).Match(page)
}

func awaitMeasured(t *testing.T, address, line string) {
	t.Helper()
	eventually(t, line+" is measured", func(context.Context) (bool, error) { return measured(t, address, line), nil })
}

// Each controller writes as its own account: the one whose rights were taken
// away fails, and only that one.
func TestControllersHaveAccountsOfTheirOwn(t *testing.T) {
	api, kubeconfig, dir := serve(t)
	ctx := t.Context()
	if err := api.RbacV1().ClusterRoleBindings().Delete(ctx, "system:controller:replication-controller", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.AppsV1().Deployments("default").Create(ctx, deployment(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"app": "rc"}
	_, err := api.CoreV1().ReplicationControllers("default").Create(ctx, &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "rc"},
		Spec: corev1.ReplicationControllerSpec{
			Selector: labels, Template: &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec()},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	address, _ := manage(t, kubeconfig, dir, "--use-service-account-credentials", "--concurrent-deployment-syncs=1",
		"--controllers=deployment,replicaset-controller,replicationcontroller")
	awaitMeasured(t, address, `workqueue_retries_total\{name="replicationcontroller"\} [1-9]\d*`)
	eventually(t, "the Deployment has its pod", func(ctx context.Context) (bool, error) {
		pods, err := api.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		return err == nil && len(pods.Items) == 1 && pods.Items[0].Labels["app"] == "web", nil
	})
	for _, account := range []string{"deployment-controller", "replicaset-controller", "replication-controller"} {
		if _, err := api.CoreV1().ServiceAccounts("kube-system").Get(ctx, account, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	for _, line := range []string{
		`workqueue_adds_total\{name="deployment"\} [1-9]\d*`, `workqueue_work_duration_seconds_count\{name="replicaset"\} [1-9]\d*`,
		`running_managed_controllers\{manager="kube-controller-manager",name="deployment-controller"\} 1`,
		`leader_election_master_status\{name="kube-controller-manager"\} 1`,
	} {
		awaitMeasured(t, address, line)
	}
	if measured(t, address, `running_managed_controllers\{.*name="job-controller"\} 1`) {
		t.Error("a controller runs that was not asked for")
	}
}

// Two managers of different clusters of controllers share the lease of a
// migration: what it names runs in the one that holds it.
func TestMigratedControllersRunInOneManager(t *testing.T) {
	api, kubeconfig, dir := serve(t)
	config := filepath.Join(dir, "migration.yaml")
	err := os.WriteFile(config, []byte(`
apiVersion: controllermanager.config.k8s.io/v1
kind: LeaderMigrationConfiguration
leaderName: moving
controllerLeaders:
- {name: deployment-controller, component: "*"}
- {name: job-controller, component: cloud-controller-manager}
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	migrated := []string{"--enable-leader-migration", "--leader-migration-config=" + config, "--controllers=deployment,job,replicaset"}
	const runs = `running_managed_controllers\{manager="kube-controller-manager",name="%s"\} %d`
	first, stopFirst := manage(t, kubeconfig, dir, migrated...)
	awaitMeasured(t, first, fmt.Sprintf(runs, "deployment-controller", 1))
	second, _ := manage(t, kubeconfig, dir, append(migrated, "--leader-elect-resource-name=second")...)
	awaitMeasured(t, second, fmt.Sprintf(runs, "replicaset-controller", 1))
	if measured(t, second, fmt.Sprintf(runs, "deployment-controller", 1)) {
		t.Error("the migrated controller runs in both")
	}
	if measured(t, first, fmt.Sprintf(runs, "job-controller", 1)) {
		t.Error("another manager's controller runs")
	}
	holder := func() (name string, transitions int32) {
		lease, err := api.CoordinationV1().Leases("kube-system").Get(t.Context(), "moving", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return *lease.Spec.HolderIdentity, *lease.Spec.LeaseTransitions
	}
	before, transitions := holder()
	stopFirst()
	awaitMeasured(t, second, fmt.Sprintf(runs, "deployment-controller", 1))
	if after, now := holder(); after == before || now <= transitions {
		t.Errorf("the lease is held by %s (%d transitions), before by %s (%d)", after, now, before, transitions)
	}
}

func TestWhichLeaseAControllerBelongsTo(t *testing.T) {
	c := &migration.LeaderMigrationConfiguration{ControllerLeaders: []migration.ControllerLeaderConfiguration{
		{Name: "everywhere", Component: "*"}, {Name: "here", Component: "kube-controller-manager"}, {Name: "there", Component: "cloud-controller-manager"},
		{Name: "serviceaccount-token-controller", Component: "*"},
	}}
	own, moving := underLease(c, "kube-controller-manager", false), underLease(c, "kube-controller-manager", true)
	for name, want := range map[string]string{
		"everywhere": "moving", "here": "moving", "there": "", "unnamed": "own", "serviceaccount-token-controller": "own",
	} {
		var got []string
		if own(name) {
			got = append(got, "own")
		}
		if moving(name) {
			got = append(got, "moving")
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", name, got, want)
		}
	}
}

func TestFlagsReachTheControllers(t *testing.T) {
	m := &controllerManager{}
	fs := pflag.NewFlagSet("daemon", pflag.ContinueOnError)
	m.add(fs)
	if err := fs.Parse([]string{"--legacy-service-account-token-clean-up-period=48h", "--concurrent-gc-syncs=3", "--disable-force-detach-on-timeout"}); err != nil {
		t.Fatal(err)
	}
	c, err := m.config()
	if err != nil || c.LegacyTokenPeriod != 48*time.Hour || c.Workers["garbage-collector-controller"] != 3 || c.Workers["daemonset-controller"] != 2 || !c.KeepMounted {
		t.Errorf("%+v, %v", c, err)
	}
	known, _ := manager.Names()
	for name := range c.Workers {
		if !slices.Contains(known, name) {
			t.Errorf("a flag is of %s, which is no controller", name)
		}
	}
}
