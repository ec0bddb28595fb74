package workloads

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/pkg/proatest"
)

// withGangs serves PodGroups, as its gate and version do once they are turned on.
func withGangs(o *proatest.Options) {
	o.FeatureGates, o.RuntimeConfig = "GenericWorkload=true", "scheduling.k8s.io/v1beta1=true"
}

func (c *cluster) podGroup(name string, policy schedulingv1beta1.PodGroupSchedulingPolicy) {
	c.t.Helper()
	g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: schedulingv1beta1.PodGroupSpec{SchedulingPolicy: policy}}
	must(c.SchedulingV1beta1().PodGroups(ns).Create(c.ctx, g, metav1.CreateOptions{}))(c)
}

func gangOf(n int32) schedulingv1beta1.PodGroupSchedulingPolicy {
	return schedulingv1beta1.PodGroupSchedulingPolicy{Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: n}}
}

func in(group string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &group} }
}

// groupSays waits for the condition of a group.
func (c *cluster) groupSays(name string, status metav1.ConditionStatus, message string) {
	c.t.Helper()
	until(c, c.SchedulingV1beta1().PodGroups(ns), named(name), func(l *schedulingv1beta1.PodGroupList) error {
		if len(l.Items) == 0 {
			return want("groups", 0, 1)
		}
		d := meta.FindStatusCondition(l.Items[0].Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled)
		if d == nil {
			return want("condition", false, true)
		}
		return all(want("status", d.Status, status), want("message "+d.Message, strings.Contains(d.Message, message), true))
	})
}

// KEP-4671.
func TestAGangIsPlacedTogetherOrNotAtAll(t *testing.T) {
	c := startEmpty(t, withGangs)
	c.node("small", simulated("4"))
	for i := range 3 {
		c.createPod(newPod(fmt.Sprint("member-", i), asks("2", ""), in("gang")))
	}
	c.createPod(newPod("bystander", asks("100m", ""))) // the others wait for their group
	c.scheduled("bystander")
	c.podGroup("gang", gangOf(3))
	c.groupSays("gang", metav1.ConditionFalse, "Insufficient cpu") // two would fit: the third decides
	c.deletePod("bystander")
	c.createPod(newPod("single", asks("4", ""))) // they hold nothing
	c.scheduled("single")
	for i := range 3 {
		if p := c.pod(fmt.Sprint("member-", i), func(*corev1.Pod) error { return nil }); p.Spec.NodeName != "" {
			t.Errorf("%s has node %s", p.Name, p.Spec.NodeName)
		}
	}
	c.node("large", simulated("8"))
	for i := range 3 {
		c.scheduled(fmt.Sprint("member-", i))
	}
	c.groupSays("gang", metav1.ConditionTrue, "scheduled")
}

func TestAGangOfFewerThanItsMinimumStaysOut(t *testing.T) {
	c := start(t, 1, withGangs)
	c.podGroup("gang", gangOf(2))
	c.podGroup("loose", schedulingv1beta1.PodGroupSchedulingPolicy{Basic: &schedulingv1beta1.BasicSchedulingPolicy{}})
	c.createPod(newPod("alone", in("gang")))
	c.createPod(newPod("free", in("loose"))) // a basic group waits for nobody
	c.scheduled("free")
	if p := c.pod("alone", func(*corev1.Pod) error { return nil }); p.Spec.NodeName != "" {
		t.Errorf("has node %s", p.Spec.NodeName)
	}
	c.createPod(newPod("second", in("gang")))
	c.scheduled("alone")
	c.scheduled("second")
}

func TestWithoutTheGatePodsKeepNoGroup(t *testing.T) {
	c := start(t, 1)
	if p := c.createPod(newPod("p", in("gang"))); p.Spec.SchedulingGroup != nil {
		t.Errorf("%+v", p.Spec.SchedulingGroup)
	}
	c.scheduled("p")
}
