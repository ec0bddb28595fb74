package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

// plugins are executables as plugin managers put them on PATH: one with a name of
// two words and one with a dash, which is an underscore in its file.
var plugins = map[string]string{
	"kubectl-count-configmaps": `#!/bin/sh
# The words of its name are not among its arguments.
"$KUBECTL" get configmaps --namespace "$1" --output name | wc -l
`,
	"kubectl-which_cluster": `#!/bin/sh
echo "called as $(basename "$0") with $# arguments: $*"
echo "and its errors" >&2
exit 7
`,
	"kubectl-get": `#!/bin/sh
echo "a plugin cannot replace a command"
`,
}

func TestKubectlPlugins(t *testing.T) {
	t.Parallel()
	ns := shared.namespace(t)
	dir := t.TempDir()
	for name, script := range plugins {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, client := range kubectls(t) {
		t.Run(client.name, func(t *testing.T) {
			kubectl := filepath.Join(t.TempDir(), "kubectl") // for plugins that call it
			if err := os.WriteFile(kubectl, []byte("#!/bin/sh\nexec "+strings.Join(client.program, " ")+` "$@"`+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			run := func(args ...string) (string, int) {
				t.Helper()
				cmd := exec.Command(client.program[0], append(client.program[1:len(client.program):len(client.program)], args...)...)
				cmd.Env = append(os.Environ(), "PATH="+dir+":/usr/bin:/bin", "KUBECONFIG="+shared.kubeconfig(), "HOME="+t.TempDir(), "KUBECTL="+kubectl)
				out, _ := cmd.CombinedOutput()
				return string(out), cmd.ProcessState.ExitCode()
			}
			if out, code := run("count", "configmaps", ns); code != 0 || strings.TrimSpace(out) != "1" { // kube-root-ca.crt
				t.Errorf("count configmaps: %d\n%s", code, out)
			}
			out, code := run("which-cluster", "a", "--flag=b", "c d")
			if want := "called as kubectl-which_cluster with 3 arguments: a --flag=b c d\nand its errors\n"; out != want || code != 7 {
				t.Errorf("which-cluster: %d\n%s", code, out)
			}
			if out, code := run("get", "namespace", ns, "-o", "name"); code != 0 || out != "namespace/"+ns+"\n" {
				t.Errorf("get, of which there is a plugin too: %d\n%s", code, out)
			}
			if out, code := run("no-such-plugin"); code == 0 || !strings.Contains(out, `unknown command "no-such-plugin" for "kubectl"`) {
				t.Errorf("no-such-plugin: %d\n%s", code, out)
			}
			out, code = run("plugin", "list")
			for _, want := range []string{"kubectl-count-configmaps", "kubectl-which_cluster", "overwrites existing command"} {
				if code == 0 || !strings.Contains(out, want) {
					t.Errorf("plugin list: %d, without %q\n%s", code, want, out)
				}
			}
		})
	}
}

type kubectlProgram struct {
	name    string
	program []string
}

func kubectls(t *testing.T) []kubectlProgram {
	return []kubectlProgram{
		{"proa kubectl", []string{binary, "kubectl"}},
		{"stock kubectl", []string{stockKubectl(t)}},
	}
}

// Two plugins that people have, kubectx and kubens, under the names by which plugin
// managers install them.
func TestPublishedKubectlPlugins(t *testing.T) {
	t.Parallel()
	bin := debian(t, "kubectx")
	ns := shared.namespace(t)
	config, err := clientcmd.LoadFromFile(shared.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	first := config.CurrentContext
	config.Contexts["other"] = config.Contexts[first]
	for _, client := range kubectls(t) {
		t.Run(client.name, func(t *testing.T) {
			dir := t.TempDir()
			symlink(t, filepath.Join(bin, "kubens"), filepath.Join(dir, "kubectl-ns"))
			symlink(t, filepath.Join(bin, "kubectx"), filepath.Join(dir, "kubectl-ctx"))
			kubectl := filepath.Join(dir, "kubectl") // which they call
			if err := os.WriteFile(kubectl, []byte("#!/bin/sh\nexec "+strings.Join(client.program, " ")+` "$@"`+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			kubeconfig := filepath.Join(dir, "kubeconfig")
			if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
				t.Fatal(err)
			}
			run := func(args ...string) string {
				t.Helper()
				cmd := exec.Command(kubectl, args...)
				cmd.Env = append(os.Environ(), "PATH="+dir+":/usr/bin:/bin", "KUBECONFIG="+kubeconfig, "HOME="+dir, "XDG_CACHE_HOME="+dir)
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
				}
				return strings.TrimSpace(string(out))
			}
			if out := run("ns"); !slices.Contains(strings.Split(out, "\n"), ns) {
				t.Errorf("ns does not list %s:\n%s", ns, out)
			}
			run("ns", ns)
			if out := run("ns", "--current"); out != ns {
				t.Errorf("the namespace is %q after it was changed to %q", out, ns)
			}
			if out := run("get", "configmaps", "-o", "name"); out != "configmap/kube-root-ca.crt" {
				t.Errorf("in the plugin's namespace there is %q", out)
			}
			run("ctx", "other")
			if out := run("ctx", "--current"); out != "other" {
				t.Errorf("the context is %q after it was changed to other", out)
			}
			run("ctx", "-")
			if out := run("config", "current-context"); out != first {
				t.Errorf("the context is %q after it was changed back to %q", out, first)
			}
			if out := run("plugin", "list"); !strings.Contains(out, "kubectl-ns") || !strings.Contains(out, "kubectl-ctx") {
				t.Errorf("plugin list:\n%s", out)
			}
		})
	}
}
