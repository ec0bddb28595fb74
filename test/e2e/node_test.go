package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

// probed is a pod of the test server with a probe. Timings are the shortest there are.
func probed(name, probes string) string {
	return podManifest(name, "  containers: [{name: c, "+testserver+", ports: [{name: http, containerPort: 8080}], "+probes+"}]")
}

const often = "periodSeconds: 1, failureThreshold: 1"

// Liveness: every kind of probe, when it succeeds and when it fails.
func TestLivenessProbes(t *testing.T) {
	t.Parallel()
	const patient = "periodSeconds: 1, failureThreshold: 3}" // the server needs a moment
	ok := map[string]string{
		"http": "livenessProbe: {httpGet: {path: /healthz, port: http}, " + patient,
		"exec": "livenessProbe: {exec: {command: [/testserver, read, /etc/hostname]}, " + patient,
		"tcp":  "livenessProbe: {tcpSocket: {port: 8080}, " + patient,
		"grpc": "livenessProbe: {grpc: {port: 9090}, " + patient,
	}
	t.Run("that succeed restart nothing; http and grpc that begin to fail do", func(t *testing.T) {
		l := newLab(t)
		var manifest string
		for name, probe := range ok {
			manifest += probed(name, probe)
		}
		l.apply(manifest)
		for name := range ok {
			l.ready(name)
		}
		time.Sleep(3 * time.Second) // three probes
		for name := range ok {
			if s := status(l.pod(name), "c"); s.RestartCount != 0 {
				t.Errorf("%s was restarted %d times", name, s.RestartCount)
			}
			if out, err := fetch("POST", "http://"+l.pod(name).Status.PodIP+":8080/healthz?ok=false", ""); err != nil {
				t.Error(out, err)
			}
		}
		for _, name := range []string{"http", "grpc"} {
			l.await(name, "restarted", func(p *corev1.Pod) bool {
				return status(p, "c").RestartCount == 1 && status(p, "c").State.Running != nil
			})
			l.event(name, "Killing", "Container c failed liveness probe, will be restarted")
		}
		l.event("http", "Unhealthy", "Liveness probe failed: HTTP probe failed with statuscode: 503")
		l.event("grpc", "Unhealthy", `Liveness probe failed: service unhealthy (responded with "NOT_SERVING")`)
		for _, name := range []string{"exec", "tcp"} {
			if s := status(l.pod(name), "c"); s.RestartCount != 0 {
				t.Errorf("%s was restarted %d times", name, s.RestartCount)
			}
		}
	})
	t.Run("that fail", func(t *testing.T) {
		l := newLab(t)
		l.apply(probed("grpc", "livenessProbe: {grpc: {port: 2333}, "+often+"}") +
			probed("tcp", "livenessProbe: {tcpSocket: {port: 2333}, "+often+"}") +
			probed("grace", "livenessProbe: {grpc: {port: 2333}, terminationGracePeriodSeconds: 1, "+often+"}") +
			podManifest("exec", `
  containers:
  - name: c
    image: busybox:1.35
    command: [sh, -c, "touch /tmp/health; sleep 2; rm /tmp/health; sleep 3600"]
    livenessProbe: {exec: {command: [cat, /tmp/health]}, `+often+"}"))
		for _, name := range []string{"grpc", "tcp", "exec", "grace"} {
			l.await(name, "restarted", func(p *corev1.Pod) bool { return status(p, "c").RestartCount >= 1 })
		}
		l.event("exec", "Unhealthy", "Liveness probe failed: cat: can't open '/tmp/health': No such file or directory")
		l.event("tcp", "Unhealthy", "Liveness probe failed: dial tcp ")
	})
	t.Run("again and again", func(t *testing.T) {
		l := newLab(t)
		l.apply(probed("p", "livenessProbe: {httpGet: {path: /redirect-nowhere, port: 1}, "+often+"}"))
		last := int32(0)
		for last < 2 {
			s := status(l.await("p", "restarted once more", func(p *corev1.Pod) bool { return status(p, "c").RestartCount > last }), "c")
			if s.RestartCount != last+1 {
				t.Fatalf("restart count went from %d to %d", last, s.RestartCount)
			}
			last = s.RestartCount
		}
	})
}

// Readiness: a pod is not ready before its delay, leaves its Services when it
// fails, is never restarted.
func TestReadinessProbes(t *testing.T) {
	l := newLab(t)
	l.apply(probed("delayed", "readinessProbe: {httpGet: {path: /readyz, port: 8080}, initialDelaySeconds: 3, periodSeconds: 1}") +
		probed("never", "readinessProbe: {exec: {command: [/testserver, exit, -code=1]}, "+often+"}") +
		probed("web", "readinessProbe: {httpGet: {path: /readyz, port: http}, "+often+"}") +
		probed("grpc", "readinessProbe: {grpc: {port: 9090}, "+often+"}") + `
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}
`)
	ready := func() string {
		return l.kubectl("get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o", "jsonpath={.items[*].endpoints[*].conditions.ready}")
	}
	toggle := func(ok bool) {
		l.Helper()
		pod := l.ready("web")
		if _, err := fetch("POST", fmt.Sprintf("http://%s:8080/readyz?ok=%t", pod.Status.PodIP, ok), ""); err != nil {
			t.Fatal(err)
		}
	}
	becomes := func(want string) {
		l.Helper()
		eventually(t, settle, func() error {
			if got := ready(); got != want {
				return fmt.Errorf("ready endpoints %q, want %q", got, want)
			}
			return nil
		})
	}
	delayed := l.ready("delayed")
	started := status(delayed, "c").State.Running.StartedAt.Time
	if at := podCondition(delayed, corev1.PodReady).LastTransitionTime.Time; at.Sub(started) < 3*time.Second {
		t.Errorf("started at %v and ready at %v", started, at)
	}
	l.ready("web")
	becomes("true")
	toggle(false)
	becomes("false")
	l.event("web", "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503")
	if _, err := fetch("POST", "http://"+l.ready("grpc").Status.PodIP+":8080/healthz?ok=false", ""); err != nil {
		t.Fatal(err)
	}
	pod := l.await("grpc", "unready", func(p *corev1.Pod) bool { return conditionIs(p, corev1.PodReady, corev1.ConditionFalse) })
	if s := status(pod, "c"); s.RestartCount != 0 || s.Ready || !*s.Started {
		t.Errorf("%+v", s)
	}
	pod = l.pod("web")
	if _, err := fetch("POST", "http://"+pod.Status.PodIP+":8080/readyz?ok=true", ""); err != nil {
		t.Fatal(err)
	}
	becomes("true")
	if s := status(l.pod("never"), "c"); s.Ready || s.RestartCount != 0 || s.State.Running == nil {
		t.Errorf("%+v", s)
	}
	if s := status(l.pod("web"), "c"); s.RestartCount != 0 {
		t.Errorf("%+v", s)
	}
}

// A startup probe holds the others until it succeeds, and restarts a container
// for which it does not.
func TestStartupProbes(t *testing.T) {
	l := newLab(t)
	l.apply(podManifest("slow", `
  containers:
  - name: c
    `+testserver+`
    args: [serve, -start-delay=3s]
    startupProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 30}
    livenessProbe: {httpGet: {path: /healthz, port: 8080}, `+often+"}") +
		probed("fails", "startupProbe: {tcpSocket: {port: 1}, "+often+"}"))
	pod := l.await("slow", "running", func(p *corev1.Pod) bool { return status(p, "c").State.Running != nil })
	if s := status(pod, "c"); *s.Started || s.Ready {
		t.Errorf("started before its probe: %+v", s)
	}
	pod = l.ready("slow")
	if s := status(pod, "c"); !*s.Started || s.RestartCount != 0 {
		t.Errorf("%+v", s)
	}
	l.await("fails", "restarted", func(p *corev1.Pod) bool { return status(p, "c").RestartCount >= 1 })
	l.event("fails", "Unhealthy", "Startup probe failed: ")
	l.event("fails", "Killing", "Container c failed startup probe, will be restarted")
}

// Users, groups, capabilities, file systems, seccomp: what the process gets.
func TestSecurityContext(t *testing.T) {
	l := newLab(t)
	run := func(name, script, context string) string {
		return "\n  - {name: " + name + ", image: 'busybox:1.35', command: [sh, -c, '" + script + "'], securityContext: {" + context + "}}"
	}
	l.apply(podManifest("p", `
  restartPolicy: Never
  securityContext: {runAsUser: 1001, runAsGroup: 2002, supplementalGroups: [3003], fsGroup: 4004}
  containers:`+
		run("pod", "id -u; id -g; id -G", "")+
		run("container", "id -u; id -g", "runAsUser: 65534, runAsGroup: 3333")+
		run("readonly", "touch /x || echo refused", "readOnlyRootFilesystem: true, runAsUser: 0")+
		run("writable", "touch /x && echo written", "readOnlyRootFilesystem: false, runAsUser: 0")+
		run("unprivileged", "ip link add v0 type veth peer name v1 || echo refused; true", "privileged: false, runAsUser: 0")+
		run("privileged", "mount -t tmpfs none /tmp && echo done", "privileged: true, runAsUser: 0")+
		run("dropped", "grep -E \"CapEff|NoNewPrivs\" /proc/self/status", "runAsUser: 0, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}")+
		run("added", "ip link add v2 type veth peer name v3 && echo done", "runAsUser: 0, capabilities: {add: [NET_ADMIN]}")+
		run("seccomp", "grep Seccomp: /proc/self/status", "seccompProfile: {type: RuntimeDefault}")+
		run("unconfined", "grep Seccomp: /proc/self/status", "seccompProfile: {type: Unconfined}")+
		run("masked", "test -c /proc/keys && echo masked", "runAsUser: 0")))
	pod := l.await("p", "ended", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
	for container, want := range map[string]string{
		"pod": "1001\n2002\n2002 3003 4004\n", "container": "65534\n3333\n", "writable": "written\n", "privileged": "done\n",
		"dropped": "CapEff:\t0000000000000000\nNoNewPrivs:\t1\n", "added": "done\n", "seccomp": "Seccomp:\t2\n", "unconfined": "Seccomp:\t0\n", "masked": "masked\n",
	} {
		l.is("output of "+container, l.logs("p", container), want)
	}
	l.contains(l.logs("p", "readonly"), "refused", "Read-only file system")
	l.contains(l.logs("p", "unprivileged"), "refused", "Operation not permitted")
	if u := status(pod, "container").User; u == nil || u.Linux == nil || u.Linux.UID != 65534 || u.Linux.GID != 3333 {
		t.Errorf("status.user of container: %+v", u)
	}

	l.apply(podManifest("root", "  containers: [{name: c, image: 'busybox:1.35', command: [sleep, '1'], securityContext: {runAsNonRoot: true}}]") +
		podManifest("zero", "  containers: [{name: c, image: 'busybox:1.35', command: [sleep, '1'], securityContext: {runAsNonRoot: true, runAsUser: 0}}]") +
		podManifest("user", "  containers: [{name: c, image: 'busybox:1.35', command: [sleep, '3600'], securityContext: {runAsNonRoot: true, runAsUser: 1000}}]"))
	uid := func(name string) string { return string(l.pod(name).UID) }
	l.is("message", l.waiting("root", "c", "CreateContainerConfigError"), fmt.Sprintf("container has runAsNonRoot and image will run as root (pod: %q, container: c)", "root_"+l.ns+"("+uid("root")+")"))
	l.is("message", l.waiting("zero", "c", "CreateContainerConfigError"), fmt.Sprintf("container's runAsUser breaks non-root policy (pod: %q, container: c)", "zero_"+l.ns+"("+uid("zero")+")"))
	l.ready("user")
}

// A set-uid program gains nothing where escalation is not allowed.
func TestNoPrivilegeEscalation(t *testing.T) {
	l := newLab(t)
	run := func(name, context string) string {
		return "\n  - {name: " + name + ", " + testserver + ", command: [/v/program, uid], volumeMounts: [{name: v, mountPath: /v}], securityContext: {runAsUser: 1000" + context + "}}"
	}
	l.apply(podManifest("p", `
  restartPolicy: Never
  volumes: [{name: v, emptyDir: {}}]
  initContainers: [{name: make, `+testserver+`, args: [setuid, /v/program], volumeMounts: [{name: v, mountPath: /v}]}]
  containers:`+run("refused", ", allowPrivilegeEscalation: false")+run("allowed", ", allowPrivilegeEscalation: true")+run("unsaid", "")))
	l.ended("p", corev1.PodSucceeded)
	for container, uid := range map[string]string{"refused": "1000\n", "allowed": "0\n", "unsaid": "0\n"} {
		l.is("user of "+container, l.logs("p", container), uid)
	}
}

func TestSysctls(t *testing.T) {
	l := newLab(t)
	sysctls := func(name, list string) string {
		return podManifest(name, "  restartPolicy: Never\n  securityContext: {sysctls: ["+list+"]}\n  containers: ["+
			busybox("c", "cat /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ip_local_reserved_ports /proc/sys/net/ipv4/ip_unprivileged_port_start")+"]")
	}
	const safe = "{name: kernel.shm_rmid_forced, value: '1'}, {name: net.ipv4.ip_local_reserved_ports, value: '8080,9000-9002'}, {name: net.ipv4.ip_unprivileged_port_start, value: '80'}"
	l.apply(sysctls("safe", safe))
	l.ended("safe", corev1.PodSucceeded)
	l.is("values", l.logs("safe", ""), "1\n8080,9000-9002\n80\n")

	l.apply(sysctls("unsafe", "{name: kernel.msgmax, value: '10000000000'}"))
	pod := l.ended("unsafe", corev1.PodFailed)
	l.is("reason", pod.Status.Reason, "SysctlForbidden")
	l.contains(pod.Status.Message, `forbidden sysctl: "kernel.msgmax" not allowlisted`)

	_, stderr, err := shared.tryKubectl(sysctls("invalid", safe+", {name: foo-, value: bar}, {name: bar.., value: '42'}"), "create", "-n", l.ns, "-f", "-")
	if err == nil || !strings.Contains(stderr, "spec.securityContext.sysctls[3].name") || !strings.Contains(stderr, "spec.securityContext.sysctls[4].name") || strings.Contains(stderr, "sysctls[0]") {
		t.Errorf("invalid names: %s", stderr)
	}
}

// Namespaces of the host, and those that containers of a pod share.
func TestHostNamespaces(t *testing.T) {
	l := newLab(t)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	port := freePort()
	l.apply(podManifest("host", `
  hostNetwork: true
  hostPID: true
  hostIPC: true
  containers: [`+busybox("c", "for n in net pid ipc; do readlink /proc/self/ns/$n; done; hostname; exec sleep 3600")+"]") + podManifest("shared", `
  shareProcessNamespace: true
  containers: [`+busybox("one", "exec sleep 3601")+", "+busybox("two", "exec sleep 3602")+"]") + podManifest("own", `
  containers: [`+busybox("one", "exec sleep 3603")+", "+busybox("two", "exec sleep 3604")+"]") + podManifest("server", fmt.Sprintf(`
  hostNetwork: true
  containers: [{name: c, %s, args: [serve, "-http=:%d", "-tcp=", "-udp=", "-grpc="], ports: [{containerPort: %d}]}]`, testserver, port, port)))
	pod := l.ready("host")
	var want string
	for _, kind := range []string{"net", "pid", "ipc"} {
		link, err := os.Readlink("/proc/thread-self/ns/" + kind) // the first thread may have been left in the namespace of another test
		if err != nil {
			t.Fatal(err)
		}
		want += link + "\n"
	}
	eventually(t, settle, func() error {
		if out := l.logs("host", ""); out != want+host+"\n" {
			return fmt.Errorf("namespaces and host name are %q, want %q", out, want+host+"\n")
		}
		return nil
	})
	if pod.Status.PodIP != pod.Status.HostIP || pod.Spec.Containers[0].Ports != nil {
		t.Errorf("podIP %s, hostIP %s", pod.Status.PodIP, pod.Status.HostIP)
	}
	l.ready("shared")
	l.ready("own")
	if out := l.kubectl("exec", "shared", "-c", "one", "--", "ps"); !strings.Contains(out, "sleep 3602") || !strings.Contains(out, "pause") {
		t.Errorf("processes of a pod that shares them:\n%s", out)
	}
	if out := l.kubectl("exec", "own", "-c", "one", "--", "ps"); strings.Contains(out, "sleep 3604") {
		t.Errorf("processes of a pod that does not share them:\n%s", out)
	}
	l.ready("server")
	if out, err := fetch("GET", fmt.Sprintf("http://127.0.0.1:%d/hostname", port), ""); err != nil || out != host+"\n" {
		t.Errorf("a server on the host's network: %q, %v", out, err)
	}
}

// /etc/hosts, /etc/resolv.conf and the host name of a pod.
func TestHostsAndResolvConf(t *testing.T) {
	l := newLab(t)
	const show = "cat /etc/hosts; echo --; cat /etc/resolv.conf; echo --; hostname; hostname -f; exec sleep 3600"
	spec := func(more string) string { return "  containers: [" + busybox("c", show) + "]\n" + more }
	l.apply(podManifest("plain", spec("")) +
		podManifest("named", spec("  hostname: busy\n  subdomain: sub\n  hostAliases: [{ip: 123.45.67.89, hostnames: [foo, bar]}]")) +
		podManifest("fqdn", spec("  hostname: busy\n  subdomain: sub\n  setHostnameAsFQDN: true")) +
		podManifest("over", spec("  hostname: busy\n  subdomain: sub\n  hostnameOverride: over.example.host")) +
		podManifest("long", spec("  hostname: "+strings.Repeat("h", 60)+"\n  subdomain: sub\n  setHostnameAsFQDN: true")) +
		podManifest("none", spec("  dnsPolicy: None\n  dnsConfig: {nameservers: [1.1.1.1], searches: [resolv.conf.local, _sip._tcp.example], options: [{name: ndots, value: '2'}, {name: edns0}]}")) +
		podManifest("more", spec("  dnsConfig: {nameservers: [1.1.1.1], searches: [more.local], options: [{name: ndots, value: '3'}]}")) +
		podManifest("default", spec("  dnsPolicy: Default")) +
		podManifest("host", spec("  hostNetwork: true")) +
		podManifest("hostdns", spec("  hostNetwork: true\n  dnsPolicy: ClusterFirstWithHostNet")) +
		podManifest("mounts", `
  containers: [{name: c, image: 'busybox:1.35', command: [sh, -c, "cat /etc/hosts; exec sleep 3600"], volumeMounts: [{name: h, mountPath: /etc/hosts, subPath: hosts}]}]
  volumes: [{name: h, configMap: {name: hosts}}]`) + "\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: hosts}, data: {hosts: \"mine\\n\"}}")
	out := map[string][]string{}
	pods := map[string]*corev1.Pod{}
	for _, name := range []string{"plain", "named", "fqdn", "over", "none", "more", "default", "host", "hostdns", "mounts"} {
		pods[name] = l.ready(name)
		eventually(t, settle, func() error {
			parts := strings.Split(l.logs(name, ""), "--\n")
			if len(parts) != 3 && parts[0] != "mine\n" || len(parts) == 3 && strings.Count(parts[2], "\n") != 2 {
				return fmt.Errorf("log of %s: %q", name, parts)
			}
			out[name] = parts
			return nil
		})
	}
	hosts := func(name, own string) string {
		return "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n" + pods[name].Status.PodIP + "\t" + own + "\n"
	}
	l.is("hosts", out["plain"][0], hosts("plain", "plain"))
	l.is("hosts with aliases", out["named"][0], hosts("named", "busy.sub."+l.ns+".svc.cluster.local\tbusy")+"\n# Entries added by HostAliases.\n123.45.67.89\tfoo\tbar\n")
	l.is("names", out["plain"][2], "plain\nplain\n")
	l.is("names", out["named"][2], "busy\nbusy.sub."+l.ns+".svc.cluster.local\n")
	l.is("names", out["fqdn"][2], strings.Repeat("busy.sub."+l.ns+".svc.cluster.local\n", 2))
	l.is("hosts with an override", out["over"][0], hosts("over", "over.example.host"))
	l.is("names with an override", out["over"][2], strings.Repeat("over.example.host\n", 2))
	l.event("long", "FailedCreatePodSandBox", "Failed to create pod sandbox: failed to construct FQDN from pod hostname and cluster domain, FQDN "+strings.Repeat("h", 60)+".sub."+l.ns+".svc.cluster.local is too long (64 characters is the max, ")
	l.is("phase with a full name too long", string(l.pod("long").Status.Phase), "Pending")
	l.is("hosts of the container's own", out["mounts"][0], "mine\n")
	if strings.Contains(out["host"][0], "Kubernetes-managed hosts file.") || !strings.Contains(out["host"][0], "Kubernetes-managed hosts file (host network).") {
		t.Errorf("hosts with hostNetwork: %s", out["host"][0])
	}
	dns := strings.TrimSpace(shared.kubectl(t, "get", "service", "-n", "kube-system", "kube-dns", "-o", "jsonpath={.spec.clusterIP}"))
	cluster := l.ns + ".svc.cluster.local svc.cluster.local cluster.local"
	l.lines(out["plain"][1], "nameserver "+dns, "options ndots:5")
	l.contains(out["plain"][1], "search "+cluster)
	l.is("resolv.conf with dnsPolicy None", out["none"][1], "search resolv.conf.local _sip._tcp.example\nnameserver 1.1.1.1\noptions ndots:2 edns0\n")
	l.lines(out["more"][1], "nameserver "+dns, "nameserver 1.1.1.1", "options ndots:3")
	l.contains(out["more"][1], "search "+cluster, " more.local")
	l.contains(out["hostdns"][1], "nameserver "+dns, "search "+cluster)
	for _, name := range []string{"default", "host"} {
		if strings.Contains(out[name][1], "cluster.local") || strings.Contains(out[name][1], dns) {
			t.Errorf("resolv.conf of %s: %s", name, out[name][1])
		}
	}
}

// Streams of exec and attach: input, output, a terminal, exit codes.
func TestExecAndAttach(t *testing.T) {
	l := newLab(t)
	l.apply(podManifest("p", "  containers: [{name: c, image: 'busybox:1.35', command: [sh, -c, 'while read line; do echo \"got $line\"; done; sleep 3600'], stdin: true}]"))
	l.ready("p")
	t.Run("exec over WebSocket and SPDY", func(t *testing.T) {
		for _, transport := range []string{"websocket", "spdy"} {
			var stdout, stderr bytes.Buffer
			err := stream(t.Context(), transport, l.ns, &corev1.PodExecOptions{Command: []string{"sh", "-c", "cat; echo err >&2; exit 5"}, Stdin: true, Stdout: true, Stderr: true},
				remotecommand.StreamOptions{Stdin: strings.NewReader("through"), Stdout: &stdout, Stderr: &stderr})
			if err == nil || err.Error() != "command terminated with exit code 5" || stdout.String() != "through" || stderr.String() != "err\n" {
				t.Errorf("%s: %v, %q, %q", transport, err, stdout.String(), stderr.String())
			}
		}
	})
	t.Run("exec with a terminal", func(t *testing.T) {
		var stdout bytes.Buffer
		err := stream(t.Context(), "websocket", l.ns, &corev1.PodExecOptions{Command: []string{"sh", "-c", "tty; until stty size 2>/dev/null | grep 37; do sleep 0.1; done; read x; echo read $x"}, Stdin: true, Stdout: true, TTY: true},
			remotecommand.StreamOptions{Stdin: open(t, "in\n"), Stdout: &stdout, Tty: true, TerminalSizeQueue: &oneSize{remotecommand.TerminalSize{Width: 91, Height: 37}}})
		if out := stdout.String(); err != nil || !strings.Contains(out, "/dev/pts/") || !strings.Contains(out, "37 91") || !strings.Contains(out, "read in") {
			t.Errorf("%v, %q", err, out)
		}
	})
	t.Run("attach", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), settle)
		defer cancel()
		cmd := shared.command(ctx, "kubectl", "attach", "-i", "p", "-n", l.ns)
		cmd.Stdin = open(t, "line\n")
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "got line\n" {
			t.Errorf("%v, %q", err, line)
		}
		cancel()
		cmd.Wait() //nolint:errcheck // it was killed
	})
	t.Run("logs over WebSocket", func(t *testing.T) {
		l.exec("p", "sh", "-c", "echo alive >/proc/1/fd/1")
		url := clients().CoreV1().RESTClient().Get().Resource("pods").Namespace(l.ns).Name("p").SubResource("log").URL()
		url.Scheme = "wss"
		tls, err := rest.TLSConfigFor(clusterConfig())
		if err != nil {
			t.Fatal(err)
		}
		dialer := websocket.Dialer{TLSClientConfig: tls, Subprotocols: []string{"binary.k8s.io"}}
		eventually(t, settle, func() error {
			conn, _, err := dialer.DialContext(t.Context(), url.String(), nil)
			if err != nil {
				return err
			}
			defer conn.Close()
			var out []byte
			for {
				kind, message, err := conn.ReadMessage()
				if err == nil && kind != websocket.BinaryMessage {
					return fmt.Errorf("a message of kind %d", kind)
				}
				if err == nil {
					out = append(out, message...)
					continue
				}
				if !websocket.IsCloseError(err, websocket.CloseNormalClosure) || !strings.Contains(string(out), "alive\n") {
					return fmt.Errorf("%q, %w", out, err)
				}
				return nil
			}
		})
	})
	t.Run("a command that is not there", func(t *testing.T) {
		out, err := l.tryKubectl("exec", "p", "--", "/nowhere")
		if err == nil || !strings.Contains(out, "no such file or directory") {
			t.Errorf("%v, %s", err, out)
		}
	})
	t.Run("a container that is not there", func(t *testing.T) {
		out, err := l.tryKubectl("exec", "p", "-c", "nobody", "--", "true")
		if err == nil || !strings.Contains(out, "container nobody is not valid for pod p") && !strings.Contains(out, `container not found ("nobody")`) {
			t.Errorf("%v, %s", err, out)
		}
	})
}

// open is an input that stays open after its text until the test ends: the end
// of input detaches a client.
func open(t *testing.T, text string) io.Reader {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	return r
}

type oneSize struct{ size remotecommand.TerminalSize }

func (q *oneSize) Next() *remotecommand.TerminalSize {
	if q.size.Width == 0 {
		return nil
	}
	next := q.size
	q.size = remotecommand.TerminalSize{}
	return &next
}

func stream(ctx context.Context, transport, ns string, options *corev1.PodExecOptions, streams remotecommand.StreamOptions) error {
	url := clients().CoreV1().RESTClient().Post().Resource("pods").Namespace(ns).Name("p").SubResource("exec").VersionedParams(options, scheme.ParameterCodec).URL()
	var executor remotecommand.Executor
	var err error
	if transport == "spdy" {
		executor, err = remotecommand.NewSPDYExecutor(clusterConfig(), "POST", url)
	} else {
		executor, err = remotecommand.NewWebSocketExecutor(clusterConfig(), "GET", url.String())
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	return executor.StreamWithContext(ctx, streams)
}

// Pods from files of the node's manifest directory, and their mirrors.
func TestStaticPods(t *testing.T) {
	t.Parallel()
	node := strings.TrimSpace(shared.kubectl(t, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"))
	l := &lab{T: t, ns: "default"}
	file := filepath.Join(shared.dir, "manifests", "static.yaml")
	write := func(image string) {
		t.Helper()
		manifest := "apiVersion: v1\nkind: Pod\nmetadata: {name: static}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers: [{name: c, image: '" + image + "', imagePullPolicy: IfNotPresent, command: [sleep, '3600']}]\n"
		if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("busybox:1.35")
	t.Cleanup(func() { os.Remove(file) })
	name := "static-" + node
	exists := func() {
		t.Helper()
		eventually(t, settle, func() error { _, err := l.tryKubectl("get", "pod", name); return err })
	}
	exists()
	pod := l.ready(name)
	owner := metav1.GetControllerOf(pod)
	if pod.Annotations["kubernetes.io/config.source"] != "file" || pod.Annotations["kubernetes.io/config.mirror"] == "" || owner == nil || owner.Kind != "Node" || owner.Name != node {
		t.Errorf("mirror: %+v", pod.ObjectMeta)
	}
	id := status(pod, "c").ContainerID
	l.kubectl("delete", "pod", name, "--grace-period=0", "--force")
	exists()
	if again := l.ready(name); status(again, "c").ContainerID != id {
		t.Error("deleting the mirror restarted the pod")
	}
	write("busybox")
	eventually(t, settle, func() error { // the mirror goes and comes back with the change
		p, err := clients().CoreV1().Pods(l.ns).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && (p.Spec.Containers[0].Image != "busybox" || !isReady(p)) {
			err = fmt.Errorf("the pod has image %s, ready %t", p.Spec.Containers[0].Image, isReady(p))
		}
		return err
	})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	l.gone(name)
}

func TestRuntimeClasses(t *testing.T) {
	l := newLab(t)
	l.apply("{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: " + l.ns + "-runc}, handler: runc, overhead: {podFixed: {cpu: 10m, memory: 8Mi}}}\n---\n" +
		"{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: " + l.ns + "-plain}, handler: runc}\n---\n" +
		"{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: " + l.ns + "-unknown}, handler: nobody}")
	t.Cleanup(func() {
		shared.tryKubectl("", "delete", "runtimeclass", l.ns+"-runc", l.ns+"-plain", l.ns+"-unknown", "--ignore-not-found")
	})
	with := func(name, class string) string {
		return podManifest(name, "  runtimeClassName: "+l.ns+"-"+class+"\n  containers: ["+busybox("c", "sleep 3600")+"]")
	}
	l.apply(with("runc", "runc") + with("plain", "plain") + with("unknown", "unknown"))
	if o := l.ready("runc").Spec.Overhead; o.Memory().Value() != 8<<20 || o.Cpu().MilliValue() != 10 {
		t.Errorf("overhead: %v", o)
	}
	if o := l.ready("plain").Spec.Overhead; o != nil {
		t.Errorf("overhead without one in the class: %v", o)
	}
	l.event("unknown", "FailedCreatePodSandBox", `no runtime for "nobody" is configured`)
	_, stderr, err := shared.tryKubectl(with("missing", "missing"), "create", "-n", l.ns, "-f", "-")
	if err == nil || !strings.Contains(stderr, `pods "missing" is forbidden: pod rejected: RuntimeClass "`+l.ns+`-missing" not found`) {
		t.Errorf("a class that never was: %s", stderr)
	}
	shared.kubectl(t, "delete", "runtimeclass", l.ns+"-plain")
	_, stderr, err = shared.tryKubectl(with("deleted", "plain"), "create", "-n", l.ns, "-f", "-")
	if err == nil || !strings.Contains(stderr, `RuntimeClass "`+l.ns+`-plain" not found`) {
		t.Errorf("a deleted class: %s", stderr)
	}
}
