package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// The scripts of testdata/kubectl are what people type. A block is a shell
// command, a line "----" and what it prints on both streams. In what it prints,
// "..." stands for the rest of a line, a line of it alone for any lines, and
// several spaces for any number. A command after "!" must fail; one after "?" is
// tried until it prints that.
type script struct {
	name   string
	blocks []block
}

type block struct {
	line    int
	command string
	fails   bool
	waits   bool
	want    string
}

const separator = "----"

func readScript(t *testing.T, file string) script {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := script{name: strings.TrimSuffix(filepath.Base(file), ".txt")}
	line := 1
	for _, text := range strings.SplitAfter(string(data), "\n\n") {
		command, want, found := strings.Cut(text, "\n"+separator+"\n")
		b := block{line: line, command: command, want: strings.TrimSpace(want)}
		line += strings.Count(text, "\n")
		if !found {
			if comment := strings.TrimSpace(text); comment != "" && !strings.HasPrefix(comment, "#") {
				t.Fatalf("%s:%d: no %s", file, b.line, separator)
			}
			continue
		}
		b.command, b.fails = strings.CutPrefix(b.command, "! ")
		b.command, b.waits = strings.CutPrefix(b.command, "? ")
		s.blocks = append(s.blocks, b)
	}
	return s
}

var (
	manySpaces = regexp.MustCompile(`  +`)
	trailing   = regexp.MustCompile(`[ \t]+\n`)
)

// pattern is what the output of b has to match.
func (b block) pattern() *regexp.Regexp {
	var p strings.Builder
	p.WriteString(`\A`)
	lines := strings.Split(b.want, "\n")
	for i, line := range lines {
		if line == "..." {
			p.WriteString(`(?s:.*)`)
			continue
		}
		if i > 0 && lines[i-1] != "..." {
			p.WriteString(`\n`)
		}
		quoted := strings.ReplaceAll(regexp.QuoteMeta(line), `\.\.\.`, `[^\n]*`)
		p.WriteString(manySpaces.ReplaceAllString(quoted, ` +`))
		if i+1 < len(lines) && lines[i+1] == "..." {
			p.WriteString(`(?:\n|\z)`)
		}
	}
	p.WriteString(`\z`)
	return regexp.MustCompile(p.String())
}

// shell runs the commands of one script.
type shell struct {
	dir string
	env []string
}

// newShell is a shell with the given program as kubectl, and a kubeconfig that names
// a namespace of its own.
func newShell(t *testing.T, c *cluster, namespace, kubectl string) *shell {
	t.Helper()
	config, err := clientcmd.LoadFromFile(c.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	config.Contexts[config.CurrentContext].Namespace = namespace
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	node := c.kubectl(t, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
	return &shell{dir: dir, env: append(os.Environ(),
		"PATH="+filepath.Dir(kubectl)+":"+dir+":"+os.Getenv("PATH"), "KUBECONFIG="+kubeconfig, "HOME="+dir,
		"NS="+namespace, "NODE="+node, "TESTDATA="+repo("test/e2e/testdata"))}
}

const blockTimeout = 75 * time.Second

// logLines are what client-go logs beside kubectl's own output, when a watch
// ends because kubectl has seen what it waited for.
var logLines = regexp.MustCompile(`(?m)^[IW]\d{4} [^\n]*\n`)

func (s *shell) run(b block) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), blockTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euc", b.command)
	cmd.Dir, cmd.Env = s.dir, s.env
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return strings.TrimSpace(trailing.ReplaceAllString(logLines.ReplaceAllString(out.String(), ""), "\n")), err
}

func (s *shell) check(b block) error {
	out, err := s.run(b)
	switch {
	case err != nil && !b.fails:
		return fmt.Errorf("%w, having printed\n%s", err, out)
	case err == nil && b.fails:
		return fmt.Errorf("it succeeded and printed\n%s", out)
	case !b.pattern().MatchString(out):
		return fmt.Errorf("it printed\n%s\nwant\n%s", out, b.want)
	}
	return nil
}

// play runs a script to its end, or to the first command that goes wrong.
func (s *shell) play(t *testing.T, file string) {
	t.Helper()
	for _, b := range readScript(t, file).blocks {
		check := func() error {
			if err := s.check(b); err != nil {
				return fmt.Errorf("%s:%d: %s\n%w", filepath.Base(file), b.line, b.command, err)
			}
			return nil
		}
		if b.waits {
			eventually(t, 30*time.Second, check)
		} else if err := check(); err != nil {
			t.Fatal(err)
		}
	}
}

var buildKubectl = sync.OnceValues(func() (string, error) {
	path := repo("build/e2e/kubectl") // kept: the next run finds it up to date
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X k8s.io/component-base/version.gitVersion=v1.37.2", "-o", path, "./test/kubectl")
	build.Dir, build.Env = repo("."), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the stock kubectl: %w\n%s", err, out)
	}
	return path, nil
})

// stockKubectl is a kubectl with nothing of Proa in it.
func stockKubectl(t *testing.T) string {
	t.Helper()
	path, err := buildKubectl()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Every command of kubectl, as a person types it, with a client that is not ours.
func TestStockKubectl(t *testing.T) {
	files, err := filepath.Glob("testdata/kubectl/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d scripts, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			newShell(t, shared, shared.namespace(t), stockKubectl(t)).play(t, file)
		})
	}
}

// A drain closes the node to everybody, so this one runs alone.
func TestStockKubectlDrainsANode(t *testing.T) {
	newShell(t, shared, shared.namespace(t), stockKubectl(t)).play(t, "testdata/drain.txt")
}

// debian is what a package of this machine's Debian has in usr/bin. It is kept: the next
// run finds it.
func debian(t *testing.T, name string) string {
	t.Helper()
	dir := repo("build/e2e/debian/" + name)
	bin := filepath.Join(dir, "usr/bin")
	if _, err := os.Stat(bin); err == nil {
		return bin
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	get := exec.Command("bash", "-euc", "apt-get -qq -o APT::Sandbox::User=root download $0 && dpkg-deb -x $0_*.deb . && rm $0_*.deb", name)
	get.Dir = dir
	if out, err := get.CombinedOutput(); err != nil {
		t.Skipf("this machine's Debian has no package %s: %v\n%s", name, err, out)
	}
	return bin
}

// debianKubectl is the kubectl that Debian 12 carries, 1.20: the oldest client
// that people are likely to have, with SPDY instead of WebSocket.
func debianKubectl(t *testing.T) string {
	t.Helper()
	return filepath.Join(debian(t, "kubernetes-client"), "kubectl")
}

func TestDebiansKubectl(t *testing.T) {
	t.Parallel()
	newShell(t, shared, shared.namespace(t), debianKubectl(t)).play(t, "testdata/debian.txt")
}

// By the name of kubectl proa is kubectl.
func TestProaIsKubectlByName(t *testing.T) {
	link := filepath.Join(t.TempDir(), "kubectl")
	symlink(t, binary, link)
	cmd := exec.Command(link, "get", "namespaces", "default", "-o", "name")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+shared.kubeconfig())
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "namespace/default\n" {
		t.Errorf("%v\n%s", err, out)
	}
}

func symlink(t *testing.T, target, link string) {
	t.Helper()
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
}
