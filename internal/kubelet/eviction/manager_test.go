package eviction

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"proa/internal/kubelet/status"
)

// node is a machine in numbers: what is free, and pods with their figures.
type node struct {
	memory, disk string // free, of 4Gi and 100Gi
	pods         []candidate
	static       string // the name of a pod that comes from the node
	frees        string // disk after images have been removed

	acts    []string
	ends    []status.End
	asked   [][]types.UID // whose figures were asked for
	changes int
	events  *record.FakeRecorder
	clock   *clocktesting.FakeClock
	m       *Manager
}

func newNode(t *testing.T, s Settings, change ...func(*Config)) *node {
	t.Helper()
	thresholds, err := Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{memory: "1Gi", disk: "50Gi", events: record.NewFakeRecorder(100), clock: clocktesting.NewFakeClock(time.Unix(1000, 0))}
	c := Config{
		Thresholds: thresholds, LimitStorage: true, MaxPodGrace: 20,
		Node: n.measure, Usage: n.usage,
		Disks: func(context.Context) (Disks, error) { return Disks{}, nil },
		Pods: func() (out []*corev1.Pod) {
			for _, c := range n.pods {
				out = append(out, c.pod)
			}
			return out
		},
		Static: func(p *corev1.Pod) bool { return p.Name == n.static },
		Evict: func(p *corev1.Pod, end status.End, grace *int64) {
			n.acts = append(n.acts, fmt.Sprintf("evict %s within %ds", p.Name, *grace))
			n.ends = append(n.ends, end)
			n.pods = slices.DeleteFunc(n.pods, func(c candidate) bool { return c.pod == p })
		},
		ClearContainers: func(context.Context) error { n.acts = append(n.acts, "clear containers"); return nil },
		ClearImages: func(context.Context) error {
			n.acts = append(n.acts, "clear images")
			if n.frees != "" {
				n.disk = n.frees
			}
			return nil
		},
		Changed:  func() { n.changes++ },
		Recorder: n.events, NodeRef: &corev1.ObjectReference{Kind: "Node", Name: "n"}, Clock: n.clock, Log: slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&c)
	}
	n.m = New(c)
	return n
}

func (n *node) measure(context.Context) (*statsapi.NodeStats, error) {
	free, working := number(n.memory), *number("4Gi")-*number(n.memory)
	fs := &statsapi.FsStats{AvailableBytes: number(n.disk), CapacityBytes: number("100Gi")}
	return &statsapi.NodeStats{Memory: &statsapi.MemoryStats{AvailableBytes: free, WorkingSetBytes: &working}, Fs: fs,
		Runtime: &statsapi.RuntimeStats{ImageFs: fs, ContainerFs: fs}}, nil
}

func (n *node) usage(_ context.Context, uids []types.UID) ([]statsapi.PodStats, error) {
	n.asked = append(n.asked, uids)
	var out []statsapi.PodStats
	for _, c := range n.pods {
		if c.stats != nil && (uids == nil || slices.Contains(uids, c.pod.UID)) {
			s := *c.stats
			s.PodRef.UID = string(c.pod.UID)
			out = append(out, s)
		}
	}
	return out, nil
}

// look observes once and returns what was done.
func (n *node) look(t *testing.T) string {
	t.Helper()
	n.acts = nil
	if _, err := n.m.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.clock.Step(10 * time.Second)
	return strings.Join(n.acts, ", ")
}

func (n *node) event(t *testing.T) string {
	t.Helper()
	select {
	case e := <-n.events.Events:
		return e
	default:
		t.Fatal("no event")
		return ""
	}
}

var hardMemory = Settings{Hard: statements{"memory.available": "100Mi"}}

func TestAnIdleNodeMeasuresNoPods(t *testing.T) {
	n := newNode(t, hardMemory)
	n.pods = []candidate{{pod("a", "", ""), memory("1Gi")}}
	if did := n.look(t); did != "" || len(n.asked) != 0 || n.changes != 0 || len(n.m.Conditions()) != 0 {
		t.Errorf("did %q, asked %v", did, n.asked)
	}
}

func TestOnePodAtATimeIsEvictedForMemory(t *testing.T) {
	n := newNode(t, hardMemory)
	n.pods = []candidate{{pod("modest", "memory=1Gi", ""), memory("500Mi")}, {pod("greedy", "memory=100Mi", ""), memory("2Gi")}, {pod("plain", "", ""), memory("1Gi")}}
	n.memory = "90Mi"
	for _, want := range []string{"evict greedy within 1s", "evict plain within 1s", "evict modest within 1s", ""} {
		if did := n.look(t); did != want {
			t.Errorf("did %q, want %q", did, want)
		}
	}
	message := "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. Container c was using 2Gi, request is 100Mi, has larger consumption of memory. "
	end := n.ends[0]
	if end.Reason != "Evicted" || end.Message != message || len(end.Conditions) != 1 {
		t.Fatalf("end %+v", end)
	}
	if c := end.Conditions[0]; c.Type != corev1.DisruptionTarget || c.Status != corev1.ConditionTrue || c.Reason != "TerminationByKubelet" || c.Message != message {
		t.Errorf("condition %+v", c)
	}
	if e := n.event(t); e != "Warning EvictionThresholdMet Attempting to reclaim memory" {
		t.Errorf("event %q", e)
	}
	if e := n.event(t); !strings.HasPrefix(e, "Warning Evicted "+message) || !strings.Contains(e, "offending_containers:c") {
		t.Errorf("event %q", e)
	}
	if got := n.m.Conditions(); !slices.Equal(got, []corev1.NodeConditionType{corev1.NodeMemoryPressure}) || n.changes != 1 {
		t.Errorf("conditions %v after %d changes", got, n.changes)
	}
	if got := testutil.ToFloat64(n.m.metrics.evictions.WithLabelValues("memory.available")); got != 3 {
		t.Errorf("counted %v", got)
	}
}

func TestCriticalPodsAreSpared(t *testing.T) {
	n := newNode(t, hardMemory)
	n.static, n.memory = "static", "1Mi"
	mirror := func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }
	n.pods = []candidate{
		{pod("static", "", ""), memory("3Gi")}, {pod("mirror", "", "", mirror), memory("3Gi")},
		{pod("critical", "", "", priority(2_000_000_000)), memory("3Gi")}, {pod("important", "", "", priority(1_999_999_999)), memory("1Mi")}}
	if did := n.look(t) + "|" + n.look(t); did != "evict important within 1s|" {
		t.Errorf("did %q", did)
	}
}

func TestSoftThresholdsGiveTime(t *testing.T) {
	n := newNode(t, Settings{Soft: statements{"memory.available": "100Mi"}, SoftGracePeriod: statements{"memory.available": "15s"}})
	patient := func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](5) }
	slow := func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](300) }
	n.pods = []candidate{{pod("a", "", "", patient), memory("2Gi")}, {pod("b", "", "", slow), memory("1Gi")}, {pod("c", "", ""), memory("1Mi")}}
	n.memory = "10Mi"
	for i, want := range []string{"", "", "evict a within 5s", "evict b within 20s", "evict c within 20s"} {
		if did := n.look(t); did != want {
			t.Errorf("look %d: did %q, want %q", i, did, want)
		}
	}
	if len(n.m.Conditions()) != 1 {
		t.Error("no condition")
	}
}

func TestWhatNobodyUsesGoesBeforePods(t *testing.T) {
	n := newNode(t, Settings{Hard: statements{"nodefs.available": "10%"}})
	n.pods = []candidate{{pod("a", "", "", scratch("")), disk("1Gi", "1Gi", "1Gi")}}
	n.disk, n.frees = "5Gi", "20Gi"
	if did := n.look(t); did != "clear containers, clear images" {
		t.Errorf("did %q", did)
	}
	n.disk, n.frees = "5Gi", "9Gi"
	if did := n.look(t); did != "clear containers, clear images, evict a within 1s" {
		t.Errorf("too little freed: did %q", did)
	}
	if e := n.event(t); e != "Warning EvictionThresholdMet Attempting to reclaim ephemeral-storage" {
		t.Errorf("event %q", e)
	}
}

func TestWhatIsClearedLiesOnTheDiskThatIsShort(t *testing.T) {
	const containers, images = "clear containers", "clear images"
	for _, tt := range []struct {
		signal Signal
		disks  Disks
		want   string
	}{
		{NodeFsAvailable, Disks{}, containers + ", " + images},
		{NodeFsAvailable, Disks{Images: true}, ""},
		{ImageFsInodesFree, Disks{Images: true}, containers + ", " + images},
		{NodeFsInodesFree, Disks{Images: true, Containers: true}, containers},
		{ContainerFsAvailable, Disks{Images: true, Containers: true}, containers},
		{ImageFsAvailable, Disks{Images: true, Containers: true}, images},
		{MemoryAvailable, Disks{}, ""}, {PIDAvailable, Disks{}, ""},
	} {
		n := newNode(t, Settings{})
		n.m.disks = &tt.disks
		for _, step := range n.m.clearing(tt.signal) {
			if err := step(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if did := strings.Join(n.acts, ", "); did != tt.want {
			t.Errorf("%s %+v: %q, want %q", tt.signal, tt.disks, did, tt.want)
		}
	}
}

func TestPodsOverTheirLimitsOfStorageAreEvicted(t *testing.T) {
	n := newNode(t, hardMemory)
	n.pods = []candidate{
		{pod("free", "", ""), disk("9Gi", "0", "0")}, {pod("over", "", "ephemeral-storage=50Mi"), disk("60Mi", "0", "0")},
		{pod("within", "", "ephemeral-storage=50Mi"), disk("40Mi", "0", "0")}, {pod("volume", "", "", scratch("10Mi")), disk("0", "0", "11Mi")}}
	n.memory = "1Mi" // limits come before thresholds
	if did := n.look(t); did != "evict over within 1s, evict volume within 1s" {
		t.Errorf("did %q", did)
	}
	if want := []types.UID{"uid-over", "uid-within", "uid-volume"}; len(n.asked) != 1 || !slices.Equal(n.asked[0], want) {
		t.Errorf("asked for %v, want %v", n.asked, want)
	}
	if end := n.ends[0]; end.Reason != "Evicted" || end.Message != "Pod ephemeral local storage usage exceeds the total limit of containers 50Mi. " || end.Conditions != nil {
		t.Errorf("end %+v", end)
	}
	if e := n.event(t); !strings.HasPrefix(e, "Warning Evicted Pod ephemeral local storage usage exceeds") {
		t.Errorf("event %q", e)
	}
}

func TestLimitsOfStorageCanBeSwitchedOff(t *testing.T) {
	n := newNode(t, hardMemory, func(c *Config) { c.LimitStorage = false })
	n.pods = []candidate{{pod("over", "", "ephemeral-storage=50Mi"), disk("60Mi", "0", "0")}}
	if did := n.look(t); did != "" || len(n.asked) > 0 {
		t.Errorf("did %q", did)
	}
}

func TestDisksAreAskedForUntilTheyAreKnown(t *testing.T) {
	answers := []error{errors.New("runtime is down"), nil}
	n := newNode(t, hardMemory, func(c *Config) {
		c.Disks = func(context.Context) (Disks, error) {
			err := answers[0]
			answers = answers[1:]
			return Disks{}, err
		}
	})
	if _, err := n.m.Look(t.Context()); err == nil || !strings.Contains(err.Error(), "runtime is down") {
		t.Errorf("error %v", err)
	}
	n.look(t)
	n.look(t)
	if len(answers) != 0 {
		t.Error("not asked again")
	}
}

func TestAManagerWithNothingToDoEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := New(Config{}).Run(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
