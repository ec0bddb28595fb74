package stats

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	clocktesting "k8s.io/utils/clock/testing"
)

type runtime struct {
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient
	err    error
	filter *runtimeapi.PodSandboxStatsFilter // of the last request
	asked  int                               // for file systems
}

func number(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }

func (r *runtime) ListPodSandboxStats(_ context.Context, req *runtimeapi.ListPodSandboxStatsRequest, _ ...grpc.CallOption) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	r.filter = req.Filter
	cpu := &runtimeapi.CpuUsage{Timestamp: 1e9, UsageCoreNanoSeconds: number(2e9)}
	memory := &runtimeapi.MemoryUsage{Timestamp: 1e9, WorkingSetBytes: number(4096)}
	return &runtimeapi.ListPodSandboxStatsResponse{Stats: []*runtimeapi.PodSandboxStats{{
		Attributes: &runtimeapi.PodSandboxAttributes{Id: "s", Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "ns", Uid: "u"}},
		Linux: &runtimeapi.LinuxPodSandboxStats{Cpu: cpu, Memory: memory, Containers: []*runtimeapi.ContainerStats{{
			Attributes: &runtimeapi.ContainerAttributes{Id: "c", Metadata: &runtimeapi.ContainerMetadata{Name: "app"}},
			Cpu:        cpu, Memory: memory, Swap: &runtimeapi.SwapUsage{Timestamp: 1e9, SwapUsageBytes: number(7)},
			WritableLayer: &runtimeapi.FilesystemUsage{UsedBytes: number(10), InodesUsed: number(1)},
		}}},
	}}}, r.err
}

func (r *runtime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest, ...grpc.CallOption) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "s", CreatedAt: 5e9}}}, nil
}

func (r *runtime) ListContainers(context.Context, *runtimeapi.ListContainersRequest, ...grpc.CallOption) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{Id: "c", CreatedAt: 6e9}}}, nil
}

func (r *runtime) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest, ...grpc.CallOption) (*runtimeapi.ImageFsInfoResponse, error) {
	r.asked++
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{
		FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/"}, UsedBytes: number(123), InodesUsed: number(1),
	}}}, nil
}

func procWith(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"stat":                   "cpu  100 0 50 1000 10 0 0 50 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\nbtime 1700000000\n",
		"meminfo":                "MemTotal: 1000 kB\nMemFree: 400 kB\nInactive(file): 100 kB\nAnonPages: 50 kB\nSwapTotal: 10 kB\nSwapFree: 4 kB\n",
		"vmstat":                 "pgfault 12\npgmajfault 2\n",
		"net/dev":                "Inter-| Receive\n face |bytes\n lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n eth0: 11 1 2 0 0 0 0 0 22 1 3 0 0 0 0 0\n",
		"net/route":              "Iface Destination Gateway\neth0 00000000 0101A8C0\n",
		"loadavg":                "0.1 0.2 0.3 2/345 999\n",
		"sys/kernel/pid_max":     "4194304\n",
		"sys/kernel/threads-max": "1000\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func provider(t *testing.T, r *runtime) (*Provider, *clocktesting.FakePassiveClock, string) {
	t.Helper()
	proc := procWith(t)
	clk := clocktesting.NewFakePassiveClock(time.Unix(1800000000, 0))
	return New(Config{Runtime: r, Images: r, NodeName: "n1", RootDir: t.TempDir(), Proc: proc, Clock: clk}), clk, proc
}

func TestSummary(t *testing.T) {
	p, clk, proc := provider(t, &runtime{})
	sum, err := p.Summary(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	n := sum.Node
	for _, c := range []struct {
		name      string
		got, want uint64
	}{
		{"node cpu time", *n.CPU.UsageCoreNanoSeconds, 2e9},
		{"node memory in use", *n.Memory.UsageBytes, 600 << 10},
		{"node working set", *n.Memory.WorkingSetBytes, 500 << 10},
		{"node memory available", *n.Memory.AvailableBytes, 500 << 10},
		{"minor page faults", *n.Memory.PageFaults, 10},
		{"swap in use", *n.Swap.SwapUsageBytes, 6 << 10},
		{"bytes sent", *n.Network.TxBytes, 22},
		{"processes", uint64(*n.Rlimit.NumOfRunningProcesses), 345},
		{"process limit", uint64(*n.Rlimit.MaxPID), 1000},
		{"images", *n.Runtime.ImageFs.UsedBytes, 123},
		{"pod working set", *sum.Pods[0].Memory.WorkingSetBytes, 4096},
		{"pod swap", *sum.Pods[0].Swap.SwapUsageBytes, 7},
		{"pod storage", *sum.Pods[0].EphemeralStorage.UsedBytes, 10},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, c.got, c.want)
		}
	}
	if n.Network.Name != "eth0" || len(n.Network.Interfaces) != 1 {
		t.Errorf("network %v", n.Network)
	}
	if got := sum.Pods[0].Containers[0].StartTime.Unix(); got != 6 {
		t.Errorf("container start %d", got)
	}
	// One more second of CPU time within two seconds is half a core.
	clk.SetTime(clk.Now().Add(2 * time.Second))
	if err := os.WriteFile(filepath.Join(proc, "stat"), []byte("cpu  200 0 50 1000 10 0 0 50 0 0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	node, err := p.Node(t.Context(), true)
	if err != nil || *node.CPU.UsageNanoCores != 5e8 {
		t.Errorf("rate %d, err %v", *node.CPU.UsageNanoCores, err)
	}
}

func TestResourceMetrics(t *testing.T) {
	p, _, _ := provider(t, &runtime{})
	want := `
# HELP container_memory_working_set_bytes [STABLE] Current working set of the container in bytes
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container="app",namespace="ns",pod="p"} 4096 1000
# HELP pod_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the pod in core-seconds
# TYPE pod_cpu_usage_seconds_total counter
pod_cpu_usage_seconds_total{namespace="ns",pod="p"} 2 1000
# HELP resource_scrape_error [STABLE] 1 if there was an error while getting container metrics, 0 otherwise
# TYPE resource_scrape_error gauge
resource_scrape_error 0
`
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(p.Resource())
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "container_memory_working_set_bytes", "pod_cpu_usage_seconds_total", "resource_scrape_error"); err != nil {
		t.Error(err)
	}
}

func TestResourceMetricsReportAFailure(t *testing.T) {
	p, _, _ := provider(t, &runtime{err: errors.New("no runtime")})
	if n := testutil.CollectAndCount(p.Resource()); n != 1 {
		t.Errorf("%d metrics, want the error alone", n)
	}
}

func TestTheMachineItselfCanBeRead(t *testing.T) {
	p := New(Config{NodeName: "n1"})
	node, err := p.Node(t.Context(), true)
	if err != nil || *node.Memory.WorkingSetBytes == 0 || node.StartTime.IsZero() {
		t.Errorf("got %+v, %v", node, err)
	}
}

func TestUsageCountsLogsAndLocalVolumes(t *testing.T) {
	r := &runtime{}
	p, _, _ := provider(t, r)
	p.c.LogDir = t.TempDir()
	p.c.Volumes = func(types.UID) []statsapi.VolumeStats {
		of := func(name string, used uint64) statsapi.VolumeStats {
			return statsapi.VolumeStats{Name: name, FsStats: statsapi.FsStats{UsedBytes: &used, InodesUsed: &used}}
		}
		return []statsapi.VolumeStats{of("scratch", 1000), of("memory", 50)}
	}
	p.c.Local = func(_ types.UID, volume string) bool { return volume == "scratch" }
	dir := filepath.Join(p.c.LogDir, "ns_p_u", "app")
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"0.log", "0.log.20300101-000000"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 5000), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pods, err := p.Usage(t.Context(), []types.UID{"u"})
	if err != nil || len(pods) != 1 {
		t.Fatal(pods, err)
	}
	logs := pods[0].Containers[0].Logs
	if *logs.UsedBytes < 10000 || *logs.InodesUsed != 2 {
		t.Errorf("logs: %d bytes of %d files", *logs.UsedBytes, *logs.InodesUsed)
	}
	if got, want := *pods[0].EphemeralStorage.UsedBytes, 10+*logs.UsedBytes+1000; got != want {
		t.Errorf("storage %d, want %d", got, want)
	}
	if r.filter.GetLabelSelector()["io.kubernetes.pod.uid"] != "u" {
		t.Errorf("asked for %v", r.filter)
	}
}

func TestScarceAsksTheRuntimeOnce(t *testing.T) {
	r := &runtime{}
	p, _, _ := provider(t, r)
	p.c.PodsMemory = func() (*statsapi.MemoryStats, error) {
		n := uint64(7)
		return &statsapi.MemoryStats{AvailableBytes: &n, WorkingSetBytes: &n}, nil
	}
	for range 2 {
		n, err := p.Scarce(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if *n.Memory.AvailableBytes != 500<<10 || *n.Rlimit.MaxPID != 1000 || n.Fs == nil || n.Runtime.ImageFs == nil || n.Runtime.ContainerFs == nil {
			t.Errorf("got %+v", n)
		}
		if c := n.SystemContainers; len(c) != 1 || c[0].Name != "pods" || *c[0].Memory.AvailableBytes != 7 {
			t.Errorf("pods together: %+v", c)
		}
	}
	if _, _, err := p.Dedicated(t.Context()); err != nil || r.asked != 1 {
		t.Errorf("asked %d times, %v", r.asked, err)
	}
}
