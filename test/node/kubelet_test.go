package node

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// TestFlagsThatWereRemovedAreUnknown is every flag that upstream's kubelet once had
// and a script may still give.
func TestFlagsThatWereRemovedAreUnknown(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{
		"container-runtime=remote", "docker-endpoint=unix:///var/run/docker.sock", "network-plugin=cni", "cni-conf-dir=/etc/cni/net.d", "cni-bin-dir=/opt/cni/bin",
		"keep-terminated-pod-volumes=true", "dynamic-config-dir=/tmp", "seccomp-profile-root=/tmp", "cloud-config=/tmp/none", "pod-infra-container-image=pause",
	} {
		name, _, _ := strings.Cut(flag, "=")
		if out := refused(t, "--"+flag); !strings.Contains(out, "unknown flag: --"+name) {
			t.Errorf("--%s: %s", flag, out)
		}
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	t.Parallel()
	a := prepare(t)
	for _, tt := range []struct {
		name, text string
		flags      []string
		want       string
	}{
		{name: "unlimited swap", text: "memorySwap: {swapBehavior: UnlimitedSwap}", want: `memorySwap.swapBehavior "UnlimitedSwap" must be one of: "", "LimitedSwap" or "NoSwap"`},
		{name: "a cloud of its own", flags: []string{"--cloud-provider=aws"}, want: `unknown cloud provider "aws"`},
		{name: "no runtime", flags: []string{"--container-runtime-endpoint="}, want: "the containerRuntimeEndpoint was not specified or empty"},
		{name: "an unknown gate in the file", text: "featureGates: {NoSuch: true}", want: "unrecognized feature gate: NoSuch"},
		{name: "an unknown gate by flag", flags: []string{"--feature-gates=NoSuch=true"}, want: "unrecognized feature gate: NoSuch"},
		{name: "a locked gate", flags: []string{"--feature-gates=ImageVolume=false"}, want: "cannot set feature gate ImageVolume to false, feature is locked to true"},
		{name: "a gate that was removed", flags: []string{"--feature-gates=DynamicKubeletConfig=true"}, want: "unrecognized feature gate: DynamicKubeletConfig"},
		{name: "pulls that contradict", text: "serializeImagePulls: true\nmaxParallelImagePulls: 2", want: "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) is set to false"},
		{name: "no pull at a time", text: "maxParallelImagePulls: 0", want: "maxParallelImagePulls 0 must be a positive number"},
		{name: "images that may not grow old", text: "imageMaximumGCAge: 1m", want: "imageMaximumGCAge 1m0s must be greater than imageMinimumGCAge 2m0s"},
		{name: "logs beside the root", text: "podLogsDir: /var/../logs", want: `pod logs path "/var/../logs" must be normalized`},
		{name: "what nothing here does", text: "shutdownGracePeriod: 30s", want: `invalid configuration: shutdownGracePeriod "30s" is not supported by this kubelet`},
		{name: "labels of the project", flags: []string{"--node-labels=kubernetes.io/mine=1"}, want: "unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [kubernetes.io/mine]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			flags := slices.Concat(a.flags(), []string{"--config", a.file(tt.text)}, tt.flags)
			if out := refused(t, flags...); !strings.Contains(out, tt.want) {
				t.Errorf("it says %s\nwant %s", out, tt.want)
			}
		})
	}
}

// TestAKubeletTalksToCRIAlone is that neither Docker's socket nor another version of
// CRI will do.
func TestAKubeletTalksToCRIAlone(t *testing.T) {
	t.Parallel()
	a := prepare(t)
	docker, old := filepath.Join(a.root, "docker.sock"), filepath.Join(a.root, "old.sock")
	listen := func(path string) net.Listener {
		l, err := net.Listen("unix", path)
		must(t, err)
		t.Cleanup(func() { l.Close() })
		return l
	}
	d := httptest.NewUnstartedServer(http.NotFoundHandler())
	d.Listener.Close()
	d.Listener = listen(docker)
	d.Start()
	t.Cleanup(d.Close)
	v1alpha2 := grpc.NewServer() // it knows no service of v1
	go func() { _ = v1alpha2.Serve(listen(old)) }()
	t.Cleanup(v1alpha2.Stop)
	config := a.file("")
	for endpoint, want := range map[string]string{
		docker: "validate CRI v1 runtime API for endpoint", old: "unknown service runtime.v1.RuntimeService",
		filepath.Join(a.root, "none.sock"): "validate CRI v1 runtime API for endpoint",
	} {
		out := refused(t, append(a.flags(), "--config", config, "--container-runtime-endpoint", "unix://"+endpoint)...)
		if !strings.Contains(out, want) || !strings.Contains(out, "failed to run Kubelet") {
			t.Errorf("%s: it says %s", endpoint, out)
		}
	}
}

// TestANodeByFileAlone is a whole node whose flags say only who it is: containers,
// logs, exec and restarts, logs in a directory of its own, seccomp by default.
func TestANodeByFileAlone(t *testing.T) {
	t.Parallel()
	a := prepare(t)
	logs := filepath.Join(a.root, "podlogs")
	a.start("--config", a.file(fmt.Sprintf("containerRuntimeEndpoint: %s\npodLogsDir: %s\nseccompDefault: true\nfeatureGates: {CRIListStreaming: false}\n", shared.endpoint(), logs)))

	n, err := a.api.CoreV1().Nodes().Get(t.Context(), a.name, metav1.GetOptions{})
	must(t, err)
	if v := n.Status.NodeInfo.ContainerRuntimeVersion; !strings.HasPrefix(v, "containerd://2.") {
		t.Errorf("container runtime version %q", v)
	}
	if i := n.Status.NodeInfo; i.KernelVersion == "" || i.OSImage == "" || !strings.HasPrefix(i.KubeletVersion, "v1.37.") {
		t.Errorf("node info %+v", i)
	}
	table := a.raw("/api/v1/nodes/"+a.name, "application/json;as=Table;v=v1;g=meta.k8s.io")
	if !strings.Contains(table, "containerd://") || !strings.Contains(table, "Container-Runtime") {
		t.Errorf("table of the node: %s", table)
	}

	filtered := a.pod("default", nil, corev1.PodRunning)
	if mode := a.seccomp(filtered); mode != "2" {
		t.Errorf("a container that names no profile has seccomp mode %s", mode)
	}
	unconfined := a.pod("unconfined", func(p *corev1.Pod) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}}
	}, corev1.PodRunning)
	if mode := a.seccomp(unconfined); mode != "0" {
		t.Errorf("a container that asks for no filter has seccomp mode %s", mode)
	}
	privileged := a.pod("privileged", func(p *corev1.Pod) {
		yes := true
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
	}, corev1.PodRunning)
	if mode := a.seccomp(privileged); mode != "0" {
		t.Errorf("a privileged container has seccomp mode %s", mode)
	}
	annotated := a.pod("annotated", func(p *corev1.Pod) {
		p.Annotations = map[string]string{"seccomp.security.alpha.kubernetes.io/pod": "unconfined", "container.seccomp.security.alpha.kubernetes.io/c": "unconfined"}
	}, corev1.PodRunning)
	if mode := a.seccomp(annotated); mode != "2" {
		t.Errorf("an annotation of long ago gives seccomp mode %s", mode)
	}

	if text := a.logs(filtered); text != "hello\n" {
		t.Errorf("log %q", text)
	}
	file := filepath.Join(logs, "default_"+filtered.Name+"_"+string(filtered.UID), "c", "0.log")
	if data, err := os.ReadFile(file); err != nil || !strings.Contains(string(data), "hello") {
		t.Errorf("log file %s: %q, %v", file, data, err)
	}
	windows := a.pod("windows", func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }, corev1.PodFailed)
	if windows.Status.Reason != "PodOSNotSupported" {
		t.Errorf("a pod for Windows failed with %s: %s", windows.Status.Reason, windows.Status.Message)
	}
	restarted := a.pod("restarted", func(p *corev1.Pod) {
		p.Spec.Containers[0].Command = []string{"/bin/sh", "-c", "sleep 0.2; exit 3"}
	}, corev1.PodRunning)
	a.await("a restart", func() bool {
		p, err := a.api.CoreV1().Pods("default").Get(t.Context(), restarted.Name, metav1.GetOptions{})
		return err == nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount > 0
	})
	for _, line := range []string{
		`kubernetes_feature_enabled{name="CRIListStreaming",stage="ALPHA"} 0`, `kubernetes_feature_enabled{name="EventedPLEG",stage="ALPHA"} 0`,
		`kubernetes_feature_enabled{name="ImageVolume",stage=""} 1`,
	} {
		if metrics := a.raw("/api/v1/nodes/"+a.name+"/proxy/metrics", ""); !strings.Contains(metrics, line+"\n") {
			t.Errorf("no metric %s", line)
		}
	}
}

// TestConfigurationIsMergedInOrder is files, drop-ins and flags, each over the one
// before, and upstream's defaults under them.
func TestConfigurationIsMergedInOrder(t *testing.T) {
	t.Parallel()
	a := prepare(t)
	a.write("d/10.conf", header+"maxPods: 50\nclusterDNS: [10.0.0.1, 10.0.0.2]\nsystemReserved: {cpu: 100m, memory: 50Mi}\nimageMinimumGCAge: 3m\n")
	a.write("d/20.conf", header+"maxPods: 60\nclusterDNS: [10.0.0.3]\nsystemReserved: {memory: 60Mi}\nimageMinimumGCAge: 4m\nfeatureGates: {EventedPLEG: false}\n")
	a.write("d/30.yaml", header+"maxPods: 70\n")
	a.start("--config", a.file("containerRuntimeEndpoint: unix:///none\nmaxPods: 40\n"), "--config-dir", filepath.Join(a.root, "d"),
		"--container-runtime-endpoint", shared.endpoint(), "--minimum-image-ttl-duration", "5m", "--feature-gates", "CRIListStreaming=true", "--cloud-provider", "external")
	var shown struct {
		Kubeletconfig kubeletv1beta1.KubeletConfiguration
	}
	must(t, json.Unmarshal([]byte(a.raw("/api/v1/nodes/"+a.name+"/proxy/configz", "")), &shown))
	c := shown.Kubeletconfig
	if c.MaxPods != 60 || !slices.Equal(c.ClusterDNS, []string{"10.0.0.3"}) || c.SystemReserved["cpu"] != "100m" || c.SystemReserved["memory"] != "60Mi" {
		t.Errorf("maxPods %d, clusterDNS %v, systemReserved %v", c.MaxPods, c.ClusterDNS, c.SystemReserved)
	}
	if c.ImageMinimumGCAge.Duration.String() != "5m0s" || c.ContainerRuntimeEndpoint != shared.endpoint() || !c.FeatureGates["CRIListStreaming"] {
		t.Errorf("flags do not go before files: %v %s %v", c.ImageMinimumGCAge, c.ContainerRuntimeEndpoint, c.FeatureGates)
	}
	if *c.KubeAPIQPS != 50 || c.KubeAPIBurst != 100 || *c.EventRecordQPS != 50 || c.EventBurst != 100 {
		t.Errorf("default rates: %d %d, events %d %d", *c.KubeAPIQPS, c.KubeAPIBurst, *c.EventRecordQPS, c.EventBurst)
	}
	if c.CgroupDriver != "cgroupfs" {
		t.Errorf("cgroup driver %s", c.CgroupDriver)
	}
	n, err := a.api.CoreV1().Nodes().Get(t.Context(), a.name, metav1.GetOptions{})
	must(t, err)
	if n.Status.Capacity.Pods().Value() != 60 {
		t.Errorf("the node takes %s pods", n.Status.Capacity.Pods())
	}
	if reserved := n.Status.Capacity.Cpu().MilliValue() - n.Status.Allocatable.Cpu().MilliValue(); reserved != 100 {
		t.Errorf("%dm of the CPUs are reserved", reserved)
	}
	uninitialized := corev1.Taint{Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: corev1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&uninitialized) && t.Value == "true" }) || n.Annotations["alpha.kubernetes.io/provided-node-ip"] != shared.address {
		t.Errorf("beside a cloud controller manager: taints %v, annotations %v", n.Spec.Taints, n.Annotations)
	}
	if metrics := a.raw("/api/v1/nodes/"+a.name+"/proxy/metrics", ""); !strings.Contains(metrics, `kubernetes_feature_enabled{name="CRIListStreaming",stage="ALPHA"} 1`) {
		t.Error("the metric does not show a gate that is on")
	}
}

// TestTheAgentChecksTheNarrowPermissionFirst is fine-grained authorization on a real
// node: who may read its health may not read its pods.
func TestTheAgentChecksTheNarrowPermissionFirst(t *testing.T) {
	t.Parallel()
	a := prepare(t)
	a.start("--config", a.file("authorization: {webhook: {cacheUnauthorizedTTL: 1ms}}\n"), "--container-runtime-endpoint", shared.endpoint())
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: a.name}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes/healthz"}, Verbs: []string{"get"}}}}
	role, err := a.api.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})
	must(t, err)
	_, err = a.api.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: a.name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "default"}},
	}, metav1.CreateOptions{})
	must(t, err)
	token, err := a.api.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	check := func(path, bearer string, want int) {
		t.Helper()
		var got int
		a.await(fmt.Sprintf("%s answered with %d", path, want), func() bool { got = a.direct(path, bearer); return got == want })
	}
	check("/healthz", "", http.StatusUnauthorized)
	check("/healthz", token.Status.Token, http.StatusOK)
	for _, path := range []string{"/pods", "/configz", "/metrics", "/logs/", "/debug/pprof/"} {
		check(path, token.Status.Token, http.StatusForbidden)
	}
	role.Rules[0].Resources = append(role.Rules[0].Resources, "nodes/pods")
	_, err = a.api.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{})
	must(t, err)
	check("/pods", token.Status.Token, http.StatusOK)
	check("/runningpods/", token.Status.Token, http.StatusOK)
	check("/configz", token.Status.Token, http.StatusForbidden)
}

// counting is a runtime between the kubelet and containerd that counts.
type counting struct {
	runtimeapi.UnimplementedImageServiceServer
	inner    runtimeapi.ImageServiceClient
	inFlight chan struct{}
	most     chan int
	release  chan struct{}
}

func (c *counting) PullImage(ctx context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	c.inFlight <- struct{}{}
	c.most <- max(<-c.most, len(c.inFlight))
	defer func() { <-c.inFlight }()
	select {
	case <-c.release:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return nil, grpcstatus.Error(codes.NotFound, "no such image")
}

func (c *counting) ImageStatus(ctx context.Context, r *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	return c.inner.ImageStatus(ctx, r)
}

func (c *counting) ListImages(ctx context.Context, r *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return c.inner.ListImages(ctx, r)
}

func (c *counting) ImageFsInfo(ctx context.Context, r *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	return c.inner.ImageFsInfo(ctx, r)
}

// TestPullsAreLimited is six pulls where two may run, through an image service with
// an endpoint of its own.
func TestPullsAreLimited(t *testing.T) {
	t.Parallel()
	a := prepare(t)
	conn, err := grpc.NewClient(shared.endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	must(t, err)
	defer conn.Close()
	service := &counting{inner: runtimeapi.NewImageServiceClient(conn), inFlight: make(chan struct{}, 10), most: make(chan int, 1), release: make(chan struct{})}
	service.most <- 0
	socket := filepath.Join(a.root, "images.sock")
	l, err := net.Listen("unix", socket)
	must(t, err)
	server := grpc.NewServer()
	runtimeapi.RegisterImageServiceServer(server, service)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	a.start("--config", a.file("registryPullQPS: 0\nmaxParallelImagePulls: 2\nimageServiceEndpoint: unix://"+socket+"\n"), "--container-runtime-endpoint", shared.endpoint())
	for i := range 6 {
		a.pod(fmt.Sprint(i), func(p *corev1.Pod) { p.Spec.Containers[0].Image = fmt.Sprintf("none.invalid/image:%d", i) }, corev1.PodPending)
	}
	for range 4 {
		a.await("two pulls at work", func() bool { return len(service.inFlight) == 2 })
		service.release <- struct{}{}
	}
	if most := <-service.most; most != 2 {
		t.Errorf("%d pulls were in flight at once", most)
	}
	close(service.release)
	service.most <- 2
}

// TestLowLevelRuntimesAreChosenByClass is runc and, where the host has it, crun.
func TestLowLevelRuntimesAreChosenByClass(t *testing.T) {
	t.Parallel()
	a := prepare(t)
	a.start("--config", a.file(""), "--container-runtime-endpoint", shared.endpoint())
	n, err := a.api.CoreV1().Nodes().Get(t.Context(), a.name, metav1.GetOptions{})
	must(t, err)
	if len(handlers()) == 1 {
		t.Skip("the host has no crun; PROA_CRUN names one")
	}
	for _, h := range handlers() {
		if !slices.ContainsFunc(n.Status.RuntimeHandlers, func(r corev1.NodeRuntimeHandler) bool { return r.Name == h.name && r.Features != nil }) {
			t.Errorf("the node does not tell of %s: %+v", h.name, n.Status.RuntimeHandlers)
		}
		class := a.name + "-" + h.name
		_, err := a.api.NodeV1().RuntimeClasses().Create(t.Context(), &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Handler: h.name}, metav1.CreateOptions{})
		must(t, err)
		p := a.pod(h.name, func(p *corev1.Pod) { p.Spec.RuntimeClassName = &class }, corev1.PodRunning)
		if out := a.exec(p, "echo", "inside"); out != "inside\n" {
			t.Errorf("%s: exec gives %q", h.name, out)
		}
	}
}

// raw reads a path of the API server.
func (a *agent) raw(path, accept string) string {
	a.Helper()
	r := a.api.CoreV1().RESTClient().Get().AbsPath(path)
	if accept != "" {
		r = r.SetHeader("Accept", accept)
	}
	data, err := r.DoRaw(a.Context())
	if err != nil {
		a.Fatalf("get %s: %v", path, err)
	}
	return string(data)
}

// direct asks the node itself.
func (a *agent) direct(path, bearer string) int {
	config := rest.AnonymousClientConfig(a.config)
	config.Host = "https://" + net.JoinHostPort(shared.address, fmt.Sprint(a.port))
	config.BearerToken = bearer
	client, err := rest.HTTPClientFor(config)
	must(a.T, err)
	resp, err := client.Get(config.Host + path)
	must(a.T, err)
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

func (a *agent) logs(p *corev1.Pod) string {
	a.Helper()
	data, err := a.api.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{}).DoRaw(a.Context())
	must(a.T, err)
	return string(data)
}

func (a *agent) exec(p *corev1.Pod, command ...string) string {
	a.Helper()
	r := a.api.CoreV1().RESTClient().Post().Resource("pods").Namespace(p.Namespace).Name(p.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: "c", Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	e, err := remotecommand.NewWebSocketExecutor(a.config, "GET", r.URL().String())
	must(a.T, err)
	var out, errs strings.Builder
	if err := e.StreamWithContext(a.Context(), remotecommand.StreamOptions{Stdout: &out, Stderr: &errs}); err != nil {
		a.Fatalf("exec %v: %v: %s", command, err, errs.String())
	}
	return out.String()
}

// seccomp is the filter mode of a container's first process.
func (a *agent) seccomp(p *corev1.Pod) string {
	a.Helper()
	lines := bufio.NewScanner(strings.NewReader(a.exec(p, "cat", "/proc/1/status")))
	for lines.Scan() {
		if mode, ok := strings.CutPrefix(lines.Text(), "Seccomp:"); ok {
			return strings.TrimSpace(mode)
		}
	}
	a.Error("no seccomp mode in /proc/1/status")
	return ""
}
