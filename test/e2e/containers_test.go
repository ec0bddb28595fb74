package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const testserver = "image: 'proa.dev/testserver:1'"

// What runs: the image's entrypoint and arguments, and what command and args replace.
func TestCommandAndArguments(t *testing.T) {
	l := newLab(t)
	l.apply(podManifest("p", `
  containers:
  - {name: image, `+testserver+`}
  - {name: args, `+testserver+`, args: [read, /proc/self/cmdline]}
  - {name: command, `+testserver+`, command: [/testserver, read, /proc/self/cmdline]}
  - {name: both, `+testserver+`, command: [/testserver], args: [read, /proc/self/cmdline]}
  restartPolicy: Never`))
	l.await("p", "running with three containers ended", func(p *corev1.Pod) bool {
		ended := 0
		for _, c := range []string{"args", "command", "both"} {
			if e := status(p, c).State.Terminated; e != nil && e.ExitCode == 0 && e.Reason == "Completed" {
				ended++
			}
		}
		return ended == 3 && status(p, "image").State.Running != nil
	})
	for _, c := range []string{"args", "command", "both"} {
		l.is("command line of "+c, l.logs("p", c), "/testserver\x00read\x00/proc/self/cmdline\x00")
	}
	out := l.kubectl("exec", "p", "-c", "image", "--", "/testserver", "get", "http://127.0.0.1:8080/healthz")
	l.is("answer of the image's own command", out, "ok\n")
}

// Variables: literal ones, references to ConfigMaps, Secrets, fields and
// resources, expansion, Services, and names of any printable characters.
func TestEnvironment(t *testing.T) {
	l := newLab(t)
	l.apply(`
apiVersion: v1
kind: Service
metadata: {name: fooservice}
spec: {ports: [{port: 8765, targetPort: 80}], selector: {name: x}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: config}
data: {one: "1", "with.dot": "2", "dash-ed": "3"}
---
apiVersion: v1
kind: Secret
metadata: {name: secret}
stringData: {password: hidden, user: jane}
` + podManifest("p", `
  containers:
  - name: c
    image: busybox:1.35
    command: [env]
    resources:
      requests: {cpu: 250m, memory: 32Mi, ephemeral-storage: 32Mi}
      limits: {cpu: 1250m, memory: 64Mi, ephemeral-storage: 64Mi}
    envFrom:
    - configMapRef: {name: config}
    - {prefix: "1-./:~ ", configMapRef: {name: config}}
    - {prefix: "p_", secretRef: {name: secret}}
    - {prefix: "#%", secretRef: {name: secret}}
    - {configMapRef: {name: absent, optional: true}}
    - {secretRef: {name: absent, optional: true}}
    env:
    - {name: NAME, value: proa}
    - {name: GREETING, value: "hello $(NAME)"}
    - {name: "Logging:LogLevel:Default", value: relaxed}
    - {name: FROM_CONFIG, valueFrom: {configMapKeyRef: {name: config, key: one}}}
    - {name: FROM_SECRET, valueFrom: {secretKeyRef: {name: secret, key: password}}}
    - {name: ABSENT_KEY, valueFrom: {configMapKeyRef: {name: config, key: absent, optional: true}}}
    - {name: ABSENT_MAP, valueFrom: {secretKeyRef: {name: absent, key: absent, optional: true}}}
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
    - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: POD_IPS, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}
    - {name: HOST_IP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
    - {name: HOST_IPS, valueFrom: {fieldRef: {fieldPath: status.hostIPs}}}
    - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: ACCOUNT, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}}
    - {name: LABEL, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}
    - {name: CPU_LIMIT, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
    - {name: CPU_LIMIT_MILLI, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}
    - {name: CPU_REQUEST, valueFrom: {resourceFieldRef: {resource: requests.cpu}}}
    - {name: MEMORY_LIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory}}}
    - {name: MEMORY_REQUEST, valueFrom: {resourceFieldRef: {resource: requests.memory, divisor: 1Mi}}}
    - {name: STORAGE_REQUEST, valueFrom: {resourceFieldRef: {resource: requests.ephemeral-storage}}}
  - name: expand
    image: busybox:1.35
    command: [echo, "in command: $(GREETING)"]
    args: ["in args: $(GREETING) $$(GREETING) $(NOT_THERE)"]
    env: [{name: NAME, value: proa}, {name: GREETING, value: "hello $(NAME)"}]
  - name: unlimited
    image: busybox:1.35
    command: [env]
    env:
    - {name: CPU_LIMIT, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}
    - {name: MEMORY_LIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory}}}
  restartPolicy: Never`))
	pod := l.ended("p", corev1.PodSucceeded)
	service, err := clients().CoreV1().Services(l.ns).Get(t.Context(), "fooservice", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ip := service.Spec.ClusterIP
	l.lines(l.logs("p", "c"),
		"NAME=proa", "GREETING=hello proa", "Logging:LogLevel:Default=relaxed",
		"one=1", "with.dot=2", "dash-ed=3", "1-./:~ one=1", "1-./:~ with.dot=2",
		"p_password=hidden", "p_user=jane", "#%user=jane", "FROM_CONFIG=1", "FROM_SECRET=hidden",
		"POD_NAME=p", "POD_NAMESPACE="+l.ns, "POD_UID="+string(pod.UID),
		"POD_IP="+pod.Status.PodIP, "POD_IPS="+pod.Status.PodIP, "HOST_IP="+pod.Status.HostIP, "HOST_IPS="+pod.Status.HostIP,
		"NODE_NAME="+pod.Spec.NodeName, "ACCOUNT=default", "LABEL=p",
		"CPU_LIMIT=2", "CPU_LIMIT_MILLI=1250", "CPU_REQUEST=1", "MEMORY_LIMIT=67108864", "MEMORY_REQUEST=32", "STORAGE_REQUEST=33554432",
		"FOOSERVICE_SERVICE_HOST="+ip, "FOOSERVICE_SERVICE_PORT=8765", "FOOSERVICE_PORT=tcp://"+ip+":8765",
		"FOOSERVICE_PORT_8765_TCP=tcp://"+ip+":8765", "FOOSERVICE_PORT_8765_TCP_PORT=8765",
		"FOOSERVICE_PORT_8765_TCP_PROTO=tcp", "FOOSERVICE_PORT_8765_TCP_ADDR="+ip)
	l.is("expansion", l.logs("p", "expand"), "in command: hello proa in args: hello proa $(GREETING) $(NOT_THERE)\n")
	if out := l.logs("p", "c"); strings.Contains(out, "ABSENT_") {
		t.Errorf("optional references that point to nothing set variables:\n%s", out)
	}
	node, err := clients().CoreV1().Nodes().Get(t.Context(), pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.lines(l.logs("p", "unlimited"),
		fmt.Sprintf("CPU_LIMIT=%d", node.Status.Allocatable.Cpu().MilliValue()),
		fmt.Sprintf("MEMORY_LIMIT=%d", node.Status.Allocatable.Memory().Value()))
	l.is("status.hostIPs", fmt.Sprint(pod.Status.HostIPs), fmt.Sprintf("[{%s}]", pod.Status.HostIP))
}

// A reference that must be there and is not keeps the container waiting, and it
// starts once the object comes.
func TestMissingReferences(t *testing.T) {
	l := newLab(t)
	l.apply(podManifest("map", `
  containers: [{name: c, image: 'busybox:1.35', command: [sleep, "3600"], envFrom: [{configMapRef: {name: late}}]}]`) + podManifest("key", `
  containers: [{name: c, image: 'busybox:1.35', command: [sleep, "3600"], env: [{name: A, valueFrom: {secretKeyRef: {name: late, key: a}}}]}]`))
	l.is("message", l.waiting("map", "c", "CreateContainerConfigError"), `configmap "late" not found`)
	l.is("message", l.waiting("key", "c", "CreateContainerConfigError"), `secret "late" not found`)
	l.event("map", "Failed", `Error: configmap "late" not found`)
	l.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: late}, data: {a: b}}\n---\n{apiVersion: v1, kind: Secret, metadata: {name: late}, stringData: {b: c}}")
	l.ready("map")
	l.await("key", "missing the key", func(p *corev1.Pod) bool {
		w := status(p, "c").State.Waiting
		return w != nil && w.Message == "couldn't find key a in Secret "+l.ns+"/late"
	})
}

// Init containers run one after the other, each to its end, before the others.
func TestInitContainers(t *testing.T) {
	t.Parallel()
	const volume = "\n  volumes: [{name: v, emptyDir: {}}]"
	step := func(name, script string) string {
		return "{name: " + name + ", image: 'busybox:1.35', command: [sh, -c, \"" + script + "\"], volumeMounts: [{name: v, mountPath: /v}]}"
	}
	order := `
  initContainers: [` + step("one", "sleep 0.3; echo one >>/v/f") + ", " + step("two", "echo two >>/v/f") + `]
  containers: [` + step("c", "cat /v/f; %s") + `]` + volume
	t.Run("in order, then the rest, which is not restarted", func(t *testing.T) {
		l := newLab(t)
		l.apply(podManifest("p", strings.ReplaceAll(order, "%s", "true")+"\n  restartPolicy: Never"))
		pod := l.ended("p", corev1.PodSucceeded)
		l.is("log", l.logs("p", "c"), "one\ntwo\n")
		for _, s := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
			if s.RestartCount != 0 || s.State.Terminated == nil || s.State.Terminated.ExitCode != 0 {
				t.Errorf("%s: %+v", s.Name, s)
			}
		}
		if !conditionIs(pod, corev1.PodInitialized, corev1.ConditionTrue) || podCondition(pod, corev1.PodReady).Reason != "PodCompleted" {
			t.Errorf("conditions %+v", pod.Status.Conditions)
		}
	})
	t.Run("with Always the rest goes on", func(t *testing.T) {
		l := newLab(t)
		l.apply(podManifest("p", strings.ReplaceAll(order, "%s", "sleep 3600")))
		pod := l.ready("p")
		l.is("log", l.logs("p", "c"), "one\ntwo\n")
		for _, s := range pod.Status.InitContainerStatuses {
			if !s.Ready || s.State.Terminated == nil || s.State.Terminated.Reason != "Completed" {
				t.Errorf("%s: %+v", s.Name, s)
			}
		}
	})
	failing := `
  initContainers: [` + busybox("one", "exit 3") + ", " + busybox("two", "true") + `]
  containers: [` + busybox("c", "true") + "]\n"
	t.Run("a failure with Never ends the pod", func(t *testing.T) {
		l := newLab(t)
		l.apply(podManifest("p", failing+"  restartPolicy: Never"))
		pod := l.ended("p", corev1.PodFailed)
		if s := status(pod, "one"); s.State.Terminated == nil || s.State.Terminated.ExitCode != 3 || s.State.Terminated.Reason != "Error" {
			t.Errorf("one: %+v", s)
		}
		for _, c := range []string{"two", "c"} {
			if s := status(pod, c); s.State.Waiting == nil || s.State.Waiting.Reason != "PodInitializing" {
				t.Errorf("%s: %+v", c, s)
			}
		}
		if c := podCondition(pod, corev1.PodInitialized); c.Status != corev1.ConditionFalse || c.Reason != "ContainersNotInitialized" || c.Message != "containers with incomplete status: [one two]" {
			t.Errorf("Initialized: %+v", c)
		}
	})
	for _, policy := range []string{"Always", "OnFailure"} {
		t.Run("a failure with "+policy+" is tried again", func(t *testing.T) {
			l := newLab(t)
			l.apply(podManifest("p", failing+"  restartPolicy: "+policy))
			pod := l.await("p", "restarted", func(p *corev1.Pod) bool { return status(p, "one").RestartCount >= 1 })
			l.is("phase", string(pod.Status.Phase), "Pending")
			l.contains(l.waiting("p", "one", "CrashLoopBackOff"), "back-off 10s restarting failed container=one pod=p_"+l.ns)
			if s := status(l.pod("p"), "c"); s.State.Waiting == nil || s.State.Waiting.Reason != "PodInitializing" {
				t.Errorf("c: %+v", s)
			}
			l.contains(l.kubectl("get", "pod", "p"), "Init:CrashLoopBackOff")
		})
	}
}

// Restartable init containers (KEP-753).
func TestSidecars(t *testing.T) {
	t.Parallel()
	sidecar := func(name, more string) string {
		return "{name: " + name + ", " + testserver + ", restartPolicy: Always, volumeMounts: [{name: v, mountPath: /v}], " + more + "}"
	}
	t.Run("the next waits for a sidecar's startup probe; they stop in reverse order", func(t *testing.T) {
		l := newLab(t)
		l.apply(podManifest("p", `
  terminationGracePeriodSeconds: 20
  initContainers:
  - `+sidecar("first", `args: [serve, -start-delay=1s, -linger=1100ms, "-http=:8081", "-tcp=", "-udp=", "-grpc="], startupProbe: {httpGet: {path: /healthz, port: 8081}, periodSeconds: 1}`)+`
  - {name: between, `+testserver+`, args: [get, "http://127.0.0.1:8081/healthz"]}
  - `+sidecar("second", `args: [serve, -linger=1100ms, "-http=:8082", "-tcp=", "-udp=", "-grpc="], lifecycle: {preStop: {sleep: {seconds: 0}}}`)+`
  containers:
  - {name: main, `+testserver+`, args: [sleep, -linger=1s]}
  volumes: [{name: v, emptyDir: {}}]
`))
		pod := l.ready("p")
		first, between, main := status(pod, "first"), status(pod, "between"), status(pod, "main")
		if first.State.Running == nil || !*first.Started || !first.Ready || between.State.Terminated == nil {
			t.Fatalf("first %+v\nbetween %+v", first, between)
		}
		if !main.State.Running.StartedAt.Time.After(first.State.Running.StartedAt.Time) {
			t.Errorf("main started at %v, the sidecar at %v", main.State.Running.StartedAt, first.State.Running.StartedAt)
		}
		ended := l.endings("p")
		l.kubectl("delete", "pod", "p", "--wait=false")
		l.gone("p")
		l.is("order of endings", strings.Join(ended(), " "), "main second first")
	})
	t.Run("a sidecar that ends is started again on its own", func(t *testing.T) {
		l := newLab(t)
		l.apply(podManifest("p", `
  initContainers: [`+sidecar("side", `args: [serve, "-http=:8081", "-tcp=", "-udp=", "-grpc="]`)+`]
  containers: [{name: main, `+testserver+`}]
  volumes: [{name: v, emptyDir: {}}]
`))
		before := l.ready("p")
		fetch("POST", "http://"+before.Status.PodIP+":8081/exit?code=1", "") //nolint:errcheck // it ends before its answer is read, or after
		after := l.await("p", "with the sidecar restarted", func(p *corev1.Pod) bool {
			s := status(p, "side")
			return s.RestartCount == 1 && s.State.Running != nil && isReady(p)
		})
		if status(before, "main").ContainerID != status(after, "main").ContainerID {
			t.Error("the main container was restarted with it")
		}
	})
	t.Run("a Job whose pod has a sidecar completes", func(t *testing.T) {
		l := newLab(t)
		l.apply(`
apiVersion: batch/v1
kind: Job
metadata: {name: j}
spec:
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 5
      initContainers: [` + sidecar("side", `args: [serve, "-http=:8081", "-tcp=", "-udp=", "-grpc="]`) + `]
      containers: [{name: main, ` + testserver + `, args: [get, "http://127.0.0.1:8081/hostname"]}]
      volumes: [{name: v, emptyDir: {}}]
`)
		l.kubectl("wait", "job/j", "--for=condition=Complete", "--timeout=60s")
		out := l.kubectl("get", "pods", "-l", "job-name=j", "-o", "jsonpath={.items[*].status.phase} {.items[*].status.initContainerStatuses[0].state.terminated.exitCode}")
		l.is("pod's phase and the sidecar's code", out, "Succeeded 0")
	})
}

// endings follows a pod and returns its containers in the order they ended, as
// far as times of whole seconds tell.
func (l *lab) endings(name string) func() []string {
	l.Helper()
	pod := l.pod(name)
	w, err := clients().CoreV1().Pods(l.ns).Watch(l.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: pod.ResourceVersion})
	if err != nil {
		l.Fatal(err)
	}
	return func() []string {
		defer w.Stop()
		last := pod
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok {
				last = p
			}
			if e.Type == "DELETED" {
				break
			}
		}
		type ending struct {
			name string
			at   time.Time
		}
		var all []ending
		for _, s := range append(last.Status.InitContainerStatuses, last.Status.ContainerStatuses...) {
			old := status(pod, s.Name)
			if s.State.Terminated != nil && old.State.Running != nil {
				all = append(all, ending{s.Name, s.State.Terminated.FinishedAt.Time})
			}
		}
		var names []string
		for len(all) > 0 {
			first := 0
			for i := range all {
				if all[i].at.Before(all[first].at) {
					first = i
				}
			}
			names = append(names, all[first].name)
			all = append(all[:first], all[first+1:]...)
		}
		return names
	}
}

func TestRestartPolicies(t *testing.T) {
	t.Parallel()
	tests := []struct {
		policy, script string
		phase          corev1.PodPhase
		restarts       int32
	}{
		{"Always", "exit 0", corev1.PodRunning, 1},
		{"Always", "exit 1", corev1.PodRunning, 1},
		{"OnFailure", "exit 1", corev1.PodRunning, 1},
		{"OnFailure", "exit 0", corev1.PodSucceeded, 0},
		{"Never", "exit 0", corev1.PodSucceeded, 0},
		{"Never", "exit 1", corev1.PodFailed, 0},
	}
	for _, tt := range tests {
		t.Run(tt.policy+" and "+tt.script, func(t *testing.T) {
			l := newLab(t)
			l.apply(podManifest("p", "  restartPolicy: "+tt.policy+"\n  containers: ["+busybox("c", tt.script)+"]"))
			if tt.restarts == 0 {
				pod := l.ended("p", tt.phase)
				if s := status(pod, "c"); s.RestartCount != 0 || s.State.Terminated == nil {
					t.Errorf("%+v", s)
				}
				return
			}
			message := l.waiting("p", "c", "CrashLoopBackOff")
			pod := l.pod("p")
			s := status(pod, "c")
			if s.RestartCount != tt.restarts || pod.Status.Phase != tt.phase || s.LastTerminationState.Terminated == nil || s.Ready || *s.Started {
				t.Errorf("phase %s, %+v", pod.Status.Phase, s)
			}
			l.is("message", message, fmt.Sprintf("back-off 10s restarting failed container=c pod=p_%s(%s)", l.ns, pod.UID))
			l.event("p", "BackOff", "Back-off restarting failed container c in pod p_"+l.ns)
			if c := podCondition(pod, corev1.PodReady); c.Reason != "ContainersNotReady" || c.Message != "containers with unready status: [c]" {
				t.Errorf("Ready: %+v", c)
			}
		})
	}
	t.Run("a pod that always fails can be deleted and says why it failed", func(t *testing.T) {
		l := newLab(t)
		l.apply(podManifest("p", "  containers: ["+busybox("c", "exit 1")+"]"))
		pod := l.await("p", "failed once", func(p *corev1.Pod) bool {
			return status(p, "c").State.Terminated != nil || status(p, "c").LastTerminationState.Terminated != nil
		})
		s := status(pod, "c")
		end := s.State.Terminated
		if end == nil {
			end = s.LastTerminationState.Terminated
		}
		if end.Reason != "Error" || end.ExitCode != 1 {
			t.Errorf("%+v", end)
		}
		l.kubectl("delete", "pod", "p")
	})
}

// The termination message of a container: a file's content, or the end of the log.
func TestTerminationMessages(t *testing.T) {
	l := newLab(t)
	l.apply(podManifest("p", `
  restartPolicy: Never
  containers:
  - {name: file, image: 'busybox:1.35', command: [sh, -c, "echo log; printf DONE >/dev/termination-log"], terminationMessagePolicy: FallbackToLogsOnError}
  - {name: success, image: 'busybox:1.35', command: [sh, -c, "echo log"], terminationMessagePolicy: FallbackToLogsOnError}
  - {name: failure, image: 'busybox:1.35', command: [sh, -c, "echo the last words; exit 1"], terminationMessagePolicy: FallbackToLogsOnError}
  - {name: fileonly, image: 'busybox:1.35', command: [sh, -c, "echo log; exit 1"]}
  - {name: path, image: 'busybox:1.35', command: [sh, -c, "printf DONE >/dev/other/log"], terminationMessagePath: /dev/other/log, securityContext: {runAsUser: 1000}}
  - {name: large, image: 'busybox:1.35', command: [sh, -c, "yes | head -c 100000 >/dev/termination-log"]}`))
	pod := l.ended("p", corev1.PodFailed)
	for container, want := range map[string]string{"file": "DONE", "success": "", "failure": "the last words\n", "fileonly": "", "path": "DONE"} {
		l.is("message of "+container, status(pod, container).State.Terminated.Message, want)
	}
	if n := len(status(pod, "large").State.Terminated.Message); n == 0 || n > 4096 {
		t.Errorf("the large message has %d bytes", n)
	}
}

// Hooks around a container's life, seen by the server they call.
func TestLifecycleHooks(t *testing.T) {
	l := newLab(t)
	l.apply(podManifest("sink", "  containers: [{name: c, "+testserver+"}]"))
	sink := l.ready("sink").Status.PodIP
	call := func(line string) string {
		return `exec: {command: [/testserver, get, "http://` + sink + `:8080/log?line=` + line + `"]}`
	}
	get := func(line string) string {
		return `httpGet: {host: "` + sink + `", port: 8080, path: "/log?line=` + line + `"}`
	}
	heard := func(line string) {
		l.Helper()
		eventually(l.T, settle, func() error {
			if out := l.logs("sink", ""); !strings.Contains("\n"+out, "\n"+line+"\n") {
				return fmt.Errorf("%s was not heard: %q", line, out)
			}
			return nil
		})
	}
	pod := func(name, lifecycle string) string {
		return podManifest(name, "  terminationGracePeriodSeconds: 15\n  containers: [{name: c, "+testserver+", lifecycle: {"+lifecycle+"}}]")
	}
	l.apply(pod("exec", "postStart: {"+call("post-exec")+"}, preStop: {"+call("pre-exec")+"}") +
		pod("http", "postStart: {"+get("post-http")+"}, preStop: {"+get("pre-http")+"}") +
		pod("sleep", "preStop: {sleep: {seconds: 2}}") + pod("zero", "preStop: {sleep: {seconds: 0}}") +
		pod("bad", `postStart: {exec: {command: [/testserver, exit, -code=1]}}`))
	l.ready("exec")
	l.ready("http")
	heard("post-exec")
	heard("post-http")
	l.event("bad", "FailedPostStartHook", "PostStartHook failed")
	l.event("bad", "Killing", "FailedPostStartHook")
	l.ready("sleep")
	l.ready("zero")
	asked := time.Now()
	l.kubectl("delete", "pod", "exec", "http", "sleep", "zero", "--wait=false")
	l.gone("zero")
	heard("pre-exec")
	heard("pre-http")
	l.gone("exec")
	l.gone("http")
	l.gone("sleep")
	if took := time.Since(asked); took < 2*time.Second {
		t.Errorf("a pod with a preStop sleep of 2 s was gone after %s", took)
	}
}

// SIGTERM first, SIGKILL when the grace period has passed.
func TestTerminationGracePeriod(t *testing.T) {
	l := newLab(t)
	l.apply(podManifest("kind", "  terminationGracePeriodSeconds: 30\n  containers: [{name: c, "+testserver+", args: [sleep]}]") +
		podManifest("stubborn", "  terminationGracePeriodSeconds: 2\n  containers: ["+busybox("c", "trap '' TERM; while :; do sleep 0.1; done")+"]") +
		podManifest("negative", "  terminationGracePeriodSeconds: -5\n  containers: ["+busybox("c", "trap '' TERM; while :; do sleep 0.1; done")+"]"))
	for _, name := range []string{"kind", "stubborn", "negative"} {
		l.ready(name)
	}
	begin := time.Now()
	l.kubectl("delete", "pod", "kind", "stubborn", "negative", "--wait=false")
	pod := l.pod("stubborn")
	if pod.DeletionTimestamp == nil || *pod.DeletionGracePeriodSeconds != 2 {
		t.Errorf("deletion %v, grace %v", pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds)
	}
	if took := time.Since(begin); took < time.Second { // a negative grace period is one of a second
		if g := l.pod("negative").DeletionGracePeriodSeconds; *g != 1 {
			t.Errorf("a grace period of -5 became %d", *g)
		}
	}
	l.gone("negative")
	l.gone("kind")
	l.gone("stubborn")
	if took := time.Since(begin); took < 2*time.Second {
		t.Errorf("the stubborn pod was gone after %s", took)
	} else if took > 25*time.Second {
		t.Errorf("the pods took %s to go", took)
	}
}

// Memory beyond the limit ends a container with the kernel's reason.
func TestOutOfMemory(t *testing.T) {
	l := newLab(t)
	l.apply(podManifest("p", `
  restartPolicy: Never
  containers: [{name: c, `+testserver+`, args: [memory, -mib=128], resources: {limits: {memory: 32Mi}}}]`))
	s := status(l.ended("p", corev1.PodFailed), "c").State.Terminated
	if s.Reason != "OOMKilled" || s.ExitCode != 137 {
		t.Errorf("%+v", s)
	}
}

func TestActiveDeadline(t *testing.T) {
	l := newLab(t)
	l.apply(podManifest("p", "  containers: [{name: c, "+testserver+", args: [sleep]}]"))
	l.ready("p")
	l.kubectl("patch", "pod", "p", "-p", `{"spec":{"activeDeadlineSeconds":1}}`)
	pod := l.ended("p", corev1.PodFailed)
	l.is("reason", pod.Status.Reason, "DeadlineExceeded")
	l.is("message", pod.Status.Message, "Pod was active on the node longer than the specified deadline")
	if s := status(pod, "c"); s.State.Terminated == nil {
		t.Errorf("the container: %+v", s)
	}
}

// An ephemeral container joins a running pod, sees the processes of its target,
// and another can follow (KEP-277).
func TestEphemeralContainers(t *testing.T) {
	l := newLab(t)
	l.apply(podManifest("p", "  containers: [{name: app, "+testserver+", args: [sleep]}]"))
	l.ready("p")
	l.kubectl("debug", "p", "--image=busybox:1.35", "--target=app", "-c", "one", "--profile=general", "--", "sh", "-c", "ps; sleep 3600")
	pod := l.await("p", "debugged", func(p *corev1.Pod) bool { return status(p, "one").State.Running != nil })
	if len(pod.Spec.EphemeralContainers) != 1 || pod.Spec.EphemeralContainers[0].TargetContainerName != "app" {
		t.Errorf("spec: %+v", pod.Spec.EphemeralContainers)
	}
	eventually(t, settle, func() error {
		if out := l.logs("p", "one"); !strings.Contains(out, "/testserver sleep") {
			return fmt.Errorf("the processes of the target are not seen: %s", out)
		}
		return nil
	})
	l.kubectl("debug", "p", "--image=busybox:1.35", "-c", "two", "--profile=general", "--", "sh", "-c", "exit 4")
	pod = l.await("p", "debugged again", func(p *corev1.Pod) bool { return status(p, "two").State.Terminated != nil })
	if len(pod.Status.EphemeralContainerStatuses) != 2 || status(pod, "two").State.Terminated.ExitCode != 4 || status(pod, "two").RestartCount != 0 {
		t.Errorf("statuses: %+v", pod.Status.EphemeralContainerStatuses)
	}
	if status(pod, "app").RestartCount != 0 {
		t.Error("the app was restarted")
	}
	out, err := l.tryKubectl("patch", "pod", "p", "--subresource=ephemeralcontainers", "--type=json", "-p", `[{"op":"remove","path":"/spec/ephemeralContainers/0"}]`)
	if err == nil || !strings.Contains(out, "existing ephemeral containers") {
		t.Errorf("one was removed: %s", out)
	}
}

// Resources of a running container change in place (KEP-1287).
func TestResize(t *testing.T) {
	l := newLab(t)
	l.apply(podManifest("p", `
  containers:
  - name: c
    image: busybox:1.35
    command: [sleep, "3600"]
    resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}
  - name: again
    image: busybox:1.35
    command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 0.1; done"]
    resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]
    resources: {requests: {cpu: 50m, memory: 32Mi}, limits: {memory: 64Mi}}`))
	before := l.ready("p")
	resize := func(patch string) { l.Helper(); l.kubectl("patch", "pod", "p", "--subresource=resize", "-p", patch) }
	l.is("cpu quota", l.cgroup("c", "cpu/cpu.cfs_quota_us", "cpu.max"), "20000")

	resize(`{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"150m","memory":"48Mi"},"limits":{"cpu":"300m","memory":"96Mi"}}}]}}`)
	after := l.await("p", "resized", func(p *corev1.Pod) bool {
		r := status(p, "c").Resources
		return r != nil && r.Limits.Cpu().MilliValue() == 300 && r.Limits.Memory().Value() == 96<<20 && podCondition(p, corev1.PodResizeInProgress) == nil
	})
	l.is("cpu quota", l.cgroup("c", "cpu/cpu.cfs_quota_us", "cpu.max"), "30000")
	l.is("memory limit", l.cgroup("c", "memory/memory.limit_in_bytes", "memory.max"), fmt.Sprint(96<<20))
	if s := status(after, "c"); s.RestartCount != 0 || s.ContainerID != status(before, "c").ContainerID || s.AllocatedResources.Cpu().MilliValue() != 150 {
		t.Errorf("%+v", s)
	}

	resize(`{"spec":{"containers":[{"name":"again","resources":{"limits":{"memory":"80Mi"}}}]}}`)
	l.await("p", "resized with a restart", func(p *corev1.Pod) bool {
		s := status(p, "again")
		return s.RestartCount == 1 && s.State.Running != nil && s.Resources != nil && s.Resources.Limits.Memory().Value() == 80<<20
	})

	if out, err := l.tryKubectl("patch", "pod", "p", "--subresource=resize", "-p", `{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"1000"},"limits":{"cpu":"1000"}}}]}}`); err == nil || !strings.Contains(out, "node didn't have enough allocatable resources: cpu, requested: 1000050, allocatable: ") {
		t.Errorf("more than the node has: %s", out)
	}
	if out, err := l.tryKubectl("patch", "pod", "p", "--subresource=resize", "-p", `{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"300m","memory":"96Mi"},"limits":{"cpu":"300m","memory":"96Mi"}}},{"name":"again","resources":{"requests":{"cpu":"50m","memory":"80Mi"},"limits":{"cpu":"50m","memory":"80Mi"}}}]}}`); err == nil || !strings.Contains(out, "Pod QOS Class may not change as a result of resizing") {
		t.Errorf("the class of service changed: %s", out)
	}
}

// cgroup reads a file of a container's cgroup from inside, in either version.
func (l *lab) cgroup(container, v1, v2 string) string {
	l.Helper()
	out := l.kubectl("exec", "p", "-c", container, "--", "sh", "-c", "cat /sys/fs/cgroup/"+v1+" 2>/dev/null || cat /sys/fs/cgroup/"+v2)
	return strings.Fields(out)[0]
}

// A container in a pod that has ended keeps its log; a pod's logs come whole, in
// part, and as they are written.
func TestLogs(t *testing.T) {
	l := newLab(t)
	l.apply(podManifest("p", `
  containers:
  - {name: c, image: 'busybox:1.35', command: [sh, -c, "if [ ! -e /v/again ]; then touch /v/again; echo before; exit 1; fi; echo out; sleep 1; echo err >&2; sleep 1; echo later; exec sleep 3600"], volumeMounts: [{name: v, mountPath: /v}]}
  - {name: d, image: 'busybox:1.35', command: [sh, -c, "echo other; exec sleep 3600"]}
  volumes: [{name: v, emptyDir: {}}]`))
	l.await("p", "restarted", func(p *corev1.Pod) bool { return status(p, "c").RestartCount == 1 && isReady(p) })
	follow := make(chan string, 1)
	go func() {
		out, _ := l.tryKubectl("logs", "p", "-c", "c", "-f")
		follow <- out
	}()
	eventually(t, settle, func() error {
		if out := l.logs("p", "c"); out != "out\nerr\nlater\n" {
			return fmt.Errorf("log is %q", out)
		}
		return nil
	})
	l.is("--previous", l.kubectl("logs", "p", "-c", "c", "--previous"), "before\n")
	l.is("--tail", l.kubectl("logs", "p", "-c", "c", "--tail=1"), "later\n")
	l.is("--since", l.kubectl("logs", "p", "-c", "c", "--since=24h"), "out\nerr\nlater\n")
	l.is("--since-time", l.kubectl("logs", "p", "-c", "c", "--since-time="+time.Now().Add(time.Hour).UTC().Format(time.RFC3339)), "")
	if out := l.kubectl("logs", "p", "-c", "c", "--timestamps", "--tail=1"); !regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z later\n$`).MatchString(out) {
		t.Errorf("--timestamps: %q", out)
	}
	l.contains(l.kubectl("logs", "p", "--all-containers", "--prefix"), "[pod/p/c] later", "[pod/p/d] other")
	l.is("a stream of its own", l.kubectl("get", "--raw", "/api/v1/namespaces/"+l.ns+"/pods/p/log?container=c&stream=Stderr"), "err\n")
	if out, err := l.tryKubectl("logs", "p", "-c", "nobody"); err == nil || !strings.Contains(out, "container nobody is not valid for pod p") {
		t.Errorf("a container that is not there: %s", out)
	}
	if out, err := l.tryKubectl("logs", "p", "-c", "d", "--previous"); err == nil || !strings.Contains(out, `previous terminated container "d" in pod "p" not found`) {
		t.Errorf("no previous container: %s", out)
	}
	l.kubectl("delete", "pod", "p")
	l.is("what -f gave", <-follow, "out\nerr\nlater\n")
}
