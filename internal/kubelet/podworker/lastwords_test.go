package podworker

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"proa/internal/kubelet/cri"
)

func TestLastWords(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const stamp = "2026-01-02T03:04:05.6Z"
	empty, file, long := write("empty", ""), write("file", "said so"), write("long", strings.Repeat("x", 9000))
	log := write("log", stamp+" stdout F one\n"+stamp+" stderr P tw\n"+stamp+" stderr F o\n")
	var many strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&many, "%s stdout F line %d\n", stamp, i)
	}
	manyLog := write("many", many.String())
	fallback := corev1.TerminationMessageFallbackToLogsOnError
	for _, tt := range []struct {
		name      string
		file, log string
		policy    corev1.TerminationMessagePolicy
		exit      int32
		want      string
	}{
		{"the file's content", file, log, fallback, 1, "said so"},
		{"at most 4096 bytes of it", long, log, corev1.TerminationMessageReadFile, 0, strings.Repeat("x", 4096)},
		{"the log after a failure without a message", empty, log, fallback, 1, "one\ntwo\n"},
		{"nothing after success", empty, log, fallback, 0, ""},
		{"nothing where only the file counts", empty, log, corev1.TerminationMessageReadFile, 1, ""},
		{"nothing from a missing log", empty, filepath.Join(dir, "none"), fallback, 1, ""},
	} {
		c := &cri.Container{MessagePath: "/m", MessagePolicy: tt.policy, ExitCode: tt.exit, LogPath: tt.log, Mounts: []*runtimeapi.Mount{{ContainerPath: "/m", HostPath: tt.file}}}
		if got := lastWords(c, &corev1.Pod{}); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	got := logEnd(manyLog)
	if len(got) > maxLogMessage || strings.Count(got, "\n") > maxLogLines || !strings.HasSuffix(got, "line 4999\n") {
		t.Errorf("end of a long log: %d bytes, %q", len(got), got)
	}
}

func TestHostsFile(t *testing.T) {
	aliases := []corev1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"a", "b"}}}
	for _, tt := range []struct {
		name string
		spec corev1.PodSpec
		want []string
	}{
		{"a name in a domain, and aliases", corev1.PodSpec{Hostname: "h", Subdomain: "s", HostAliases: aliases},
			[]string{"# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n", "10.0.0.1\th.s.ns.svc.cluster.local\th\n", "1.2.3.4\ta\tb\n"}},
		{"the full name as host name", corev1.PodSpec{Hostname: "h", Subdomain: "s", SetHostnameAsFQDN: ptr.To(true)},
			[]string{"\n10.0.0.1\th.s.ns.svc.cluster.local\th\n"}},
		{"an override in no domain", corev1.PodSpec{Hostname: "h", Subdomain: "s", HostnameOverride: ptr.To("over.example.host")},
			[]string{"\n10.0.0.1\tover.example.host\n"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "hosts")
			pod := &corev1.Pod{Spec: tt.spec}
			pod.Namespace = "ns"
			if err := writeHosts(file, pod, []string{"10.0.0.1"}, "cluster.local"); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range tt.want {
				if !strings.Contains(string(b), want) {
					t.Errorf("hosts lacks %q:\n%s", want, b)
				}
			}
		})
	}
}

func TestRestartCountSurvivesALostContainer(t *testing.T) {
	pod := &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "a", ContainerID: "x://1", RestartCount: 4}, {Name: "new"}}}}
	rt := &cri.Pod{Containers: []*cri.Container{{Name: "b", RestartCount: 6}}}
	for name, want := range map[string]int{"a": 5, "b": 7, "new": 0} {
		if got := restartCount(pod, rt, name); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}
