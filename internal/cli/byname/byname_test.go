package byname

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/embed"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"

	"proa/internal/auth/pki"
)

// patience bounds what has to happen at all; nothing is measured by it.
const patience = time.Minute

// envtestFlags are those that envtest gives, and kwokctl besides.
var envtestFlags = map[string]string{
	"kube-apiserver": "advertise-address allow-privileged api-audiences authorization-mode bind-address cert-dir client-ca-file disable-admission-plugins " +
		"audit-log-path audit-policy-file enable-priority-and-fairness max-requests-inflight max-mutating-requests-inflight proxy-client-cert-file proxy-client-key-file " +
		"enable-admission-plugins etcd-prefix etcd-servers feature-gates runtime-config secure-port service-account-issuer service-account-key-file " +
		"service-account-signing-key-file service-cluster-ip-range tls-cert-file tls-private-key-file",
	"kube-controller-manager": "node-monitor-period node-monitor-grace-period kubeconfig authorization-always-allow-paths bind-address secure-port root-ca-file " +
		"service-account-private-key-file leader-elect controllers feature-gates kube-api-qps kube-api-burst",
	"kube-scheduler": "kubeconfig authorization-always-allow-paths bind-address secure-port config leader-elect feature-gates kube-api-qps kube-api-burst",
}

var daemons = map[string]func() daemon{
	"kube-apiserver":          func() daemon { return &apiServer{} },
	"kube-controller-manager": func() daemon { return &controllerManager{} },
	"kube-scheduler":          func() daemon { return &schedulerDaemon{} },
}

func TestHelpListsTheFlagsThatToolsGive(t *testing.T) {
	for name, make := range daemons {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := command(name, "", make())
			cmd.SetOut(&out)
			cmd.SetArgs([]string{"--help"})
			if err := cmd.Execute(); err != nil {
				t.Fatal(err)
			}
			for flag := range strings.FieldsSeq(envtestFlags[name]) {
				if !regexp.MustCompile(`(?m)^\s*--` + flag + `\b`).Match(out.Bytes()) {
					t.Errorf("--%s is not listed", flag)
				}
			}
			if strings.Contains(out.String(), "--insecure-port") {
				t.Error("--insecure-port would be given a value")
			}
		})
	}
}

func TestWhatUpstreamRefusesIsRefused(t *testing.T) {
	enough := []string{"--etcd-servers=http://127.0.0.1:1", "--service-account-issuer=https://a", "--service-account-signing-key-file=/none"}
	elects := []string{"--master=http://127.0.0.1:1", "--secure-port=0"}
	tests := []struct {
		name, daemon string
		args         []string
		want         string
	}{
		{"an unknown flag", "kube-apiserver", []string{"--nope"}, "unknown flag: --nope"},
		{"a flag that is long gone", "kube-apiserver", []string{"--insecure-port=0"}, "unknown flag: --insecure-port"},
		{"nothing at all", "kube-apiserver", nil, "[--etcd-servers must be specified, service-account-issuer is a required flag, --service-account-signing-key-file and --service-account-issuer are required flags]"},
		{"no port", "kube-apiserver", append(enough, "--secure-port=0"), "--secure-port 0 must be between 1 and 65535, inclusive. It cannot be turned off with 0"},
		{"another storage", "kube-apiserver", append(enough, "--storage-backend=consul"), "--storage-backend invalid, allowed values: etcd3. If not specified, it will default to 'etcd3'"},
		{"an unknown gate", "kube-apiserver", append(enough, "--feature-gates=Nope=true"), "--feature-gates: unrecognized feature gate: Nope"},
		{"a range that is none", "kube-apiserver", append(enough, "--service-cluster-ip-range=x"), `--service-cluster-ip-range: netip.ParsePrefix("x"): no '/'`},
		{"an unknown controller", "kube-controller-manager", []string{"--kubeconfig=/none", "--controllers=nope"}, "stat /none: no such file or directory"},
		{"a range for nobody", "kube-controller-manager", []string{"--cluster-cidr=10.0.0.0/16"}, "--cluster-cidr needs --allocate-node-cidrs"},
		{"workers that do nothing", "kube-controller-manager", []string{"--concurrent-job-syncs=0"}, "concurrent-job-syncs must be greater than 0, but got 0"},
		{"too many workers", "kube-controller-manager", []string{"--concurrent-service-endpoint-syncs=51"}, "concurrent-service-endpoint-syncs must not be more than 50, but got 51"},
		{"a gate that no controller knows", "kube-controller-manager", []string{"--master=http://127.0.0.1:1", "--feature-gates=Nope=true"}, "--feature-gates: unrecognized feature gate: Nope"},
		{"a gate that no scheduler knows", "kube-scheduler", []string{"--master=http://127.0.0.1:1", "--feature-gates=Nope=true"}, "--feature-gates: unrecognized feature gate: Nope"},
		{"a migration that is off", "kube-controller-manager", []string{"--leader-migration-config=/none"}, "--leader-migration-config needs --enable-leader-migration"},
		{"a migration file that is not there", "kube-controller-manager", []string{"--enable-leader-migration", "--leader-migration-config=/none"}, `unable to read leader migration configuration from "/none": open /none: no such file or directory`},
		{"a lock in Endpoints", "kube-controller-manager", append(elects, "--leader-elect-resource-lock=endpoints"), "error creating lock: endpoints lock is removed, migrate to leases"},
		{"a lock in a ConfigMap", "kube-controller-manager", append(elects, "--leader-elect-resource-lock=configmaps"), "error creating lock: configmaps lock is removed, migrate to leases"},
		{"a lock in Endpoints and a Lease", "kube-controller-manager", append(elects, "--leader-elect-resource-lock=endpointsleases"), "error creating lock: endpointsleases lock is removed, migrate to leases"},
		{"a lock in a ConfigMap and a Lease", "kube-controller-manager", append(elects, "--leader-elect-resource-lock=configmapsleases"), "error creating lock: configmapsleases lock is removed, migrated to leases"},
		{"a scheduler's lock in Endpoints and a Lease", "kube-scheduler", append(elects, "--leader-elect-resource-lock=endpointsleases"), `leaderElection.resourceLock: Invalid value: "endpointsleases": resourceLock value must be "leases"`},
		{"a scheduler file that is not there", "kube-scheduler", []string{"--config=/none"}, "--config: open /none: no such file or directory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cmd := command(tt.daemon, "", daemons[tt.daemon]())
			cmd.SetArgs(tt.args)
			cmd.SetOut(io.Discard)
			cmd.SetErr(io.Discard)
			err := cmd.ExecuteContext(t.Context())
			if err == nil || err.Error() != tt.want {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

// TestTheDaemonsMakeACluster starts the three of them on an etcd as envtest and
// kwokctl do: first the API server alone, in which nothing else happens.
func TestTheDaemonsMakeACluster(t *testing.T) {
	dir, authority := t.TempDir(), envtestFiles(t)
	authority.write(dir)
	port := freePort(t)
	start(t, &apiServer{}, "--allow-privileged=true", "--authorization-mode=RBAC", "--bind-address=127.0.0.1", "--cert-dir="+dir,
		"--client-ca-file="+filepath.Join(dir, "client-cert-auth-ca.crt"), "--disable-admission-plugins=ServiceAccount",
		"--etcd-servers="+startEtcd(t), "--secure-port="+port, "--service-account-issuer=https://127.0.0.1:"+port+"/",
		"--service-account-key-file="+filepath.Join(dir, "sa-signer.crt"), "--service-account-signing-key-file="+filepath.Join(dir, "sa-signer.key"),
		"--service-cluster-ip-range=10.0.0.0/24",
		"--requestheader-client-ca-file="+filepath.Join(dir, "client-cert-auth-ca.crt"), "--requestheader-allowed-names=front-proxy",
		"--proxy-client-cert-file="+filepath.Join(dir, "apiserver.crt"), "--proxy-client-key-file="+filepath.Join(dir, "apiserver.key"))
	access := authority.access(port)
	await(t, "https://127.0.0.1:"+port+"/healthz")
	api := kubernetes.NewForConfigOrDie(access)
	ctx := t.Context()
	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		if _, err := api.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	if svc, err := api.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{}); err != nil || svc.Spec.ClusterIP != "10.0.0.1" {
		t.Errorf("kubernetes Service %v, %v", svc, err)
	}
	if _, err := api.CoreV1().Pods("default").Create(ctx, pod(), metav1.CreateOptions{}); err != nil {
		t.Errorf("a privileged pod, which the flag allows, without a service account: %v", err)
	}
	eventually(t, "extension servers can know its clients", func(ctx context.Context) (bool, error) {
		trust, err := api.CoreV1().ConfigMaps("kube-system").Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
		return err == nil && trust.Data["client-ca-file"] != "" && trust.Data["requestheader-client-ca-file"] == trust.Data["client-ca-file"] &&
			trust.Data["requestheader-allowed-names"] == `["front-proxy"]`, nil
	})
	token, err := api.CoreV1().ServiceAccounts("default").CreateToken(ctx, makeAccount(t, api), tokenRequest(), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bearer := &rest.Config{Host: access.Host, TLSClientConfig: rest.TLSClientConfig{CAData: access.CAData}, BearerToken: token.Status.Token}
	if _, err := kubernetes.NewForConfigOrDie(bearer).CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a service account lists Secrets: %v", err)
	}

	deployments := api.AppsV1().Deployments("default")
	if _, err := deployments.Create(ctx, deployment(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kubeconfig := authority.kubeconfig(t, dir, port)
	if _, err := api.CoreV1().Nodes().Create(ctx, node(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	scheduler, manager := freePort(t), freePort(t)
	start(t, &controllerManager{}, "--kubeconfig="+kubeconfig, "--bind-address=127.0.0.1", "--secure-port="+manager, "--cert-dir="+dir,
		"--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics", "--root-ca-file="+filepath.Join(dir, "client-cert-auth-ca.crt"),
		"--service-account-private-key-file="+filepath.Join(dir, "sa-signer.key"), "--node-monitor-period=25s", "--node-monitor-grace-period=3m20s")
	start(t, &schedulerDaemon{}, "--kubeconfig="+kubeconfig, "--bind-address=127.0.0.1", "--secure-port="+scheduler, "--cert-dir="+dir, "--leader-elect=false")
	await(t, "https://127.0.0.1:"+manager+"/healthz")
	await(t, "https://127.0.0.1:"+manager+"/metrics")
	await(t, "https://127.0.0.1:"+scheduler+"/readyz")
	eventually(t, "a pod of the Deployment is bound", func(ctx context.Context) (bool, error) {
		pods, err := api.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		return err == nil && len(pods.Items) == 1 && pods.Items[0].Spec.NodeName == "node", nil
	})
	if _, err := api.CoordinationV1().Leases("kube-system").Get(ctx, "kube-controller-manager", metav1.GetOptions{}); err != nil {
		t.Errorf("the leader's lease: %v", err)
	}
	if _, err := api.CoordinationV1().Leases("kube-system").Get(ctx, "kube-scheduler", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a lease of a scheduler that elects nobody: %v", err)
	}
	if answer := get(t, "https://127.0.0.1:"+scheduler+"/metrics"); answer != http.StatusUnauthorized {
		t.Errorf("/metrics of the scheduler answers %d to anyone", answer)
	}
}

// start runs a daemon until the test has ended.
func start(t *testing.T, d daemon, args ...string) {
	t.Helper()
	fs := pflag.NewFlagSet("daemon", pflag.ContinueOnError)
	d.add(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%T: %v", d, err)
		}
	})
}

func startEtcd(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "etcd") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	c := embed.NewConfig()
	c.Dir, c.LogLevel, c.LogOutputs, c.UnsafeNoFsync = filepath.Join(dir, "data"), "panic", []string{filepath.Join(dir, "log")}, true
	c.TickMs, c.ElectionMs = 10, 50
	client, peer := url.URL{Scheme: "unix", Path: filepath.Join(dir, "client")}, url.URL{Scheme: "unix", Path: filepath.Join(dir, "peer")}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.Close()
		os.RemoveAll(dir)
	})
	<-e.Server.ReadyNotify()
	return client.String()
}

// files are what envtest leaves in --cert-dir before it starts an API server.
type files struct {
	t         *testing.T
	authority *pki.Authority
}

func envtestFiles(t *testing.T) files {
	t.Helper()
	authority, err := pki.InMemory(nil)
	if err != nil {
		t.Fatal(err)
	}
	return files{t, authority}
}

func (f files) write(dir string) {
	f.t.Helper()
	servingCert, servingKey, err := f.authority.Server([]string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)})
	if err != nil {
		f.t.Fatal(err)
	}
	signerCert, signerKey, err := f.authority.Server([]string{"sa-signer"}, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"apiserver.crt": servingCert, "apiserver.key": servingKey, "client-cert-auth-ca.crt": f.authority.CAPEM(),
		"sa-signer.crt": signerCert, "sa-signer.key": signerKey,
	} {
		if err := keyutil.WriteKey(filepath.Join(dir, name), content); err != nil {
			f.t.Fatal(err)
		}
	}
}

func (f files) access(port string) *rest.Config {
	f.t.Helper()
	cert, key, err := f.authority.Client("admin", "system:masters")
	if err != nil {
		f.t.Fatal(err)
	}
	return &rest.Config{
		Host: "https://127.0.0.1:" + port, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: f.authority.CAPEM(), CertData: cert, KeyData: key},
	}
}

func (f files) kubeconfig(t *testing.T, dir, port string) string {
	t.Helper()
	access := f.access(port)
	content, err := pki.Kubeconfig(access.Host, access.CAData, access.CertData, access.KeyData, "test")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// anyone has no credentials, and checks none: daemons make their own certificates.
var anyone = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}

func get(t *testing.T, address string) int {
	t.Helper()
	answer, err := anyone.Get(address)
	if err != nil {
		return 0
	}
	answer.Body.Close()
	return answer.StatusCode
}

func await(t *testing.T, address string) {
	t.Helper()
	eventually(t, address+" answers", func(context.Context) (bool, error) { return get(t, address) == http.StatusOK, nil })
}

func eventually(t *testing.T, what string, done wait.ConditionWithContextFunc) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true, done); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
}
