package scheduler

import (
	"context"
	"fmt"
	"math/rand"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"proa/internal/client"
	"proa/internal/scheduler/framework"
	"proa/internal/store/memory"
)

// offline is a scheduler that the test drives itself, over nodes in its picture and
// what api holds besides.
func offline(t *testing.T, api client.API, nodes int, seed int64) *Scheduler {
	t.Helper()
	cache := client.NewCache(api)
	s, err := New(Config{Cache: cache, Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() { _ = cache.Run(ctx) })
	if err := cache.WaitForSync(ctx); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewSource(seed))
	for i := range nodes {
		n := node(fmt.Sprint("n", i), fmt.Sprint(1+r.Intn(4)), "8Gi", label(corev1.LabelTopologyZone, fmt.Sprint("z", i%5)))
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

func info(t *testing.T, i int, cpu string, change ...func(*corev1.Pod)) *framework.PodInfo {
	t.Helper()
	p := pod(fmt.Sprint("p", i), cpu, change...)
	p.UID, p.Spec.SchedulerName = types.UID(p.Name), DefaultName
	made, err := framework.NewPodInfo(p)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// keepingApart gives a pod a color and often one that it keeps away from, mostly by node.
func keepingApart(r *rand.Rand, _ int, p *corev1.Pod) {
	colors := []string{"red", "green", "blue"}
	p.Labels["color"] = colors[r.Intn(3)]
	if r.Intn(3) > 0 {
		return
	}
	key := corev1.LabelHostname
	if r.Intn(40) == 0 {
		key = corev1.LabelTopologyZone
	}
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"color": colors[r.Intn(3)]}}, TopologyKey: key,
	}}}}
}

// drawn gives a pod a color and often one that it would like to be with or without,
// mostly by node.
func drawn(r *rand.Rand, i int, p *corev1.Pod) {
	keepingApart(r, i, p)
	key := corev1.LabelHostname
	if r.Intn(40) == 0 {
		key = corev1.LabelTopologyZone
	}
	terms := []corev1.WeightedPodAffinityTerm{{Weight: int32(1 + r.Intn(2)), PodAffinityTerm: corev1.PodAffinityTerm{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"color": "green"}}, TopologyKey: key,
	}}}
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	switch r.Intn(6) {
	case 0:
		p.Spec.Affinity.PodAffinity = &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: terms}
	case 1:
		if p.Spec.Affinity.PodAntiAffinity == nil {
			p.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{}
		}
		p.Spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = terms
	}
}

// ofSomePriority gives half of the pods a priority.
func ofSomePriority(r *rand.Rand, _ int, p *corev1.Pod) {
	p.Spec.Priority = ptr.To(int32(10 * r.Intn(2)))
}

// withClaim has most pods use a claim of their own, some one of another.
func withClaim(r *rand.Rand, i int, p *corev1.Pod) {
	if r.Intn(10) == 0 {
		i = r.Intn(volumesOfTest)
	}
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("claim-", i)},
	}}}
}

const volumesOfTest = 700

// volumes are bound to claims. Some are in a zone, some can be used by a few nodes
// only, and nodes can attach four.
func volumes(t *testing.T, api client.API) {
	t.Helper()
	for i := range 120 {
		mustCreate(t, api, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}, Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: "csi.test", NodeID: "n", Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To[int32](4)}}},
		}})
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	for i := range volumesOfTest {
		modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		if i%11 == 0 {
			modes[0] = corev1.ReadWriteOncePod
		}
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("volume-", i)}, Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.test", VolumeHandle: fmt.Sprint(i)}},
		}}
		switch i % 7 {
		case 0:
			v.Labels = map[string]string{corev1.LabelTopologyZone: fmt.Sprint("z", i%2)}
		case 1:
			v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"z2", "z3"}}},
			}}}}
		}
		mustCreate(t, api, v)
		mustCreate(t, api, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: fmt.Sprint("claim-", i), Annotations: map[string]string{storagehelpers.AnnBindCompleted: "yes"},
			},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: size}, VolumeName: v.Name, StorageClassName: ptr.To(""),
			},
		})
	}
}

// A node from a batch has the score that asking about every node anew gives the
// best one, and there is none when no node fits, whatever happened in between.
func TestABatchFindsWhatAFullSearchFinds(t *testing.T) {
	for _, tt := range []struct {
		name     string
		seeds    int64
		before   func(*testing.T, client.API)
		nodes    func(*Scheduler)
		change   func(r *rand.Rand, i int, p *corev1.Pod)
		promises bool // of nodes to pods that wait for room
		reused   int  // so many come from batches
	}{
		{"pods that ask for resources", 5, nil, nil, nil, false, 500},
		{"pods that keep apart by node", 5, nil, nil, keepingApart, false, 200},
		{"nodes that are promised to others", 4, nil, nil, ofSomePriority, true, 300},
		{"pods that keep apart, on nodes that are promised to others", 2, nil, nil, keepingApart, true, 150},
		{"pods with volumes", 1, volumes, nil, withClaim, false, 250},
		{"pods that prefer some company", 3, nil, nil, drawn, false, 100},
		{"pods that are spread", 4, nil, racked, spreadOut, false, 150},
		{"pods that are spread by default", 4, services, racked, painted, false, 400},
		{"pods that are spread and prefer some company", 3, nil, racked, spreadAndDrawn, false, 30},
		{"pods that are spread, on nodes that are promised to others", 2, nil, racked, spreadOut, true, 30},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for seed := range tt.seeds {
				api := newServer(t, memory.New())
				if tt.before != nil {
					tt.before(t, api)
				}
				c := &comparison{t: t, s: offline(t, api, 120, seed+1), r: rand.New(rand.NewSource(seed)), change: tt.change}
				if tt.nodes != nil {
					tt.nodes(c.s)
				}
				for i := range 700 {
					c.disturb(i, tt.promises)
					c.place(i)
				}
				if c.reused < tt.reused {
					t.Errorf("seed %d: only %d pods came from batches", seed, c.reused)
				}
			}
		})
	}
}

// comparison places pods from batches, and by full searches beside them.
type comparison struct {
	t      *testing.T
	s      *Scheduler
	r      *rand.Rand
	change func(r *rand.Rand, i int, p *corev1.Pod)

	placed, promised []*framework.PodInfo
	reused           int
}

// pod is one that differs from others in few ways.
func (c *comparison) pod(i int) *framework.PodInfo {
	return info(c.t, i, []string{"100m", "300m", "900m"}[c.r.Intn(3)], func(p *corev1.Pod) {
		if c.change != nil {
			c.change(c.r, i, p)
		}
	})
}

func (c *comparison) someNode() *framework.NodeInfo {
	return c.s.snapshot.Nodes[c.r.Intn(len(c.s.snapshot.Nodes))]
}

// disturb changes what was found out before.
func (c *comparison) disturb(i int, promises bool) {
	if len(c.placed) > 0 && c.r.Intn(8) == 0 {
		at := c.r.Intn(len(c.placed))
		c.s.cache.RemovePod(c.placed[at].Pod.UID)
		c.placed = slices.Delete(c.placed, at, at+1)
	}
	if c.r.Intn(6) == 0 {
		c.s.cache.SetNode(altered(c.someNode().Node, c.r))
	}
	if !promises {
		return
	}
	if len(c.promised) > 0 && c.r.Intn(4) == 0 {
		at := c.r.Intn(len(c.promised))
		c.s.queue.Unnominate(c.promised[at].Pod.UID)
		c.promised = slices.Delete(c.promised, at, at+1)
	}
	if c.r.Intn(3) == 0 {
		waiting := c.pod(10_000 + i)
		c.s.queue.Nominate(waiting, c.someNode().Name())
		c.promised = append(c.promised, waiting)
	}
}

func (c *comparison) place(i int) {
	t, s := c.t, c.s
	t.Helper()
	pod := c.pod(i)
	s.cache.Refresh()
	state, d := &framework.CycleState{}, &framework.Diagnosis{AllNodes: len(s.snapshot.Nodes)}
	got, known, err := s.fromBatch(t.Context(), s.profiles[DefaultName], state, pod, d)
	if err != nil {
		t.Fatal(err)
	}
	best, score := fullSearch(t, s, pod)
	_, fits := score[got]
	switch {
	case !known:
		got = best
	case got != nil != (best != nil):
		t.Fatalf("pod %d: batch gives %v, a full search %v", i, got, best)
	case got != nil && !fits:
		t.Fatalf("pod %d does not fit %s", i, got.Name())
	case got != nil && score[got] < score[best]:
		t.Fatalf("pod %d: %s has %d, %s %d", i, got.Name(), score[got], best.Name(), score[best])
	case got == nil && len(d.Rejections) != len(s.snapshot.Nodes):
		t.Fatalf("pod %d: %d rejections", i, len(d.Rejections))
	}
	if known {
		c.reused++
	}
	if got != nil {
		s.cache.Assume(pod, got.Name())
		c.placed = append(c.placed, pod)
	}
}

func fullSearch(t *testing.T, s *Scheduler, pod *framework.PodInfo) (*framework.NodeInfo, map[*framework.NodeInfo]int64) {
	t.Helper()
	p, state := s.profiles[DefaultName], &framework.CycleState{}
	p.PreFilter(t.Context(), state, pod, &framework.Diagnosis{})
	var fits []*framework.NodeInfo
	for _, n := range s.snapshot.Nodes {
		if _, status := p.FilterWithNominated(t.Context(), state, pod, n); status == nil {
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

// An order asks about every node, a search about as many as are enough.
func TestAnOrderIsMadeWhenSearchesHaveCostAsMuch(t *testing.T) {
	for _, tt := range []struct{ percentage, nodes, pods int }{
		{0, 120, 2}, {0, 1000, 2}, {0, 3000, 3}, {0, 5000, 10}, {0, 20000, 20}, {100, 5000, 2}, {10, 5000, 10},
	} {
		if got := worthwhile(tt.percentage, tt.nodes); got != tt.pods {
			t.Errorf("%d nodes, of which %d %% are scored: an order from pod %d on, want %d", tt.nodes, tt.percentage, got, tt.pods)
		}
	}
}

func TestTheSameSeedGivesTheSamePlacements(t *testing.T) {
	run := func(seed int64) (nodes []string) {
		s := offline(t, newServer(t, memory.New()), 200, 7)
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
