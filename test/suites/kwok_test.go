package suites

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// kwokctl makes clusters of the daemons by name with its binary runtime, and has
// KWOK's controller play their nodes.
var kwokctl = suite{
	apart: true,
	name:  "kwokctl-binary", module: "sigs.k8s.io/kwok@v0.8.0", dir: "test/e2e/kwokctl/binary",
	raised: true, alone: true, prepare: prepareKwokctl,
	limit: 30 * time.Minute, // a new controller waits for the leases of the one before, 200 seconds each
	note:  "with etcdctl, etcdutl and metrics-server built from their modules; its cluster is made without Prometheus and Jaeger",
	skips: []skipped{
		{"TestWorkable/Workable/Test_(Prometheus|Jaeger)", "both are downloaded, they are in no cluster here"},
		{"TestHack|TestRecording|TestRecordingExternal", "kectl is downloaded"},
		{
			"TestDryrunExportLogs|TestRestart/Restart/test_(stop|start)_dryrun|TestSnapshot/Snapshot/test_dryrun_.*",
			"they compare what kwokctl prints with the names of all that it downloads",
		},
	},
}

// downloaded are arguments of its test environment that ask for programs which are
// only to be had as downloads.
var downloaded = []string{`"--prometheus-port=9090",`, `"--jaeger-port=16686",`}

func prepareKwokctl(t *testing.T, s suite, module, assets string) []string {
	t.Helper()
	without(t, filepath.Join(module, s.dir, "main_test.go"), downloaded)
	s.goTool(t, module, "build", "-o", t.TempDir(), "./cmd/kwok", "./cmd/kwokctl") // its tests do so again, without a network
	buildPrograms(t, assets, etcdctl, etcdutl, metricsServer)
	for _, name := range []string{"kube-controller-manager", "kube-scheduler"} {
		link := filepath.Join(assets, name)
		if err := os.RemoveAll(link); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("kube-apiserver", link); err != nil { // the same program
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(filepath.Join(module, "workdir")); err != nil {
		t.Fatal(err)
	}
	writeKwokctlConfig(t, filepath.Join(module, "workdir", "kwok.yaml"), assets)
	env := []string{
		"HOME=" + t.TempDir(), "PATH=" + assets + ":" + os.Getenv("PATH"), "CGO_ENABLED=0",
		"GOFLAGS=-trimpath -mod=mod -modfile=" + filepath.Join(module, "raised.mod"),
	}
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH"} { // they would follow HOME
		out, err := exec.Command("go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		env = append(env, name+"="+strings.TrimSpace(string(out)))
	}
	return env
}

// writeKwokctlConfig says where the programs are that it would download.
func writeKwokctlConfig(t *testing.T, file, assets string) {
	t.Helper()
	options := map[string]any{"metricsServerManifests": []string{filepath.Join(download(t, metricsServer.module).Dir, "manifests/overlays/release")}}
	for option, name := range map[string]string{
		"etcdBinary": "etcd", "etcdctlBinary": "etcdctl", "etcdutlBinary": "etcdutl", "kubectlBinary": "kubectl", "metricsServerBinary": "metrics-server",
		"kubeApiserverBinary": "kube-apiserver", "kubeControllerManagerBinary": "kube-controller-manager", "kubeSchedulerBinary": "kube-scheduler",
	} {
		options[option] = filepath.Join(assets, name)
	}
	config, err := yaml.Marshal(map[string]any{"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokctlConfiguration", "options": options})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, config, 0o644); err != nil {
		t.Fatal(err)
	}
}

// without removes arguments from a source file.
func without(t *testing.T, file string, args []string) {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, arg := range args {
		source = []byte(strings.ReplaceAll(string(source), arg, ""))
	}
	if err := os.WriteFile(file, source, 0o644); err != nil {
		t.Fatal(err)
	}
}

// secluded returns a command that runs another in a network with nothing but a
// loopback, and among processes that all end with it.
func secluded(t *testing.T, args []string) *exec.Cmd {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can give it a network of its own")
	}
	const script = `ip link set lo up && "$@"; exit $?` // the shell stays, and reaps orphans
	return exec.Command("unshare", append([]string{"--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script, "sh"}, args...)...)
}
