package queue

import (
	"context"
	"fmt"
	"math/rand"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"proa/internal/scheduler/framework"
)

const zone = "example.com/helps"

// harness is a queue with one plugin, which new nodes labelled for a pod help.
type harness struct {
	*Queue
	t     *testing.T
	clock *clocktesting.FakeClock
	gated map[types.UID]bool
}

func newHarness(t *testing.T) *harness {
	h := &harness{t: t, clock: clocktesting.NewFakeClock(time.Unix(1000, 0)), gated: map[types.UID]bool{}}
	h.Queue = New(Config{
		Clock: h.clock,
		Less: func(a, b *framework.QueuedPodInfo) bool {
			if a.Priority != b.Priority {
				return a.Priority > b.Priority
			}
			return a.Added.Before(b.Added)
		},
		PreEnqueue: func(_ context.Context, pod *corev1.Pod) (string, *framework.Status) {
			if h.gated[pod.UID] {
				return "Gate", framework.NewStatus(framework.UnschedulableAndUnresolvable)
			}
			return "", nil
		},
		Hints: map[string]map[string][]framework.HintedEvent{"": {
			"Picky": {{Event: framework.Event{Resource: framework.Node, Action: framework.Add}, Hint: func(pod *corev1.Pod, _, new any) framework.Hint {
				return framework.Hint(new.(*corev1.Node).Labels[zone] == pod.Name)
			}}},
			"Neighbour": {{Event: framework.Event{Resource: framework.AssignedPod, Action: framework.Delete}}},
			"Gate":      {{Event: framework.Event{Resource: framework.UnscheduledPod, Action: framework.UpdatePodLabel}}},
		}},
	})
	return h
}

func testPod(name string, priority int32) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{Priority: &priority}}
}

func (h *harness) add(name string, priority int32) { h.Add(h.t.Context(), testPod(name, priority)) }

// pop returns the name of the next pod, empty when none is ready.
func (h *harness) pop() (string, *framework.QueuedPodInfo) {
	p := h.TryPop()
	if p == nil {
		return "", nil
	}
	p.RejectedBy = nil
	return p.Pod.Name, p
}

func (h *harness) wantPop(want string) *framework.QueuedPodInfo {
	h.t.Helper()
	name, p := h.pop()
	if name != want {
		h.t.Fatalf("popped %q, want %q", name, want)
	}
	return p
}

func (h *harness) reject(p *framework.QueuedPodInfo) {
	p.RejectedBy = []string{"Picky"}
	h.Return(h.t.Context(), p)
}

func (h *harness) nodeFor(pod string) {
	h.Happened(h.t.Context(), framework.Event{Resource: framework.Node, Action: framework.Add}, nil,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{zone: pod}}})
}

func TestTheMostImportantPodComesFirst(t *testing.T) {
	h := newHarness(t)
	h.add("low", 1)
	h.add("first", 5)
	h.add("second", 5)
	for _, want := range []string{"first", "second", "low", ""} {
		h.wantPop(want)
	}
}

func TestARejectedPodWaitsForAnEventThatHelps(t *testing.T) {
	h := newHarness(t)
	h.add("a", 0)
	h.reject(h.wantPop("a"))
	h.nodeFor("b")
	h.wantPop("")
	h.nodeFor("a")
	h.wantPop("a")
}

func TestAnEventDuringTheCycleIsNotLost(t *testing.T) {
	h := newHarness(t)
	h.add("a", 0)
	p := h.wantPop("a")
	h.nodeFor("a")
	h.reject(p)
	h.reject(h.wantPop("a"))
	h.wantPop("")
	if len(h.events) != 0 {
		t.Errorf("%d events are kept for nobody", len(h.events))
	}
}

func TestAPodThatFailedByAnErrorBacksOff(t *testing.T) {
	h := newHarness(t)
	h.add("a", 0)
	for attempt, wait := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 10 * time.Second, 10 * time.Second} {
		h.Return(t.Context(), h.wantPop("a"))
		h.clock.Step(wait - time.Millisecond)
		h.flush(t.Context())
		if name, _ := h.pop(); name != "" {
			t.Fatalf("attempt %d: ready before %v", attempt+1, wait)
		}
		h.clock.Step(time.Millisecond)
		h.flush(t.Context())
	}
	h.wantPop("a")
}

func TestAWaitingPodIsTriedAgainAfterFiveMinutes(t *testing.T) {
	h := newHarness(t)
	h.add("a", 0)
	h.reject(h.wantPop("a"))
	if next := h.flush(t.Context()); next != h.clock.Now().Add(5*time.Minute) {
		t.Errorf("next look at %v", next)
	}
	h.clock.Step(5 * time.Minute)
	h.flush(t.Context())
	h.wantPop("a")
}

func TestAGatedPodStaysOutUntilItsPluginAgrees(t *testing.T) {
	h := newHarness(t)
	h.gated["a"] = true
	h.add("a", 0)
	h.clock.Step(time.Hour)
	h.flush(t.Context())
	h.wantPop("")
	changed := testPod("a", 0)
	changed.Labels = map[string]string{"x": "y"}
	h.Update(t.Context(), testPod("a", 0), changed)
	h.wantPop("")
	h.gated["a"] = false
	h.Update(t.Context(), changed, testPod("a", 0))
	h.wantPop("a")
}

func TestADeletedPodDoesNotReturn(t *testing.T) {
	h := newHarness(t)
	h.add("a", 0)
	p := h.wantPop("a")
	h.Delete("a")
	h.reject(p)
	h.nodeFor("a")
	h.wantPop("")
}

// What a rejected pod itself gave back is no help for it: it would try for ever.
func TestAPodIsNotHelpedByItsOwnPlaceBecomingFree(t *testing.T) {
	h := newHarness(t)
	h.add("a", 0)
	h.add("b", 0)
	a, b := h.wantPop("a"), h.wantPop("b")
	a.RejectedBy, b.RejectedBy = []string{"Neighbour"}, []string{"Neighbour"}
	freed := framework.Event{Resource: framework.AssignedPod, Action: framework.Delete}
	h.Happened(t.Context(), freed, a.Pod, nil)
	h.Return(t.Context(), a)
	h.wantPop("")
	h.Happened(t.Context(), freed, a.Pod, nil)
	h.wantPop("")
	h.Return(t.Context(), b)
	h.wantPop("b")
}

func TestAnActivatedPodInFlightReturnsToTheActiveQueue(t *testing.T) {
	h := newHarness(t)
	h.add("a", 0)
	p := h.wantPop("a")
	h.Activate(t.Context(), "a")
	h.reject(p)
	h.wantPop("a")
}

// Whatever happens in whatever order: every pod that was not deleted is in exactly
// one place, a pod whose help came is not left waiting, and no event is kept
// without need.
func TestNothingIsLostInAnyOrder(t *testing.T) {
	for seed := range int64(200) {
		r := rand.New(rand.NewSource(seed))
		h := newHarness(t)
		alive, helped := map[string]bool{}, map[string]bool{}
		var flying []*framework.QueuedPodInfo
		for step := range 120 {
			name := fmt.Sprint("p", r.Intn(8))
			switch r.Intn(7) {
			case 0, 1:
				if !alive[name] {
					h.add(name, int32(r.Intn(3)))
					alive[name], helped[name] = true, false
				}
			case 2:
				if _, p := h.pop(); p != nil {
					helped[p.Pod.Name] = false
					flying = append(flying, p)
				}
			case 3:
				if len(flying) > 0 {
					i := r.Intn(len(flying))
					p := flying[i]
					flying = append(flying[:i], flying[i+1:]...)
					if r.Intn(3) > 0 {
						h.reject(p)
					} else {
						h.Return(t.Context(), p)
					}
				}
			case 4:
				h.nodeFor(name)
				helped[name] = true
			case 5:
				h.clock.Step(time.Duration(r.Intn(3000)) * time.Millisecond)
				h.flush(t.Context())
			case 6:
				if r.Intn(4) == 0 {
					h.Delete(types.UID(name))
					alive[name] = false
				}
			}
			checkPlaces(t, h, seed, step, alive, helped)
		}
	}
}

func checkPlaces(t *testing.T, h *harness, seed int64, step int, alive, helped map[string]bool) {
	t.Helper()
	for i := range 8 {
		name := fmt.Sprint("p", i)
		uid := types.UID(name)
		places := 0
		for _, heap := range []*podHeap{h.active, h.backoff, h.failed} {
			if heap.get(uid) != nil {
				places++
			}
		}
		if h.waiting[uid] != nil {
			places++
			if helped[name] {
				t.Fatalf("seed %d step %d: %s waits although help came", seed, step, name)
			}
		}
		if h.flights[uid] != nil {
			places++
		}
		if want := map[bool]int{true: 1}[alive[name]]; places != want {
			t.Fatalf("seed %d step %d: %s is in %d places, want %d", seed, step, name, places, want)
		}
	}
	if len(h.aloft) == 0 && len(h.events) > 0 {
		t.Fatalf("seed %d step %d: %d events are kept for nobody", seed, step, len(h.events))
	}
}
