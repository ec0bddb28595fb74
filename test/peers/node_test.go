package peers

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

const busybox = "build/images/busybox.tar"

// roomyNode keeps the tests from depending on how full this machine's disk is.
const roomyNode = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
evictionHard: {memory.available: 100Mi, nodefs.available: 1Gi, imagefs.available: 1Gi}
`

// node starts a cluster with a node on this machine, with flags of proa up. It has
// images, each a file of a path in the repository.
func node(t *testing.T, images []string, flags ...string) *cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a node needs root")
	}
	files := make([]string, len(images))
	for i, image := range images {
		files[i] = repo(t, image)
		if _, err := os.Stat(files[i]); err != nil {
			t.Skip(image + " is not built: make images")
		}
	}
	program, dir := proa(t), filepath.Join(t.TempDir(), "data")
	run := func(args ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if out, err := exec.CommandContext(ctx, program, append(args, "--data-dir", dir)...).CombinedOutput(); err != nil {
			t.Errorf("proa %v: %v\n%s", args, err, out)
		}
	}
	t.Cleanup(func() { run("down", "--delete") })
	run(append([]string{
		"up", "--detach", "--port", freePort(t), "--kubelet-port", freePort(t), "--kubelet-config", file(t, "kubelet.yaml", roomyNode),
		"--write-kubeconfig", filepath.Join(t.TempDir(), "kubeconfig"),
	}, flags...)...)
	if t.Failed() {
		t.FailNow()
	}
	run(append([]string{"image", "load"}, files...)...)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	access, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return reach(t, access, kubeconfig)
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// install applies what a project publishes for its users, but for the place of its
// manager's image, and waits until the manager is ready. One replica will do here.
func (c *cluster) install(t *testing.T, kustomization, namespace, manager, image string, replaced ...string) {
	t.Helper()
	rendered := strings.NewReplacer(append(replaced, "imagePullPolicy: Always", "imagePullPolicy: IfNotPresent")...).Replace(c.kubectl(t, "kustomize", kustomization))
	theirs := regexp.MustCompile(`(?m)^(\s+image: )\S+/\S+$`)
	if n := len(theirs.FindAllString(rendered, -1)); n != 1 {
		t.Fatalf("%s names %d images", kustomization, n)
	}
	c.apply(t, theirs.ReplaceAllString(rendered, "${1}"+image), "--server-side")
	c.kubectl(t, "scale", "-n", namespace, "deployment", manager, "--replicas=1")
	if out, err := c.try(t, "", "rollout", "status", "-n", namespace, "deployment/"+manager, "--timeout=90s"); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, c.kubectl(t, "get", "all,events", "-n", namespace))
	}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := c.try(t, "", "logs", "-n", namespace, "deployment/"+manager, "--tail=60")
			t.Logf("%s:\n%s", manager, out)
			out, _ = c.try(t, "", "get", "all,events", "-A", "-o", "wide")
			t.Log(out)
		}
	})
}
