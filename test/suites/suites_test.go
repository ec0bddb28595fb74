// Package suites runs test suites of other projects, unmodified, against this
// program in the place of upstream's kube-apiserver, etcd and kubectl. Each suite
// is a Go module of its own: it comes through the Go module proxy, is copied to a
// scratch directory, compiled there and started with KUBEBUILDER_ASSETS.
//
// The suites are not part of `go test ./...`: PROA_SUITES names those to run, by
// name and comma, or all. What they gave is kept in results.yaml, which is part of
// docs/compatibility.md; a run that gives anything else fails, unless -record
// writes it down.
package suites

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	utilversion "k8s.io/apimachinery/pkg/util/version"
)

// suite is one test package of another project.
type suite struct {
	name   string
	module string // path@version
	dir    string // of the package within the module
	tags   string // of the build
	args   []string
	skips  []skipped
	note   string // what is special about how it runs

	// raised builds it with the versions that this program is built from where
	// those are newer than its own: what is compiled for `make test` serves it then.
	raised bool

	// crds is a directory of the module, with a kustomization. Where it is given, the suite finds a
	// server with them by KUBECONFIG: it would start a downloaded one otherwise.
	crds string

	// prepare makes what the suite needs beside the assets, and returns variables of its environment.
	prepare func(t *testing.T, s suite, module, assets string) []string

	// alone gives it network and processes of its own: its ports are fixed, and it leaves daemons behind.
	alone bool

	limit time.Duration // of its run; default runTime
	apart bool          // run only when it is named: nothing is recorded yet of what it gives
}

// skipped are tests that do not tell anything about the server.
type skipped struct {
	Tests  string `json:"tests"` // as `go test -skip` takes it
	Reason string `json:"reason"`
}

const (
	clusterAPI = "sigs.k8s.io/cluster-api@v1.13.6"
	fluxcdSSA  = "github.com/fluxcd/pkg/ssa@v0.78.0"
)

var all = append(controllerRuntime(), []suite{
	{name: "fluxcd-ssa", module: fluxcdSSA, dir: ".", skips: []skipped{{
		"TestWaitForSet_JobWithTTL/NotFound_Job_without_TTL_option",
		"its poll and its deadline fall on the same moment; it fails now and then on upstream's kube-apiserver too",
	}}},
	{name: "fluxcd-ssa-jsondiff", module: fluxcdSSA, dir: "jsondiff"},
	{name: "gateway-api-cel", module: "sigs.k8s.io/gateway-api@v1.4.1", dir: "pkg/test/cel", tags: "experimental", crds: "config/crd/experimental", skips: []skipped{{
		"TestHTTPRouteTimeouts/invalid_timeout_request_200ms_less",
		"it wants the text of older servers; upstream's kube-apiserver 1.37 fails it too",
	}}},
	{name: "cluster-api-ssa", module: clusterAPI, dir: "internal/util/ssa"},
	{name: "cluster-api-webhooks", module: clusterAPI, dir: "internal/webhooks/test"},
	{name: "cluster-api-crdmigrator", module: clusterAPI, dir: "controllers/crdmigrator"},
	{name: "cluster-api-patch", module: clusterAPI, dir: "util/patch/test"},
	kwokctl,
}...)

// controllerRuntime are the packages of controller-runtime that start a server.
func controllerRuntime() []suite {
	var suites []suite
	for _, dir := range []string{
		"builder", "cache", "client", "client/apiutil", "cluster", "controller", "controller/controllerutil", "envtest", "handler",
		"internal/controller", "internal/recorder", "internal/testing/controlplane", "manager", "manager/internal/integration",
		"metrics/filters", "reconcile", "source", "webhook",
	} {
		s := suite{
			name:   "controller-runtime-" + strings.ReplaceAll(dir, "/", "-"),
			module: "sigs.k8s.io/controller-runtime@v0.25.2", dir: "pkg/" + dir, raised: true,
		}
		switch dir {
		case "cache":
			s.args = []string{"-ginkgo.flake-attempts=5"}
			s.note = "up to five attempts: one spec wants an informer not to be synced yet when it looks, and a fast server may be done"
		case "client/apiutil":
			s.skips = []skipped{{"/aggregatedDiscovery=false", "they download an older kube-apiserver"}}
		}
		suites = append(suites, s)
	}
	return suites
}

const (
	compileTime = 20 * time.Minute
	runTime     = 10 * time.Minute
)

var record = flag.Bool("record", false, "write what is counted to results.yaml")

func TestSuitesOfOtherProjectsPass(t *testing.T) {
	if os.Getenv("PROA_SUITES") == "" {
		t.Skip("PROA_SUITES names no suite; `make test-suites` runs all of them, which compiles a lot")
	}
	assets := writeAssets(t)
	known, err := readResults()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if !wanted(s.name) || s.apart && !named(s.name) {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			known.compare(t, s.run(t, assets))
		})
	}
}

// wanted says whether PROA_SUITES names a suite, or all.
func wanted(name string) bool { return named("all") || named(name) }

func named(name string) bool {
	return slices.Contains(strings.Split(os.Getenv("PROA_SUITES"), ","), name)
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
	dir := filepath.Join(root(t), "build", "suites", "assets")
	if out, err := exec.Command(program(t), "envtest", dir).CombinedOutput(); err != nil {
		t.Fatalf("%s envtest: %v\n%s", program(t), err, out)
	}
	return dir
}

// program is the one that is tested.
func program(t *testing.T) string {
	t.Helper()
	if file := os.Getenv("PROA"); file != "" {
		return file
	}
	return filepath.Join(root(t), "bin", "proa")
}

// run returns what the suite's tests gave; those that failed are errors of t.
func (s suite) run(t *testing.T, assets string) result {
	module := s.copy(t)
	dir := filepath.Join(module, s.dir)
	binary := filepath.Join(root(t), "build", "suites", s.name+".test")
	var env []string
	if s.prepare != nil {
		env = s.prepare(t, s, module, assets)
	}
	s.compile(t, module, binary)
	defer os.Remove(binary) // large, and soon linked again
	defer reap(t, assets)
	args := append([]string{"-test.v=test2json"}, s.args...)
	if len(s.skips) > 0 {
		patterns := make([]string, len(s.skips))
		for i, skip := range s.skips {
			patterns[i] = skip.Tests
		}
		args = append(args, "-test.skip="+strings.Join(patterns, "|"))
	}
	cmd := exec.Command(binary, args...)
	if s.alone {
		cmd = secluded(t, cmd.Args)
	}
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "PWD="+dir, "KUBEBUILDER_ASSETS="+assets), env...)
	if s.crds != "" {
		cmd.Env = append(cmd.Env, "KUBECONFIG="+serve(t, assets, filepath.Join(module, s.crds)))
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	log := filepath.Join(root(t), "build", "suites", s.name+".log")
	err := within(cmd, cmp.Or(s.limit, runTime))
	if writeErr := os.WriteFile(log, out.Bytes(), 0o644); writeErr != nil {
		t.Error(writeErr)
	}
	c := count(out.Bytes())
	t.Logf("%s; see %s", c.result, log)
	for _, name := range c.failures {
		t.Error(name)
	}
	if err != nil {
		t.Errorf("%v", err)
	}
	return s.result(c.result)
}

// copy puts the module's sources where they can be compiled: the module cache is
// read-only, and a package outside the main module cannot be tested.
func (s suite) copy(t *testing.T) string {
	t.Helper()
	module := download(t, s.module)
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
	// Modules carry no modes, and some tests run scripts.
	if out, err := exec.Command("find", dir, "-name", "*.sh", "-exec", "chmod", "+x", "{}", "+").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// serve starts a server with the custom resources of directories, and returns its
// kubeconfig.
func serve(t *testing.T, assets string, crds ...string) string {
	t.Helper()
	data := filepath.Join(t.TempDir(), "data")
	kubeconfig := filepath.Join(data, "kubeconfig")
	server := exec.Command(program(t), "server", "--no-node", "--data-dir", data, "--port", freePort(t))
	var log bytes.Buffer
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGTERM)
		_ = server.Wait()
		if t.Failed() {
			t.Logf("the server:\n%s", log.Bytes())
		}
	})
	kubectl := func(args ...string) ([]byte, error) {
		return exec.Command(filepath.Join(assets, "kubectl"), append([]string{"--kubeconfig", kubeconfig}, args...)...).CombinedOutput()
	}
	deadline := time.Now().Add(time.Minute)
	for {
		out, err := kubectl("get", "--raw", "/readyz")
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server does not get ready: %v\n%s", err, out)
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, dir := range crds {
		for _, args := range [][]string{
			{"apply", "--server-side", "-k", dir}, {"wait", "crd", "--all", "--for=condition=Established", "--timeout=30s"},
		} {
			if out, err := kubectl(args...); err != nil {
				t.Fatalf("kubectl %v: %v\n%s", args, err, out)
			}
		}
	}
	return kubeconfig
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

func (s suite) compile(t *testing.T, module, binary string) {
	t.Helper()
	s.goTool(t, module, "test", "-c", "-tags", s.tags, "-o", binary, "./"+s.dir)
}

// goTool runs go in the module. Its first argument is the command.
func (s suite) goTool(t *testing.T, module string, args ...string) {
	t.Helper()
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { // as by itself
		return strings.HasPrefix(v, "GOFLAGS=") || strings.HasPrefix(v, "CGO_ENABLED=")
	})
	if s.raised {
		args = slices.Insert(args, 1, "-trimpath", "-mod=mod", "-modfile="+s.raise(t, module))
		env = append(env, "CGO_ENABLED=0") // as `make test` compiles
	}
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = module, env
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := within(cmd, compileTime); err != nil {
		t.Fatalf("compile: %v\n%s", err, out.Bytes())
	}
}

// raise writes a go.mod and go.sum for the suite with this program's versions of
// what both require, where those are newer, and returns the path of the first.
func (s suite) raise(t *testing.T, module string) string {
	t.Helper()
	file := filepath.Join(module, "raised.mod")
	sums := []byte{}
	for _, dir := range []string{module, root(t)} {
		sum, err := os.ReadFile(filepath.Join(dir, "go.sum"))
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, sum...)
	}
	if err := os.WriteFile(filepath.Join(module, "raised.sum"), sums, 0o644); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, mod, 0o644); err != nil {
		t.Fatal(err)
	}
	edits := []string{"mod", "edit"}
	ours, theirs := requirements(t, root(t)), requirements(t, module)
	for path, version := range theirs {
		newer := ours[path]
		if newer == "" && strings.HasPrefix(path, "k8s.io/") && version == theirs["k8s.io/api"] {
			newer = ours["k8s.io/api"] // they go together
		}
		if newer != "" && utilversion.MustParseSemantic(version).LessThan(utilversion.MustParseSemantic(newer)) {
			edits = append(edits, "-require="+path+"@"+newer)
		}
	}
	if out, err := exec.Command("go", append(edits, file)...).CombinedOutput(); err != nil {
		t.Fatalf("go %v: %v\n%s", edits, err, out)
	}
	return file
}

// requirements are the modules that a go.mod names, with their versions.
func requirements(t *testing.T, dir string) map[string]string {
	t.Helper()
	out, err := exec.Command("go", "mod", "edit", "-json", filepath.Join(dir, "go.mod")).Output()
	if err != nil {
		t.Fatal(err)
	}
	var mod struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, r := range mod.Require {
		versions[r.Path] = r.Version
	}
	return versions
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
