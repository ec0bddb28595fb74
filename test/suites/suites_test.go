// Package suites runs test suites of other projects, unmodified, against this
// program in the place of upstream's kube-apiserver, etcd and kubectl. Each suite
// is a Go module of its own: it comes through the Go module proxy, is copied to a
// scratch directory, compiled there and started with KUBEBUILDER_ASSETS.
//
// The suites are not part of `go test ./...`: PROA_SUITES names those to run, by
// name and comma, or all.
package suites

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"proa/internal/auth/pki"
	"proa/pkg/proatest"
)

// suite is one test package of another project.
type suite struct {
	name   string
	module string // path@version
	dir    string // of the package within the module
	tags   string // of the build
	args   []string
	least  int    // tests that must have run, so that a suite cannot pass by doing nothing
	skip   string // a pattern of tests that fail whatever the server does

	// crds is a directory of the module, with a kustomization. Where it is given, the suite finds a
	// server with them by KUBECONFIG: it would start a downloaded one otherwise.
	crds string
}

var (
	ginkgoArgs = []string{"-ginkgo.no-color"}
	goArgs     = []string{"-test.v"}
)

const (
	controllerRuntime = "sigs.k8s.io/controller-runtime@v0.25.2"
	clusterAPI        = "sigs.k8s.io/cluster-api@v1.13.6"
)

var all = []suite{
	{name: "controller-runtime-client", module: controllerRuntime, dir: "pkg/client", args: ginkgoArgs, least: 311},
	{name: "controller-runtime-envtest", module: controllerRuntime, dir: "pkg/envtest", args: ginkgoArgs, least: 28},
	{name: "fluxcd-ssa", module: "github.com/fluxcd/pkg/ssa@v0.78.0", dir: ".", args: goArgs, least: 71,
		// Its client's twentieth poll falls on its own deadline.
		skip: "TestWaitForSet_JobWithTTL/NotFound_Job_without_TTL_option"},
	{name: "gateway-api-cel", module: "sigs.k8s.io/gateway-api@v1.4.1", dir: "pkg/test/cel", tags: "experimental", crds: "config/crd/experimental", args: goArgs, least: 216,
		// It wants the value of a rule's object named, which upstream does no more.
		skip: "TestHTTPRouteTimeouts/invalid_timeout_request_200ms_less"},
	{name: "cluster-api-ssa", module: clusterAPI, dir: "internal/util/ssa", args: goArgs, least: 1},
	{name: "cluster-api-webhooks", module: clusterAPI, dir: "internal/webhooks/test", args: goArgs, least: 1},
	{name: "cluster-api-crdmigrator", module: clusterAPI, dir: "controllers/crdmigrator", args: goArgs, least: 1},
	{name: "cluster-api-patch", module: clusterAPI, dir: "util/patch/test", args: goArgs, least: 1},
}

const (
	compileTime = 20 * time.Minute
	runTime     = 10 * time.Minute
)

func TestSuitesOfOtherProjectsPass(t *testing.T) {
	wanted := os.Getenv("PROA_SUITES")
	if wanted == "" {
		t.Skip("PROA_SUITES names no suite; `make test-suites` runs all of them, which compiles a lot")
	}
	assets := writeAssets(t)
	for _, s := range all {
		if wanted != "all" && !slices.Contains(strings.Split(wanted, ","), s.name) {
			continue
		}
		t.Run(s.name, func(t *testing.T) { s.run(t, assets) })
	}
}

// root is the repository.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// writeAssets makes the directory that envtest looks into.
func writeAssets(t *testing.T) string {
	t.Helper()
	program := os.Getenv("PROA")
	if program == "" {
		program = filepath.Join(root(t), "bin", "proa")
	}
	dir := filepath.Join(root(t), "build", "suites", "assets")
	if out, err := exec.Command(program, "envtest", dir).CombinedOutput(); err != nil {
		t.Fatalf("%s envtest: %v\n%s", program, err, out)
	}
	return dir
}

func (s suite) run(t *testing.T, assets string) {
	module := s.copy(t)
	dir := filepath.Join(module, s.dir)
	binary := filepath.Join(root(t), "build", "suites", s.name+".test")
	compile(t, dir, s.tags, binary)
	defer reap(t, assets)
	args := s.args
	if s.skip != "" {
		args = append(slices.Clip(args), "-test.skip="+s.skip)
	}
	cmd := exec.Command(binary, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KUBEBUILDER_ASSETS="+assets)
	if s.crds != "" {
		cmd.Env = append(cmd.Env, "KUBECONFIG="+serve(t, assets, filepath.Join(module, s.crds)))
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	log := filepath.Join(root(t), "build", "suites", s.name+".log")
	err := within(cmd, runTime)
	if writeErr := os.WriteFile(log, out.Bytes(), 0o644); writeErr != nil {
		t.Error(writeErr)
	}
	c := count(out.Bytes())
	t.Logf("%d ran, %d passed, %d failed; see %s", c.passed+c.failed, c.passed, c.failed, log)
	for _, name := range c.failures {
		t.Error(name)
	}
	if err != nil {
		t.Errorf("%v", err)
	}
	if c.passed+c.failed < s.least {
		t.Errorf("%d tests ran, %d are known", c.passed+c.failed, s.least)
	}
}

// copy puts the module's sources where they can be compiled: the module cache is
// read-only, and a package outside the main module cannot be tested.
func (s suite) copy(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "mod", "download", "-json", s.module).Output()
	if err != nil {
		t.Fatalf("download %s: %v\n%s", s.module, err, out)
	}
	var module struct{ Dir, Path, Version string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	name := strings.NewReplacer("/", "_", "@", "_").Replace(s.module)
	dir := filepath.Join(root(t), "build", "suites", "src", name)
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
		return dir
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-r", "--no-preserve=mode", module.Dir, dir).CombinedOutput(); err != nil {
		t.Fatalf("copy %s: %v\n%s", module.Dir, err, out)
	}
	return dir
}

// serve starts a server with the custom resources of a directory, and returns its
// kubeconfig.
func serve(t *testing.T, assets, crds string) string {
	t.Helper()
	access := proatest.Start(t, proatest.Options{})
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	file, err := pki.Kubeconfig(access.Host, access.CAData, access.CertData, access.KeyData, "suite")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(kubeconfig, file, 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl := filepath.Join(assets, "kubectl")
	for _, args := range [][]string{
		{"apply", "--server-side", "-k", crds}, {"wait", "crd", "--all", "--for=condition=Established", "--timeout=30s"},
	} {
		if out, err := exec.Command(kubectl, append([]string{"--kubeconfig", kubeconfig}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("kubectl %v: %v\n%s", args, err, out)
		}
	}
	return kubeconfig
}

func compile(t *testing.T, dir, tags, binary string) {
	t.Helper()
	cmd := exec.Command("go", "test", "-c", "-tags", tags, "-o", binary, ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=") // those of the suite's own module
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := within(cmd, compileTime); err != nil {
		t.Fatalf("compile: %v\n%s", err, out.Bytes())
	}
}

// within runs a command and its children, and ends them all when time is over.
func within(cmd *exec.Cmd, limit time.Duration) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return err
	}
	kill := time.AfterFunc(limit, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	err := cmd.Wait()
	if !kill.Stop() {
		return fmt.Errorf("not done after %s", limit)
	}
	return err
}

type counts struct {
	passed, failed int
	failures       []string
}

var (
	ginkgo = regexp.MustCompile(`(\d+) Passed .*?(\d+) Failed`)
	failed = regexp.MustCompile(`^\s*(?:--- FAIL: (\S+)|\[FAIL\] (.*))`)
	passed = regexp.MustCompile(`^\s*--- PASS: `)
	colour = regexp.MustCompile(`\x1b\[[0-9;]*m`)
)

// count reads what a test binary said: of Ginkgo its sum, of others every test
// and subtest.
func count(out []byte) counts {
	var c counts
	var specs bool
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		line := colour.ReplaceAllString(lines.Text(), "")
		if m := ginkgo.FindStringSubmatch(line); m != nil {
			specs = true
			c.passed, _ = strconv.Atoi(m[1])
			c.failed, _ = strconv.Atoi(m[2])
			continue
		}
		if m := failed.FindStringSubmatch(line); m != nil {
			if !specs {
				c.failed++
			}
			c.failures = append(c.failures, strings.TrimSpace(m[1]+m[2]))
		} else if passed.MatchString(line) && !specs {
			c.passed++
		}
	}
	return c
}

// reap ends the servers that a suite has left: one that panics stops none.
func reap(t *testing.T, assets string) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(target, assets+"/") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if err != nil {
			continue
		}
		t.Logf("%s, process %d, was left behind", filepath.Base(target), pid)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

func TestCountsAreRead(t *testing.T) {
	tests := []struct {
		name, output   string
		passed, failed int
		failures       string
	}{
		{"Ginkgo's sum", "  [FAIL] Client [It] should x\nRan 3 of 4 Specs in 1 seconds\nFAIL! -- 2 Passed | 1 Failed | 1 Pending | 0 Skipped\n--- FAIL: TestClient (1s)\n", 2, 1, "Client [It] should x,TestClient"},
		{"tests and subtests", "--- PASS: TestA (0.0s)\n    --- PASS: TestA/b (0s)\n--- FAIL: TestC (0s)\n", 2, 1, "TestC"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := count([]byte(tt.output))
			if c.passed != tt.passed || c.failed != tt.failed || strings.Join(c.failures, ",") != tt.failures {
				t.Errorf("%+v", c)
			}
		})
	}
}
