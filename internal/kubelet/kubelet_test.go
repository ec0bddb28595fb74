package kubelet

import (
	"context"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"proa/internal/client"
)

const forever = "trap 'exit 0' TERM; while true; do sleep 0.1; done"

func TestPodRunsAndStops(t *testing.T) {
	w := newWorld(t)
	p := w.create(pod("a", nil, "echo hello; "+forever))
	p = w.until("a", "ready", ready)
	if p.Status.Phase != corev1.PodRunning || p.Status.PodIP == "" || p.Status.HostIP != "127.0.0.1" || p.Status.QOSClass != corev1.PodQOSBestEffort {
		t.Errorf("status: %+v", p.Status)
	}
	cs := p.Status.ContainerStatuses[0]
	if !strings.HasPrefix(cs.ContainerID, "containerd://") || cs.ImageID == "" || cs.Started == nil || !*cs.Started {
		t.Errorf("container status: %+v", cs)
	}
	w.await("log", func() bool { return strings.Contains(w.logs(p, "c0", 0), "hello") })
	_, err := w.pods.Delete(t.Context(), "default", "a", metav1.DeleteOptions{})
	must(t, err)
	w.await("pod gone", func() bool { return w.get("a").Name == "" && len(w.dirs()) == 0 })
}

func TestInitContainersRunInOrderBeforeTheOthers(t *testing.T) {
	w := newWorld(t)
	w.create(pod("init", func(s *corev1.PodSpec) {
		s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		side := shell("side", "echo side >>/v/log; "+forever)
		side.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		side.StartupProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"grep", "side", "/v/log"}}}}
		s.InitContainers = []corev1.Container{shell("i0", "echo i0 >>/v/log"), side, shell("i1", "echo i1 >>/v/log")}
		for _, c := range []*corev1.Container{&s.InitContainers[0], &s.InitContainers[1], &s.InitContainers[2], &s.Containers[0]} {
			c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		}
		s.RestartPolicy = corev1.RestartPolicyNever
	}, "echo main >>/v/log; cat /v/log"))
	p := w.until("init", "succeeded", phaseIs(corev1.PodSucceeded))
	if got := w.logs(p, "c0", 0); got != "i0\nside\ni1\nmain\n" {
		t.Errorf("order: %q", got)
	}
	if st := p.Status.InitContainerStatuses[1]; st.State.Terminated == nil {
		t.Errorf("sidecar: %+v", st)
	}
}

func TestFailingInitContainerEndsPodThatNeverRestarts(t *testing.T) {
	w := newWorld(t)
	w.create(pod("initfail", func(s *corev1.PodSpec) {
		s.InitContainers = []corev1.Container{shell("i0", "exit 3")}
		s.RestartPolicy = corev1.RestartPolicyNever
	}, forever))
	p := w.until("initfail", "failed", phaseIs(corev1.PodFailed))
	if st := p.Status.InitContainerStatuses[0].State.Terminated; st == nil || st.ExitCode != 3 || st.Reason != "Error" {
		t.Errorf("init status: %+v", p.Status.InitContainerStatuses[0])
	}
	if st := p.Status.ContainerStatuses[0].State.Waiting; st == nil || st.Reason != "PodInitializing" {
		t.Errorf("main status: %+v", p.Status.ContainerStatuses[0])
	}
}

func TestCrashLoop(t *testing.T) {
	w := newWorld(t)
	w.create(pod("crash", nil, "echo last words >/dev/termination-log; exit 7"))
	p := w.until("crash", "in backoff", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil && p.Status.ContainerStatuses[0].State.Waiting.Reason == "CrashLoopBackOff"
	})
	cs := p.Status.ContainerStatuses[0]
	if want := "back-off 10s restarting failed container=c0 pod=crash_default(" + string(p.UID) + ")"; cs.State.Waiting.Message != want {
		t.Errorf("message %q, want %q", cs.State.Waiting.Message, want)
	}
	if cs.RestartCount != 1 || cs.LastTerminationState.Terminated == nil || cs.LastTerminationState.Terminated.Message != "last words\n" || cs.LastTerminationState.Terminated.ExitCode != 7 {
		t.Errorf("status: %+v", cs)
	}
	if p.Status.Phase != corev1.PodRunning {
		t.Errorf("phase %s", p.Status.Phase)
	}
}

func TestImageErrors(t *testing.T) {
	w := newWorld(t)
	reason := func(want string) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool {
			return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Waiting != nil && p.Status.ContainerStatuses[0].State.Waiting.Reason == want
		}
	}
	w.create(pod("missing", func(s *corev1.PodSpec) { s.Containers[0].Image = shared.registry + "/none:1" }, ""))
	w.create(pod("never", func(s *corev1.PodSpec) {
		s.Containers[0].Image, s.Containers[0].ImagePullPolicy = shared.registry+"/none:2", corev1.PullNever
	}, ""))
	w.create(pod("invalid", func(s *corev1.PodSpec) { s.Containers[0].Image = "INVALID/Name" }, ""))
	w.until("missing", "pull error", reason("ErrImagePull"))
	w.until("never", "never", reason("ErrImageNeverPull"))
	w.until("invalid", "invalid", reason("InvalidImageName"))
	p := w.until("missing", "backoff", reason("ImagePullBackOff"))
	if m := p.Status.ContainerStatuses[0].State.Waiting.Message; !strings.HasPrefix(m, `Back-off pulling image "`+shared.registry+`/none:1": ErrImagePull: `) {
		t.Errorf("message %q", m)
	}
}

func TestProbes(t *testing.T) {
	w := newWorld(t)
	port := intstr.FromInt32(8080)
	w.create(pod("probed", func(s *corev1.PodSpec) {
		s.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ok", Port: port}}}
		s.Containers[0].StartupProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 30, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port}}}
	}, "mkdir -p /www; echo ok >/www/ok; httpd -p 8080 -h /www; "+forever))
	w.create(pod("alive", func(s *corev1.PodSpec) {
		s.Containers[0].LivenessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"cat", "/tmp/healthy"}}}}
	}, "touch /tmp/healthy; sleep 1.5; rm /tmp/healthy; "+forever))
	w.until("probed", "ready", ready)
	p := w.until("alive", "restarted", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount == 1
	})
	w.await("events", func() bool {
		got := w.events(p)
		return strings.Contains(got, "Unhealthy: Liveness probe failed: cat: can't open '/tmp/healthy'") &&
			strings.Contains(got, "Killing: Container c0 failed liveness probe, will be restarted")
	})
}

func (w *world) events(p *corev1.Pod) string {
	list, err := client.Of[*corev1.Event](w.api).List(w.t.Context(), "default", metav1.ListOptions{})
	must(w.t, err)
	var out []string
	for _, e := range list {
		if e.InvolvedObject.UID == p.UID {
			out = append(out, e.Reason+": "+e.Message)
		}
	}
	return strings.Join(out, "\n")
}

func TestRestartAdoptsContainers(t *testing.T) {
	w := newWorld(t)
	w.create(pod("kept", func(s *corev1.PodSpec) {
		s.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
	}, forever))
	w.create(pod("orphan", nil, forever))
	before := w.until("kept", "ready", ready)
	w.until("orphan", "ready", ready)
	w.stop()
	_, err := w.pods.Delete(t.Context(), "default", "orphan", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
	must(t, err)
	w.start()
	w.await("orphan stopped", func() bool { return len(w.dirs()) == 1 })
	after := w.get("kept")
	if a, b := after.Status.ContainerStatuses[0], before.Status.ContainerStatuses[0]; a.ContainerID != b.ContainerID || a.RestartCount != 0 || !ready(after) {
		t.Errorf("before %+v, after %+v", b, a)
	}
	for _, c := range after.Status.Conditions {
		for _, o := range before.Status.Conditions {
			if c.Type == o.Type && !c.LastTransitionTime.Equal(&o.LastTransitionTime) {
				t.Errorf("condition %s changed: %+v", c.Type, c)
			}
		}
	}
}

func TestHooksAndGracePeriod(t *testing.T) {
	w := newWorld(t)
	w.create(pod("hooked", func(s *corev1.PodSpec) {
		s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: w.root}}}}
		c := &s.Containers[0]
		c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		c.Lifecycle = &corev1.Lifecycle{
			PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "echo post >>/v/hooks"}}},
			PreStop:   &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "echo pre >>/v/hooks"}}},
		}
		s.TerminationGracePeriodSeconds = ptr.To[int64](20)
	}, "trap 'echo term >>/v/hooks; exit 0' TERM; while true; do sleep 0.1; done"))
	w.until("hooked", "ready", ready)
	_, err := w.pods.Delete(t.Context(), "default", "hooked", metav1.DeleteOptions{})
	must(t, err)
	w.await("gone", func() bool { return w.get("hooked").Name == "" })
	b, err := os.ReadFile(filepath.Join(w.root, "hooks"))
	must(t, err)
	if string(b) != "post\npre\nterm\n" {
		t.Errorf("hooks ran as %q", b)
	}
}

func TestMemoryLimitKills(t *testing.T) {
	w := newWorld(t)
	w.create(pod("oom", func(s *corev1.PodSpec) {
		s.RestartPolicy = corev1.RestartPolicyNever
		s.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("16Mi")}
	}, "exec dd if=/dev/zero of=/dev/null bs=64M"))
	p := w.until("oom", "failed", phaseIs(corev1.PodFailed))
	if st := p.Status.ContainerStatuses[0].State.Terminated; st.Reason != "OOMKilled" || st.ExitCode != 137 {
		t.Errorf("status: %+v", st)
	}
}

func TestSecurityContextIsEnforced(t *testing.T) {
	w := newWorld(t)
	w.create(pod("user", func(s *corev1.PodSpec) {
		s.RestartPolicy = corev1.RestartPolicyNever
		s.Hostname = "named"
		s.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](1001), RunAsGroup: ptr.To[int64](2002), SupplementalGroups: []int64{3003}, FSGroup: ptr.To[int64](4004)}
		s.Containers[0].SecurityContext = &corev1.SecurityContext{ReadOnlyRootFilesystem: ptr.To(true)}
		s.Containers[0].Env = []corev1.EnvVar{{Name: "IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}}}
	}, "id; hostname; touch /x 2>&1; grep -c named /etc/hosts; test -n \"$IP\" && echo ip"))
	w.create(pod("root", func(s *corev1.PodSpec) {
		s.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true)}
	}, forever))
	p := w.until("user", "succeeded", phaseIs(corev1.PodSucceeded))
	got := w.logs(p, "c0", 0)
	for _, want := range []string{"uid=1001 gid=2002 groups=2002,3003,4004", "named\n", "Read-only file system", "1\nip\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("log lacks %q:\n%s", want, got)
		}
	}
	r := w.until("root", "refused", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Waiting != nil && p.Status.ContainerStatuses[0].State.Waiting.Reason == "CreateContainerConfigError"
	})
	if m := r.Status.ContainerStatuses[0].State.Waiting.Message; !strings.Contains(m, "container has runAsNonRoot and image will run as root") {
		t.Errorf("message %q", m)
	}
}

func TestStaticPodHasAMirror(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.root, "manifests")
	must(t, os.MkdirAll(dir, 0o755))
	manifest := "apiVersion: v1\nkind: Pod\nmetadata: {name: st}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  - {name: c, image: \"" + shared.image + "\", command: [sh, -c, \"" + forever + "\"]}\n"
	must(t, os.WriteFile(filepath.Join(dir, "st.yaml"), []byte(manifest), 0o644))
	p := w.until("st-n1", "ready", ready)
	if p.Annotations[corev1.MirrorPodAnnotationKey] == "" || p.OwnerReferences[0].Kind != "Node" {
		t.Errorf("mirror: %+v", p.ObjectMeta)
	}
	_, err := w.pods.Delete(t.Context(), "default", "st-n1", metav1.DeleteOptions{})
	must(t, err)
	again := w.until("st-n1", "back and ready", func(n *corev1.Pod) bool { return n.UID != "" && n.UID != p.UID && ready(n) })
	if a, b := again.Status.ContainerStatuses[0].ContainerID, p.Status.ContainerStatuses[0].ContainerID; a != b {
		t.Errorf("container changed from %s to %s", b, a)
	}
	must(t, os.Remove(filepath.Join(dir, "st.yaml")))
	w.await("gone", func() bool { return w.get("st-n1").Name == "" && len(w.dirs()) == 0 })
}

func TestDeadlineAndRejection(t *testing.T) {
	w := newWorld(t)
	w.create(pod("late", func(s *corev1.PodSpec) { s.ActiveDeadlineSeconds = ptr.To[int64](1) }, forever))
	w.create(pod("big", func(s *corev1.PodSpec) {
		s.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000")}
	}, forever))
	if p := w.until("late", "failed", phaseIs(corev1.PodFailed)); p.Status.Reason != "DeadlineExceeded" {
		t.Errorf("late: %+v", p.Status)
	}
	if p := w.until("big", "failed", phaseIs(corev1.PodFailed)); p.Status.Reason != "OutOfcpu" || !strings.HasPrefix(p.Status.Message, "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000000,") {
		t.Errorf("big: %+v", p.Status)
	}
}

// BenchmarkPodStart measures pod create to Running as a client sees it.
func BenchmarkPodStart(b *testing.B) {
	w := newWorld(b)
	w.create(pod("warm", nil, forever))
	w.until("warm", "running", phaseIs(corev1.PodRunning))
	var times []time.Duration
	for b.Loop() {
		begin := time.Now()
		w.create(pod("p", nil, forever))
		w.until("p", "running", phaseIs(corev1.PodRunning))
		times = append(times, time.Since(begin))
		_, err := w.pods.Delete(context.Background(), "default", "p", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
		must(b, err)
	}
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	b.ReportMetric(float64(times[len(times)/2].Milliseconds()), "p50-ms")
	b.ReportMetric(float64(times[len(times)-1].Milliseconds()), "max-ms")
}

func TestResize(t *testing.T) {
	w := newWorld(t)
	limits := func(cpu, memory string) corev1.ResourceRequirements {
		l := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
		return corev1.ResourceRequirements{Requests: l, Limits: l}
	}
	w.create(pod("resized", func(s *corev1.PodSpec) { s.Containers[0].Resources = limits("100m", "64Mi") }, forever))
	before := w.until("resized", "ready", ready)
	resize := func(cpu, memory string) {
		patch := `{"spec":{"containers":[{"name":"c0","resources":{"requests":{"cpu":"` + cpu + `","memory":"` + memory + `"},"limits":{"cpu":"` + cpu + `","memory":"` + memory + `"}}}]}}`
		_, err := w.pods.Patch(t.Context(), "default", "resized", types.StrategicMergePatchType, []byte(patch), "resize")
		must(t, err)
	}
	shows := func(cpu, memory string) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool {
			r := p.Status.ContainerStatuses[0].Resources
			return r != nil && r.Limits.Cpu().Equal(resource.MustParse(cpu)) && r.Limits.Memory().Equal(resource.MustParse(memory))
		}
	}
	resize("200m", "96Mi")
	w.until("resized", "larger", shows("200m", "96Mi"))
	resize("150m", "80Mi")
	after := w.until("resized", "smaller", shows("150m", "80Mi"))
	if a, b := after.Status.ContainerStatuses[0], before.Status.ContainerStatuses[0]; a.ContainerID != b.ContainerID || a.RestartCount != 0 {
		t.Errorf("container was replaced: %+v", a)
	}
	resize("900", "80Mi")
	p := w.until("resized", "refused", func(p *corev1.Pod) bool {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodResizePending && c.Reason == corev1.PodReasonInfeasible {
				return true
			}
		}
		return false
	})
	if !shows("150m", "80Mi")(p) {
		t.Errorf("resources in force: %+v", p.Status.ContainerStatuses[0].Resources)
	}
	if given := p.Status.ContainerStatuses[0].AllocatedResources; !given.Cpu().Equal(resource.MustParse("150m")) {
		t.Errorf("allocated, while the resize cannot be: %v", given)
	}
	w.create(pod("beside", func(s *corev1.PodSpec) { s.Containers[0].Resources = limits("100m", "32Mi") }, forever))
	w.until("beside", "ready", ready)
}

func TestEphemeralContainerSeesItsTarget(t *testing.T) {
	w := newWorld(t)
	w.create(pod("debugged", nil, forever))
	w.until("debugged", "ready", ready)
	patch := `{"spec":{"ephemeralContainers":[{"name":"debug","image":"` + shared.image + `","targetContainerName":"c0","command":["sh","-c","grep -c trap /proc/1/cmdline"]}]}}`
	_, err := w.pods.Patch(t.Context(), "default", "debugged", types.StrategicMergePatchType, []byte(patch), "ephemeralcontainers")
	must(t, err)
	p := w.until("debugged", "ran the debugger", func(p *corev1.Pod) bool {
		return len(p.Status.EphemeralContainerStatuses) == 1 && p.Status.EphemeralContainerStatuses[0].State.Terminated != nil
	})
	if got := w.logs(p, "debug", 0); got != "1\n" {
		t.Errorf("debugger saw %q", got)
	}
	if !ready(p) {
		t.Error("the pod is no longer ready")
	}
}

func TestAShorterGracePeriodCutsALongerOne(t *testing.T) {
	w := newWorld(t)
	w.create(pod("stubborn", nil, "trap '' TERM; while true; do sleep 0.1; done"))
	w.until("stubborn", "ready", ready)
	_, err := w.pods.Delete(t.Context(), "default", "stubborn", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](600)})
	must(t, err)
	w.until("stubborn", "terminating", func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
	_, err = w.pods.Delete(t.Context(), "default", "stubborn", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)})
	must(t, err)
	w.await("gone", func() bool { return w.get("stubborn").Name == "" && len(w.dirs()) == 0 })
}
