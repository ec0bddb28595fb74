package scheduler

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"proa/internal/client"
	"proa/internal/scheduler/config"
	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/profile"
	"proa/internal/scheduler/queue"
	"proa/internal/store/memory"
)

// door is a Permit plugin that holds every pod.
type door struct {
	*framework.Handle
	held  chan *framework.PodInfo
	early func(d *door, pod *framework.PodInfo) // answers before Permit returns
}

func (*door) Name() string { return "Door" }

func (d *door) Permit(ctx context.Context, _ *framework.CycleState, pod *framework.PodInfo, _ string) (*framework.Status, time.Duration) {
	if d.early != nil {
		d.early(d, pod)
	}
	select {
	case d.held <- pod:
	case <-ctx.Done():
	}
	return framework.NewStatus(framework.Wait), time.Minute
}

// hopeless is a PostFilter plugin that gives up.
type hopeless struct{ asked chan string }

func (*hopeless) Name() string { return "Hopeless" }

func (h *hopeless) PostFilter(ctx context.Context, _ *framework.CycleState, _ *framework.PodInfo, _ *framework.Diagnosis) (*framework.PostFilterResult, *framework.Status) {
	select {
	case h.asked <- "hopeless":
	case <-ctx.Done():
	}
	return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable, "nothing can be done")
}

func withPlugin(p framework.Plugin, bind func(*framework.Handle), before string) func(*Config) {
	return func(c *Config) {
		c.Factories = map[string]profile.Factory{p.Name(): func(h *framework.Handle) (framework.Plugin, error) {
			bind(h)
			return p, nil
		}}
		var enabled []profile.Enabled
		for _, e := range profile.DefaultPlugins() {
			if e.Name == before {
				enabled = append(enabled, profile.Enabled{Name: p.Name()})
			}
			enabled = append(enabled, e)
		}
		c.Profiles = []profile.Config{{Plugins: enabled}}
	}
}

func newDoor() (*door, func(*Config)) {
	d := &door{held: make(chan *framework.PodInfo, 4)}
	return d, withPlugin(d, func(h *framework.Handle) { d.Handle = h }, "DefaultBinder")
}

func TestAPodThatPermitHoldsIsBoundOnceAllowed(t *testing.T) {
	d, config := newDoor()
	w := newWorld(t, config)
	create(w, node("a", "1", "1Gi"))
	create(w, pod("p", "1"))
	held := <-d.held
	if p, _ := w.pods.Cached("default", "p"); p.Spec.NodeName != "" {
		t.Fatal("bound while held")
	}
	d.Allow(held.Pod.UID, d.Name())
	w.on("p")
}

func TestAPodThatPermitRejectsGivesItsPlaceBack(t *testing.T) {
	d, config := newDoor()
	w := newWorld(t, config)
	create(w, node("a", "1", "1Gi"))
	create(w, pod("p", "1"))
	held := <-d.held
	d.Reject(held.Pod.UID, d.Name(), "not today")
	w.until("p rejected", func() bool { // it may have been tried once before the node was known
		return w.pending("p").Message == "0/1 nodes are available: 1 not today."
	})
	create(w, pod("q", "1", priority(1)))
	for next := range d.held {
		if next.Pod.Name == "q" {
			d.Allow(next.Pod.UID, d.Name())
			break
		}
		d.Reject(next.Pod.UID, d.Name(), "not today")
	}
	w.on("q")
}

// Permit's answer may come from another goroutine before Permit itself has
// returned; it must not be lost.
func TestAPermitAnswersBeforeItAsksToWait(t *testing.T) {
	t.Run("with an approval", func(t *testing.T) {
		d, config := newDoor()
		d.early = func(d *door, pod *framework.PodInfo) { d.Allow(pod.Pod.UID, d.Name()) }
		w := newWorld(t, config)
		create(w, node("a", "1", "1Gi"))
		create(w, pod("p", "1"))
		w.on("p")
	})
	t.Run("with a refusal", func(t *testing.T) {
		d, config := newDoor()
		d.early = func(d *door, pod *framework.PodInfo) { d.Reject(pod.Pod.UID, d.Name(), "not today") }
		w := newWorld(t, config)
		create(w, node("a", "1", "1Gi"))
		create(w, pod("p", "1"))
		if c := w.pending("p"); c.Message != "0/1 nodes are available: 1 not today." {
			t.Error(c.Message)
		}
	})
}

// A deleted pod's place is free at once, not after the time that Permit asked for.
func TestAPodThatIsDeletedWhileHeldGivesItsPlaceBack(t *testing.T) {
	d, config := newDoor()
	w := newWorld(t, config)
	create(w, node("a", "1", "1Gi"))
	create(w, pod("p", "1"))
	<-d.held
	if _, err := w.pods.Resource.Delete(t.Context(), "default", "p", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	create(w, pod("q", "1"))
	for next := range d.held {
		if next.Pod.Name == "q" {
			d.Allow(next.Pod.UID, d.Name())
			break
		}
	}
	w.on("q")
	w.until("p is let go", func() bool { return w.s.permits.len() == 0 })
}

func TestAPermitThatNobodyGivesTimesOut(t *testing.T) {
	d, config := newDoor()
	clock := clocktesting.NewFakeClock(time.Now())
	w := newWorld(t, config, func(c *Config) { c.Clock = clock })
	create(w, node("a", "1", "1Gi"))
	create(w, pod("p", "1"))
	<-d.held
	w.until("timeout", func() bool {
		clock.Step(time.Minute)
		p, ok := w.pods.Cached("default", "p")
		for _, c := range p.Status.Conditions {
			if ok && strings.Contains(c.Message, "rejected due to timeout after waiting 1m0s at plugin Door") {
				return true
			}
		}
		w.wake()
		return false
	})
}

func TestAPostFilterThatGivesUpEndsTheCycle(t *testing.T) {
	h := &hopeless{asked: make(chan string, 8)}
	w := newWorld(t, withPlugin(h, func(*framework.Handle) {}, "DefaultPreemption"))
	create(w, node("a", "1", "1Gi"))
	create(w, pod("low", "1"))
	w.on("low")
	create(w, pod("high", "1", priority(10)))
	<-h.asked
	if c := w.pending("high"); c.Message != "0/1 nodes are available: 1 Insufficient cpu. nothing can be done" {
		t.Error(c.Message)
	}
}

func TestEachSchedulerNameHasItsProfile(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Profiles = []profile.Config{{}, {SchedulerName: "bold", Disabled: []string{"TaintToleration"}}}
	})
	create(w, node("a", "4", "1Gi", taint("k", corev1.TaintEffectNoSchedule)))
	create(w, pod("careful", "1"))
	create(w, pod("bold", "1", func(p *corev1.Pod) { p.Spec.SchedulerName = "bold" }))
	create(w, pod("foreign", "1", func(p *corev1.Pod) { p.Spec.SchedulerName = "someone-else" }))
	w.on("bold")
	w.pending("careful")
	w.until("foreign is seen", func() bool { _, ok := w.pods.Cached("default", "foreign"); return ok })
	if p, _ := w.pods.Cached("default", "foreign"); len(p.Status.Conditions) > 0 {
		t.Error("another scheduler's pod was touched")
	}
}

func TestAProfileMustBeWhole(t *testing.T) {
	for _, c := range []struct {
		name    string
		enabled []profile.Enabled
		want    string
	}{
		{"unknown plugin", []profile.Enabled{{Name: "Nope"}}, `PreFilterPlugin "Nope" does not exist`},
		{"a plugin that upstream has removed", []profile.Enabled{{Name: "EBSLimits"}}, `PreFilterPlugin "EBSLimits" does not exist`},
		{"no order", []profile.Enabled{{Name: "DefaultBinder"}}, `only one queue sort plugin required for profile with scheduler name "default-scheduler", but got 0`},
		{"no binder", []profile.Enabled{{Name: "PrioritySort"}}, "at least one bind plugin is needed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(Config{Cache: client.NewCache(newServer(t, memory.New())), Settings: config.Settings{Profiles: []profile.Config{{Plugins: c.enabled}}}})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestAnAccountOfTheLastAttemptIsKept(t *testing.T) {
	w := newWorld(t)
	create(w, node("a", "1", "1Gi"))
	made := create(w, pod("p", "2"))
	w.pending("p")
	got, ok := w.s.LastAttempt(made.UID)
	if !ok || got.AllNodes != 1 || got.Attempts != 1 || got.Scheduler != DefaultName || got.Reason != "Unschedulable" || got.RejectedBy[0] != "NodeResourcesFit" ||
		got.PostFilter == "" || got.Queue.State != queue.Unschedulable || len(got.Nodes) != 1 || got.Nodes[0].Node != "a" || got.Nodes[0].Plugin != "NodeResourcesFit" ||
		got.Nodes[0].Reasons[0] != "Insufficient cpu" || got.Nodes[0].Preemptable {
		t.Errorf("%+v", got)
	}
	create(w, node("b", "4", "1Gi"))
	w.on("p")
	w.noted("p Normal Scheduled")
	if _, ok := w.s.LastAttempt(made.UID); ok {
		t.Error("the account of a bound pod is kept")
	}
}

func TestTheAccountOfAGatedPodNamesItsGate(t *testing.T) {
	w := newWorld(t)
	made := create(w, pod("p", "1", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "x/y"}} }))
	w.until("gated", func() bool {
		got, ok := w.s.LastAttempt(made.UID)
		return ok && got.Name == "p" && got.Queue.State == queue.Gated && got.Queue.GatedBy == "SchedulingGates"
	})
	if _, ok := w.s.LastAttempt("nobody"); ok {
		t.Error("an account of a pod that does not exist")
	}
}

func TestAPodThatAsksForDevicesIsNotBoundWithoutThem(t *testing.T) {
	w := newWorld(t)
	create(w, node("a", "4", "1Gi"))
	made := create(w, pod("p", "1", func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("c")}}
	}))
	w.until("gated", func() bool {
		got, ok := w.s.LastAttempt(made.UID)
		return ok && got.Queue.State == queue.Gated && got.Queue.GatedBy == "DynamicResources"
	})
}

func TestAccountsAreBounded(t *testing.T) {
	a := newAttempts()
	big := &framework.Diagnosis{Rejections: make([]framework.Rejection, maxAttemptLines/4)}
	for i := range 3 * maxAttempts {
		uid := types.UID(fmt.Sprint(i % (2 * maxAttempts)))
		a.note(Attempt{UID: uid}, nil)
		if len(a.byPod) > maxAttempts || a.byPod[uid].UID != uid {
			t.Fatalf("%d: %d accounts", i, len(a.byPod))
		}
	}
	for i := range 20 {
		uid := types.UID(fmt.Sprint("big", i))
		a.note(Attempt{UID: uid}, big)
		if a.lines > maxAttemptLines || a.byPod[uid].diagnosis != big {
			t.Fatalf("%d: %d lines", i, a.lines)
		}
	}
	for uid := range a.byPod {
		a.forget(uid)
	}
	if a.lines != 0 {
		t.Errorf("%d lines of nobody", a.lines)
	}
}

// picky wants pods with a label on nodes with an even number. It may skip the others.
type picky struct {
	skips bool
	asked atomic.Int64
}

func (*picky) Name() string { return "Picky" }

func (p *picky) answer(pod *framework.PodInfo) *framework.Status {
	if p.skips && pod.Pod.Labels["picky"] == "" {
		return framework.NewStatus(framework.Skip)
	}
	return nil
}

func (p *picky) PreFilter(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo) (*framework.PreFilterResult, *framework.Status) {
	return nil, p.answer(pod)
}

func (p *picky) PreScore(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, _ []*framework.NodeInfo) *framework.Status {
	return p.answer(pod)
}

func (p *picky) even(pod *framework.PodInfo, node *framework.NodeInfo) bool {
	p.asked.Add(1)
	last := node.Name()[len(node.Name())-1]
	return pod.Pod.Labels["picky"] == "" || last%2 == 0
}

func (p *picky) Filter(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	if !p.even(pod, node) {
		return framework.NewStatus(framework.Unschedulable, "odd")
	}
	return nil
}

func (p *picky) Score(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) (int64, *framework.Status) {
	p.even(pod, node)
	return 0, nil
}

func TestSkippingChangesNoPlacementAndAsksLess(t *testing.T) {
	const nodes, pods = 20, 120
	placements := func(p *picky) map[string]string {
		api := newServer(t, memory.New())
		for i := range nodes {
			put(t, api, node(fmt.Sprintf("n%02d", i), "8", "16Gi"))
		}
		for i := range pods {
			put(t, api, pod(fmt.Sprintf("p%03d", i), fmt.Sprintf("%dm", 50+i*7%300), func(p *corev1.Pod) {
				if i%4 == 0 {
					p.Labels = map[string]string{"picky": "yes"}
				}
			}))
		}
		w := start(t, api, withPlugin(p, func(*framework.Handle) {}, "DefaultBinder"))
		found := map[string]string{}
		for i := range pods {
			name := fmt.Sprintf("p%03d", i)
			found[name] = w.on(name)
		}
		w.stop()
		return found
	}
	with, without := &picky{skips: true}, &picky{}
	if a, b := placements(with), placements(without); !maps.Equal(a, b) {
		t.Errorf("skipping: %v\nnot: %v", a, b)
	}
	// A quarter of the pods is not skipped.
	if a, b := with.asked.Load(), without.asked.Load(); a == 0 || a*2 > b {
		t.Errorf("asked %d times with skipping, %d without", a, b)
	}
}
