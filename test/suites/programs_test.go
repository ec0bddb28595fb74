package suites

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// builtProgram is a program of another project.
type builtProgram struct {
	name    string
	module  string // path@version
	command string // its directory within the module
}

var (
	etcdctl       = builtProgram{"etcdctl", "go.etcd.io/etcd/etcdctl/v3@v3.7.2", ""}
	etcdutl       = builtProgram{"etcdutl", "go.etcd.io/etcd/etcdutl/v3@v3.7.2", ""}
	metricsServer = builtProgram{"metrics-server", "sigs.k8s.io/metrics-server@v0.9.0", "cmd/metrics-server"}
)

// buildPrograms builds programs in a scratch module that requires what this program
// requires, so that what both are made of is compiled once.
func buildPrograms(t *testing.T, into string, programs ...builtProgram) {
	t.Helper()
	for _, p := range programs {
		scratch := filepath.Join(root(t), "build", "suites", "src", "programs", p.name)
		if err := os.MkdirAll(scratch, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"go.mod", "go.sum"} {
			data, err := os.ReadFile(filepath.Join(root(t), name))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(scratch, name), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, args := range [][]string{
			{"mod", "edit", "-module=programs", "-require=" + p.module},
			{"build", "-trimpath", "-mod=mod", "-o", filepath.Join(into, p.name), p.packagePath()},
		} {
			cmd := exec.Command("go", args...)
			cmd.Dir, cmd.Env = scratch, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := within(cmd, compileTime); err != nil {
				t.Fatalf("%s: go %v: %v\n%s", p.name, args, err, out.Bytes())
			}
		}
	}
}

func (p builtProgram) packagePath() string {
	module, _, _ := strings.Cut(p.module, "@")
	return path.Join(module, p.command)
}

// downloadedModule is where the module cache has a module.
type downloadedModule struct{ Dir, Path, Version string }

func download(t *testing.T, module string) downloadedModule {
	t.Helper()
	out, err := exec.Command("go", "mod", "download", "-json", module).Output()
	if err != nil {
		t.Fatalf("download %s: %v\n%s", module, err, out)
	}
	var m downloadedModule
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatal(err)
	}
	return m
}
