package cache

import (
	"fmt"
	"math/rand"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/scheduler/framework"
)

func nodeIn(name, zone string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{corev1.LabelTopologyZone: zone}},
		Status:     corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8")}},
	}
}

func podOn(name, node, cpu string) *framework.PodInfo {
	anti := []corev1.PodAffinityTerm{{LabelSelector: &metav1.LabelSelector{}, TopologyKey: corev1.LabelTopologyZone}}
	p, err := framework.NewPodInfo(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), Labels: map[string]string{"size": cpu}},
		Spec: corev1.PodSpec{NodeName: node,
			Affinity:   &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: anti}},
			Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}},
			Volumes:    []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}},
	})
	if err != nil {
		panic(err)
	}
	return p
}

func TestNodesComeOneZoneAfterTheOther(t *testing.T) {
	c := New()
	for _, n := range []string{"a1", "a2", "a3", "b1", "c1", "c2"} {
		c.SetNode(nodeIn(n, n[:1]))
	}
	var got []string
	for _, n := range c.Refresh().Nodes {
		got = append(got, n.Name())
	}
	if fmt.Sprint(got) != "[a1 b1 c1 a2 c2 a3]" {
		t.Error(got)
	}
}

func TestAnAssumedPodCountsUntilItIsForgotten(t *testing.T) {
	c := New()
	c.SetNode(nodeIn("n", "z"))
	s := c.Refresh()
	p := podOn("p", "", "2")
	c.Assume(p, "n")
	if got := s.ByName["n"].Requested.MilliCPU; got != 2000 {
		t.Errorf("requested %d", got)
	}
	c.Forget("p")
	c.Refresh()
	if got := s.ByName["n"].Requested.MilliCPU; got != 0 {
		t.Errorf("requested %d after forgetting", got)
	}
}

func TestAConfirmedPodIsNotForgotten(t *testing.T) {
	c := New()
	c.SetNode(nodeIn("n", "z"))
	s := c.Refresh()
	c.Assume(podOn("p", "", "2"), "n")
	generation := s.Generation
	c.SetPod(podOn("p", "n", "2"))
	c.Forget("p")
	c.Refresh()
	if got := s.ByName["n"].Requested.MilliCPU; got != 2000 {
		t.Errorf("requested %d", got)
	}
	if s.Generation != generation {
		t.Error("the confirmation changed the node")
	}
}

// After any sequence of changes the picture is the one that a fresh cache has.
func TestThePictureDoesNotDependOnHistory(t *testing.T) {
	for seed := range int64(100) {
		r := rand.New(rand.NewSource(seed))
		c := New()
		nodes, pods := map[string]string{}, map[string]*framework.PodInfo{}
		for range 150 {
			n, p := fmt.Sprint("n", r.Intn(4)), fmt.Sprint("p", r.Intn(10))
			switch r.Intn(6) {
			case 0, 1:
				nodes[n] = fmt.Sprint("z", r.Intn(2))
				c.SetNode(nodeIn(n, nodes[n]))
			case 2:
				if r.Intn(3) == 0 {
					delete(nodes, n)
					c.RemoveNode(n)
				}
			case 3, 4:
				pods[p] = podOn(p, n, fmt.Sprint(1+r.Intn(3)))
				c.SetPod(pods[p])
			case 5:
				delete(pods, p)
				c.RemovePod(types.UID(p))
			}
			if r.Intn(3) == 0 {
				compare(t, seed, c.Refresh(), nodes, pods)
			}
		}
	}
}

func compare(t *testing.T, seed int64, s *framework.Snapshot, nodes map[string]string, pods map[string]*framework.PodInfo) {
	t.Helper()
	all := func(*framework.PodInfo) bool { return true }
	zone := func(n *framework.NodeInfo) (string, bool) { return n.Node.Labels[corev1.LabelTopologyZone], true }
	tally := s.Tally(framework.Rule{Pods: "all", Match: all, Domains: "zone", Domain: zone})
	ones := s.Tally(framework.Rule{
		Pods: "ones", Match: func(p *framework.PodInfo) bool { return p.Pod.Labels["size"] == "1" },
		Among:   []framework.Label{{Namespace: "default", Key: "size", Value: "1"}},
		Domains: "zone", Domain: zone,
	})
	if len(s.Nodes) != len(nodes) || len(s.ByName) != len(nodes) {
		t.Fatalf("seed %d: %d nodes, want %d", seed, len(s.Nodes), len(nodes))
	}
	inZone, onesInZone := map[string]int{}, map[string]int{}
	for _, p := range pods {
		if zone, ok := nodes[p.Pod.Spec.NodeName]; ok {
			inZone[zone]++
			if p.Pod.Labels["size"] == "1" {
				onesInZone[zone]++
			}
		}
	}
	for i, n := range s.Nodes {
		var cpu int64
		count := 0
		for _, p := range pods {
			if p.Pod.Spec.NodeName == n.Name() {
				cpu += p.Requests.MilliCPU
				count++
			}
		}
		zone := nodes[n.Name()]
		if n.Index != i || n.Requested.MilliCPU != cpu || len(n.Pods) != count || n.Node.Labels[corev1.LabelTopologyZone] != zone {
			t.Fatalf("seed %d: node %s: index %d, %dm of %d pods, want %dm of %d", seed, n.Name(), n.Index, n.Requested.MilliCPU, len(n.Pods), cpu, count)
		}
		if got := tally.Count(tally.Domain(n)); got != inZone[zone] {
			t.Fatalf("seed %d: zone %s has %d, want %d", seed, zone, got, inZone[zone])
		}
		if got := ones.Count(ones.Domain(n)); got != onesInZone[zone] {
			t.Fatalf("seed %d: zone %s has %d of size 1, want %d", seed, zone, got, onesInZone[zone])
		}
		for _, g := range s.TermGroups() {
			if got := g.At(n); got != inZone[zone] {
				t.Fatalf("seed %d: %d pods with the term in %s, want %d", seed, got, zone, inZone[zone])
			}
		}
	}
	least := 0
	for i := range tally.Domains() {
		if i == 0 || tally.Count(i) < least {
			least = tally.Count(i)
		}
	}
	if got := tally.Min(nil); got != least {
		t.Fatalf("seed %d: least %d, want %d", seed, got, least)
	}
	if s.ClaimUsers["default/c"] != len(pods) {
		t.Fatalf("seed %d: %d users of the claim, want %d", seed, s.ClaimUsers["default/c"], len(pods))
	}
}
