package node

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The node tells what it is and how it is, and takes another verbosity while it runs.
// A container's log has a link whose name collectors read, as long as there is the log.
func TestTheNodeTellsWhatItIs(t *testing.T) {
	t.Parallel()
	a := prepare(t)
	a.start("--config", a.file("containerRuntimeEndpoint: "+shared.endpoint()+"\n"), "--v", "2")
	node := "/api/v1/nodes/" + a.name + "/proxy"
	for path, want := range map[string][]string{
		"/statusz":      {"kubelet statusz", "Binary version: 1.37.", "Paths: /configz"},
		"/flagz":        {"kubelet flagz", "hostname-override=" + a.name, "v=2"},
		"/healthz":      {"ok"},
		"/metrics":      {"kubelet_cgroup_version " + cgroupVersion()},
		"/metrics/slis": nil,
	} {
		page := a.raw(node+path, "")
		for _, w := range want {
			if !strings.Contains(page, w) {
				t.Errorf("%s has no %q:\n%.3000s", path, w, page)
			}
		}
	}
	slis := a.raw(node+"/metrics/slis", "")
	for _, want := range []string{`kubernetes_healthcheck{name="syncloop",type="healthz"} 1`, `kubernetes_healthchecks_total{name="ping",status="success",type="healthz"}`} {
		if !strings.Contains(slis, want) {
			t.Errorf("/metrics/slis has no %s:\n%s", want, slis)
		}
	}
	if object := a.raw(node+"/statusz", "application/json;as=Statusz;v=v1alpha1;g=config.k8s.io"); !strings.Contains(object, `"kind":"Statusz"`) {
		t.Errorf("as an object: %s", object)
	}
	said, err := a.api.CoreV1().RESTClient().Put().AbsPath(node + "/debug/flags/v").Body([]byte("5")).DoRaw(t.Context())
	if err != nil || !strings.Contains(string(said), "successfully set klog.logging.verbosity to 5") {
		t.Errorf("another verbosity: %s, %v", said, err)
	}

	p := a.pod("logs", nil, corev1.PodRunning)
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	link := filepath.Join("/var/log/containers", fmt.Sprintf("%s_%s_c-%s.log", p.Name, p.Namespace, id))
	a.await("the log by its link", func() bool {
		data, err := os.ReadFile(link)
		return err == nil && strings.Contains(string(data), "hello")
	})
	now := int64(1)
	must(t, a.api.CoreV1().Pods(p.Namespace).Delete(t.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	a.await("the link gone", func() bool {
		_, err := os.Lstat(link)
		return os.IsNotExist(err)
	})
}

func cgroupVersion() string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return "2"
	}
	return "1"
}

// A container whose liveness fails is restarted again and again, and each restart
// counts one.
func TestRestartsAreCountedOneByOne(t *testing.T) {
	t.Parallel()
	const restarts = 5
	a := prepare(t)
	a.start("--config", a.file("containerRuntimeEndpoint: "+shared.endpoint()+"\nfeatureGates: {KubeletCrashLoopBackOffMax: true}\ncrashLoopBackOff: {maxContainerRestartPeriod: 1s}\n"))
	seen := []int32{}
	p := a.pod("failing", func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		c.LivenessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1}
		c.LivenessProbe.TCPSocket = &corev1.TCPSocketAction{Port: intstr.FromInt32(1)}
	}, corev1.PodRunning)
	a.await("five restarts", func() bool {
		got, err := a.api.CoreV1().Pods("default").Get(t.Context(), p.Name, metav1.GetOptions{})
		if err != nil || len(got.Status.ContainerStatuses) != 1 {
			return false
		}
		n := got.Status.ContainerStatuses[0].RestartCount
		if !slices.Contains(seen, n) {
			seen = append(seen, n)
		}
		return n >= restarts
	})
	if !slices.Equal(seen, []int32{0, 1, 2, 3, 4, 5}) {
		t.Errorf("the count went %v", seen)
	}
}

// Groups that an image's /etc/group gives its user are merged or left out, as the pod
// says, and the status tells which the first process has.
func TestSupplementalGroups(t *testing.T) {
	t.Parallel()
	a := prepare(t)
	image := withFiles(t, "groups", map[string]string{
		"etc/passwd": "root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n",
		"etc/group":  "root:x:0:\nuser:x:1000:\nimage:x:50000:user\n",
	})
	a.start("--config", a.file("containerRuntimeEndpoint: "+shared.endpoint()+"\n"))
	n, err := a.api.CoreV1().Nodes().Get(t.Context(), a.name, metav1.GetOptions{})
	must(t, err)
	if f := n.Status.Features; f == nil || f.SupplementalGroupsPolicy == nil || !*f.SupplementalGroupsPolicy {
		t.Errorf("the node's features are %+v", f)
	}
	merge, strict := corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict
	for name, tt := range map[string]struct {
		policy *corev1.SupplementalGroupsPolicy
		want   []int64
	}{"unset": {nil, []int64{1000, 50000, 60000}}, "merge": {&merge, []int64{1000, 50000, 60000}}, "strict": {&strict, []int64{1000, 60000}}} {
		user := int64(1000)
		p := a.pod(name, func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user, RunAsGroup: &user, SupplementalGroups: []int64{60000}, SupplementalGroupsPolicy: tt.policy}
			p.Spec.Containers[0].Image = image
		}, corev1.PodRunning)
		a.await(p.Name+" ready", func() bool {
			got, err := a.api.CoreV1().Pods("default").Get(t.Context(), p.Name, metav1.GetOptions{})
			if err == nil {
				p = got
			}
			return err == nil && p.Status.ContainerStatuses[0].Ready
		})
		var groups []int64
		for _, g := range strings.Fields(a.exec(p, "id", "-G")) {
			id, err := strconv.ParseInt(g, 10, 64)
			must(t, err)
			groups = append(groups, id)
		}
		slices.Sort(groups)
		if groups = slices.Compact(groups); !slices.Equal(groups, tt.want) {
			t.Errorf("%s: the process is in %v, want %v", name, groups, tt.want)
		}
		u := p.Status.ContainerStatuses[0].User
		if u == nil || u.Linux == nil || u.Linux.UID != 1000 || u.Linux.GID != 1000 {
			t.Errorf("%s: the status tells of user %+v", name, u)
			continue
		}
		told := slices.Sorted(slices.Values(append(u.Linux.SupplementalGroups, u.Linux.GID)))
		if !slices.Equal(slices.Compact(told), tt.want) {
			t.Errorf("%s: the status tells of groups %v", name, u.Linux.SupplementalGroups)
		}
	}
}

// withFiles serves the busybox image with more files in it.
func withFiles(t *testing.T, tag string, files map[string]string) string {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for path, text := range files {
		must(t, w.WriteHeader(&tar.Header{Name: path, Mode: 0o644, Size: int64(len(text))}))
		_, err := io.WriteString(w, text)
		must(t, err)
	}
	must(t, w.Close())
	added, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
	must(t, err)
	base, err := name.ParseReference(shared.image)
	must(t, err)
	img, err := remote.Image(base)
	must(t, err)
	img, err = mutate.AppendLayers(img, []v1.Layer{added}...)
	must(t, err)
	ref := strings.TrimSuffix(shared.image, "busybox:1") + tag + ":1"
	target, err := name.ParseReference(ref)
	must(t, err)
	must(t, remote.Write(target, img))
	return ref
}
