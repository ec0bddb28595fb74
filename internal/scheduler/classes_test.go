package scheduler

import (
	"fmt"
	"math/rand"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"proa/internal/client"
)

// spreadOut gives pods a color and has most of them spread with those of one: over
// zones, nodes or racks of two, as they must or would like to be.
func spreadOut(r *rand.Rand, i int, p *corev1.Pod) {
	colors := []string{"red", "green", "blue"}
	p.Labels["color"] = colors[r.Intn(3)]
	over := func(key string, skew int32, action corev1.UnsatisfiableConstraintAction) corev1.TopologySpreadConstraint {
		return corev1.TopologySpreadConstraint{
			TopologyKey: key, MaxSkew: skew, WhenUnsatisfiable: action,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"color": colors[r.Intn(2)]}},
		}
	}
	var wanted []corev1.TopologySpreadConstraint
	switch r.Intn(7) {
	case 0:
		wanted = append(wanted, over(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule))
	case 1:
		wanted = append(wanted, over(corev1.LabelTopologyZone, 2, corev1.DoNotSchedule), over(corev1.LabelHostname, 1, corev1.ScheduleAnyway))
		wanted[0].MinDomains = ptr.To[int32](4)
	case 2:
		wanted = append(wanted, over(corev1.LabelTopologyZone, 3, corev1.ScheduleAnyway), over(corev1.LabelHostname, 2, corev1.ScheduleAnyway))
		wanted[0].NodeTaintsPolicy = ptr.To(corev1.NodeInclusionPolicyHonor)
	case 3:
		wanted = append(wanted, over(corev1.LabelHostname, 1, corev1.DoNotSchedule), over("rack", 1, corev1.ScheduleAnyway))
	case 4:
		wanted = append(wanted, over("rack", 2, corev1.DoNotSchedule), over(corev1.LabelTopologyZone, 5, corev1.DoNotSchedule))
		p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "z1"}
		wanted[r.Intn(2)].NodeAffinityPolicy = ptr.To(corev1.NodeInclusionPolicyIgnore)
	case 5:
		wanted = append(wanted, over(corev1.LabelTopologyZone, 5, corev1.ScheduleAnyway))
	}
	p.Spec.TopologySpreadConstraints = wanted
}

// spreadAndDrawn does that to pods that like or avoid others besides.
func spreadAndDrawn(r *rand.Rand, i int, p *corev1.Pod) {
	drawn(r, i, p)
	spreadOut(r, i, p)
}

// painted gives pods a color, nothing else.
func painted(r *rand.Rand, _ int, p *corev1.Pod) {
	p.Labels["color"] = []string{"red", "green", "blue"}[r.Intn(3)]
}

// services select pods of two colors, which are spread by default.
func services(t *testing.T, api client.API) {
	t.Helper()
	for _, color := range []string{"red", "green"} {
		mustCreate(t, api, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: color}, Spec: corev1.ServiceSpec{
			Selector: map[string]string{"color": color}, Ports: []corev1.ServicePort{{Port: 80}},
		}})
	}
}

// racked puts most nodes into racks of two, and takes some out of their zone.
func racked(s *Scheduler) {
	for i, n := range s.snapshot.Nodes {
		changed := n.Node.DeepCopy()
		if i%10 != 0 {
			changed.Labels["rack"] = fmt.Sprint("r", i/2)
		}
		if i%13 == 0 {
			delete(changed.Labels, corev1.LabelTopologyZone)
		}
		s.cache.SetNode(changed)
	}
	s.cache.Refresh()
}
