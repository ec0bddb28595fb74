package scheduler

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/client"
	"proa/internal/scheduler/framework"
	"proa/internal/store/memory"
)

// offline is a scheduler that the test drives itself, over nodes in its picture.
func offline(t *testing.T, nodes int, seed int64) *Scheduler {
	t.Helper()
	s, err := New(Config{Cache: client.NewCache(newServer(t, memory.New())), Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewSource(seed))
	for i := range nodes {
		n := node(fmt.Sprint("n", i), fmt.Sprint(1+r.Intn(4)), "8Gi")
		if seed%2 == 0 && r.Intn(5) == 0 { // otherwise scores compare nothing
			n.Spec.Taints = []corev1.Taint{{Key: "soft", Effect: corev1.TaintEffectPreferNoSchedule}}
		}
		s.cache.SetNode(n)
	}
	s.cache.Refresh()
	return s
}

// altered is a node of which one thing has changed: what it offers, what images it
// has, whom it admits, or nothing that matters.
func altered(n *corev1.Node, r *rand.Rand) *corev1.Node {
	n = n.DeepCopy()
	switch r.Intn(12) {
	case 0:
		n.Status.Images = []corev1.ContainerImage{{Names: []string{"busybox:latest"}, SizeBytes: int64(r.Intn(3)) << 28}}
	case 1:
		n.Spec.Taints = []corev1.Taint{{Key: "soft", Effect: corev1.TaintEffectPreferNoSchedule}}
	case 2, 3, 4:
		n.Spec.Taints = []corev1.Taint{{Key: "hard", Effect: corev1.TaintEffectNoSchedule}}
	case 5, 6, 7:
		n.Spec.Taints = nil
	case 8, 9:
		n.Status.Allocatable[corev1.ResourceCPU] = *resource.NewQuantity(int64(1+r.Intn(4)), resource.DecimalSI)
	case 10:
		n.Spec.Unschedulable = !n.Spec.Unschedulable
	default:
		n.Annotations = map[string]string{"heard": fmt.Sprint(r.Int())}
	}
	return n
}

func info(t *testing.T, i int, cpu string) *framework.PodInfo {
	t.Helper()
	p := pod(fmt.Sprint("p", i), cpu)
	p.UID, p.Spec.SchedulerName = types.UID(p.Name), DefaultName
	made, err := framework.NewPodInfo(p)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// A node from a batch has the score that asking about every node anew gives the
// best one, and there is none when no node fits, whatever happened in between.
func TestABatchFindsWhatAFullSearchFinds(t *testing.T) {
	for seed := range int64(8) {
		s := offline(t, 120, seed+1)
		p := s.profiles[DefaultName]
		r := rand.New(rand.NewSource(seed))
		var placed []*framework.PodInfo
		reused := 0
		for i := range 700 {
			if len(placed) > 0 && r.Intn(8) == 0 {
				at := r.Intn(len(placed))
				s.cache.RemovePod(placed[at].Pod.UID)
				placed = slices.Delete(placed, at, at+1)
			}
			if r.Intn(6) == 0 {
				s.cache.SetNode(altered(s.snapshot.Nodes[r.Intn(len(s.snapshot.Nodes))].Node, r))
			}
			pod := info(t, i, []string{"100m", "300m", "900m"}[r.Intn(3)])
			s.cache.Refresh()
			state, d := &framework.CycleState{}, &framework.Diagnosis{AllNodes: len(s.snapshot.Nodes)}
			got, known, err := s.fromBatch(t.Context(), p, state, pod, d)
			if err != nil {
				t.Fatal(err)
			}
			best, score := fullSearch(t, s, pod)
			if !known {
				got = best
			} else if reused++; got != nil != (best != nil) {
				t.Fatalf("seed %d pod %d: batch gives %v, a full search %v", seed, i, got, best)
			} else if got != nil && score[got] < score[best] {
				t.Fatalf("seed %d pod %d: %s has %d, %s %d", seed, i, got.Name(), score[got], best.Name(), score[best])
			} else if got == nil && len(d.Rejections) != len(s.snapshot.Nodes) {
				t.Fatalf("seed %d pod %d: %d rejections", seed, i, len(d.Rejections))
			}
			if got != nil {
				s.cache.Assume(pod, got.Name())
				placed = append(placed, pod)
			}
		}
		if reused < 500 {
			t.Errorf("seed %d: only %d pods came from batches", seed, reused)
		}
	}
}

func fullSearch(t *testing.T, s *Scheduler, pod *framework.PodInfo) (*framework.NodeInfo, map[*framework.NodeInfo]int64) {
	t.Helper()
	p, state := s.profiles[DefaultName], &framework.CycleState{}
	p.PreFilter(t.Context(), state, pod, &framework.Diagnosis{})
	var fits []*framework.NodeInfo
	for _, n := range s.snapshot.Nodes {
		if p.Filter(t.Context(), state, pod, n) == nil {
			fits = append(fits, n)
		}
	}
	if len(fits) == 0 {
		return nil, nil
	}
	found, err := p.Score(t.Context(), state, pod, fits, s.each)
	if err != nil {
		t.Fatal(err)
	}
	scores := map[*framework.NodeInfo]int64{}
	best := fits[0]
	for i, n := range fits {
		if scores[n] = found.Total[i]; scores[n] > scores[best] {
			best = n
		}
	}
	return best, scores
}

func TestTheSameSeedGivesTheSamePlacements(t *testing.T) {
	run := func(seed int64) (nodes []string) {
		s := offline(t, 200, 7)
		s.random = rand.New(rand.NewSource(seed))
		for i := range 300 {
			pod := info(t, i, fmt.Sprintf("%dm", 100+i%5))
			s.cache.Refresh()
			n, err := s.findNode(t.Context(), s.profiles[DefaultName], &framework.CycleState{}, pod, &framework.Diagnosis{})
			if err != nil || n == nil {
				t.Fatal("no node", err)
			}
			s.cache.Assume(pod, n.Name())
			nodes = append(nodes, n.Name())
		}
		return nodes
	}
	if first := run(3); !slices.Equal(first, run(3)) {
		t.Error("two runs differ")
	} else if slices.Equal(first, run(4)) {
		t.Error("the seed makes no difference")
	}
}
