package workloads

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"proa/pkg/proatest"
)

// startEmpty starts a cluster that simulates the nodes which the test adds.
func startEmpty(t *testing.T, change ...func(*proatest.Options)) *cluster {
	t.Helper()
	c := start(t, 1, change...)
	until(c, c.CoreV1().Nodes(), metav1.ListOptions{}, func(l *corev1.NodeList) error { return want("nodes", len(l.Items), 1) })
	c.ok(c.CoreV1().Nodes().Delete(c.ctx, "sim-0", metav1.DeleteOptions{}))
	for i := 0; !c.nodeless(fmt.Sprint("probe-", i)); i++ {
	}
	return c
}

// nodeless tells whether the scheduler knows that there are no nodes. It sees nodes and
// pods each in their order, and may take a pod to a node that was gone before.
func (c *cluster) nodeless(probe string) (knows bool) {
	c.t.Helper()
	c.createPod(newPod(probe))
	c.pod(probe, func(p *corev1.Pod) error {
		d := podCondition(p, corev1.PodScheduled)
		knows = strings.Contains(d.Message, "no nodes available")
		return want("was tried", d.Status != "", true)
	})
	c.deletePod(probe)
	return knows
}

// simulated is for cluster.node: somebody runs its pods, on so many cores.
func simulated(cpu string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Annotations = map[string]string{"kwok.x-k8s.io/node": "fake"}
		n.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
}

func (c *cluster) priority(name string, value int32, change ...func(*schedulingv1.PriorityClass)) {
	c.t.Helper()
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
	for _, f := range change {
		f(class)
	}
	must(c.SchedulingV1().PriorityClasses().Create(c.ctx, class, metav1.CreateOptions{}))(c)
}

func asks(cpu, class string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		spec := podSpec(cpu)
		p.Spec, p.Spec.PriorityClassName = spec, class
	}
}

// scheduled waits until a pod has a node, and returns its name.
func (c *cluster) scheduled(name string) string {
	c.t.Helper()
	return c.pod(name, func(p *corev1.Pod) error { return want("has a node", p.Spec.NodeName != "", true) }).Spec.NodeName
}

// unschedulable waits until the scheduler has said of a pod that it fits nowhere.
func (c *cluster) unschedulable(name string) *corev1.Pod {
	c.t.Helper()
	return c.pod(name, func(p *corev1.Pod) error {
		d := podCondition(p, corev1.PodScheduled)
		return all(want("status", d.Status, corev1.ConditionFalse), want("reason", d.Reason, corev1.PodReasonUnschedulable))
	})
}

func TestReplicaSetsOfFourPrioritiesShareANode(t *testing.T) {
	c := startEmpty(t)
	c.node("node", simulated("10"))
	settled := func(counts ...int32) {
		t.Helper()
		for i, n := range counts {
			c.replicaSetOf(fmt.Sprintf("rs-%d", i+1), func(rs *appsv1.ReplicaSet) error {
				return want(rs.Name+" available", rs.Status.AvailableReplicas, n)
			})
		}
	}
	for i, replicas := range []int32{4, 3, 3, 5} {
		name := fmt.Sprintf("rs-%d", i+1)
		c.priority(fmt.Sprintf("p%d", i+1), int32(i+1))
		rs := replicaSet(name, replicas)
		rs.Spec.Template.Spec = podSpec("1")
		rs.Spec.Template.Spec.PriorityClassName = fmt.Sprintf("p%d", i+1)
		if i == 3 {
			settled(4, 3, 3) // all that there is
		}
		c.createReplicaSet(rs)
	}
	settled(0, 2, 3, 5)
	for i, n := range []int{4, 3, 3, 5} { // those displaced wait
		c.pods(fmt.Sprintf("app=rs-%d", i+1), anyPods(n))
	}
	until(c, c.CoreV1().Events(ns), metav1.ListOptions{FieldSelector: "reason=Preempted"}, func(l *corev1.EventList) error {
		n := 0
		for _, e := range l.Items {
			n += int(max(1, e.Count))
		}
		return want("victims", n, 5)
	})
}

func TestACriticalPodDisplacesOneOfLowPriority(t *testing.T) {
	c := startEmpty(t)
	c.node("node", simulated("2"))
	c.priority("low", 1)
	c.priority("medium", 100)
	c.createPod(newPod("low", asks("1", "low")))
	c.createPod(newPod("medium", asks("1", "medium")))
	c.scheduled("low")
	c.scheduled("medium")
	system := c.CoreV1().Pods(metav1.NamespaceSystem)
	critical := must(system.Create(c.ctx, newPod("critical", asks("1", "system-cluster-critical")), metav1.CreateOptions{}))(c)
	if *critical.Spec.Priority != 2000000000 {
		t.Errorf("priority %d", *critical.Spec.Priority)
	}
	until(c, system, named("critical"), func(l *corev1.PodList) error { return want("node", l.Items[0].Spec.NodeName, "node") })
	gone(c, c.CoreV1().Pods(ns), named("low"), func(l *corev1.PodList) int { return len(l.Items) })
	if p := c.pod("medium", func(*corev1.Pod) error { return nil }); p.DeletionTimestamp != nil {
		t.Error("a pod of higher priority went, too")
	}
}

// KEP-902.
func TestAPodThatPreemptsNobodyWaits(t *testing.T) {
	c := startEmpty(t)
	c.node("node", simulated("1"))
	c.priority("low", 1)
	c.priority("polite", 1000, func(p *schedulingv1.PriorityClass) { p.PreemptionPolicy = new(corev1.PreemptNever) })
	c.priority("high", 500)
	classes := c.SchedulingV1().PriorityClasses()
	if p := must(classes.Get(c.ctx, "high", metav1.GetOptions{}))(c); *p.PreemptionPolicy != corev1.PreemptLowerPriority {
		t.Errorf("default: %s", *p.PreemptionPolicy)
	}
	_, err := classes.Patch(c.ctx, "polite", types.MergePatchType, []byte(`{"preemptionPolicy":"PreemptLowerPriority"}`), metav1.PatchOptions{})
	c.refused(err, "preemptionPolicy: Invalid value")

	c.createPod(newPod("low", asks("1", "low")))
	c.scheduled("low")
	if p := c.createPod(newPod("polite", asks("1", "polite"))); *p.Spec.PreemptionPolicy != corev1.PreemptNever || *p.Spec.Priority != 1000 {
		t.Errorf("admitted as %v, %v", *p.Spec.PreemptionPolicy, *p.Spec.Priority)
	}
	if p := c.unschedulable("polite"); !strings.Contains(podCondition(p, corev1.PodScheduled).Message, "Insufficient cpu") || p.Status.NominatedNodeName != "" {
		t.Errorf("%+v", p.Status)
	}
	c.pods("app=low", readyPods(1))
	// It comes before others of less priority as soon as there is room.
	c.deletePod("low")
	c.scheduled("polite")
	c.createPod(newPod("high", asks("1", "high")))
	c.unschedulable("high")
	c.priority("higher", 2000)
	c.createPod(newPod("higher", asks("1", "higher"))) // and is displaced like any other
	c.scheduled("higher")
	gone(c, c.CoreV1().Pods(ns), named("polite"), func(l *corev1.PodList) int { return len(l.Items) })
}

func gated(names ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, name := range names {
			p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: name})
		}
	}
}

// KEP-3521.
func TestAGatedPodWaitsForItsLastGate(t *testing.T) {
	c := start(t, 1)
	pods := c.CoreV1().Pods(ns)
	_, err := pods.Create(c.ctx, newPod("bound", gated("example.com/foo"), func(p *corev1.Pod) { p.Spec.NodeName = "sim-0" }), metav1.CreateOptions{})
	c.refused(err, "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared")
	p := c.createPod(newPod("web", gated("example.com/foo", "example.com/bar")))
	if p.Status.QOSClass != corev1.PodQOSBestEffort || p.Status.Phase != corev1.PodPending {
		t.Errorf("created: %+v", p.Status)
	}
	shows := func() {
		t.Helper()
		p := c.pod("web", func(p *corev1.Pod) error {
			return want("reason", podCondition(p, corev1.PodScheduled).Reason, corev1.PodReasonSchedulingGated)
		})
		if d := podCondition(p, corev1.PodScheduled); d.Status != corev1.ConditionFalse || !strings.Contains(d.Message, "non-empty scheduling gates") || p.Spec.NodeName != "" {
			t.Errorf("gated: %+v", d)
		}
		if row := c.row("web"); !slices.Contains(row, any("SchedulingGated")) {
			t.Errorf("kubectl's columns: %v", row)
		}
	}
	shows()
	_, err = pods.Patch(c.ctx, "web", types.StrategicMergePatchType, []byte(`{"spec":{"schedulingGates":[{"name":"example.com/new"}]}}`), metav1.PatchOptions{})
	c.refused(err, "only deletion is allowed")
	edit(c, pods, "web", func(p *corev1.Pod) { p.Spec.SchedulingGates = p.Spec.SchedulingGates[1:] })
	shows()
	edit(c, pods, "web", func(p *corev1.Pod) { p.Spec.SchedulingGates = nil })
	c.pods("app=web", readyPods(1))
	if row := c.row("web"); !slices.Contains(row, any("Running")) {
		t.Errorf("kubectl's columns: %v", row)
	}
}

// row is what kubectl shows of a pod.
func (c *cluster) row(pod string) []any {
	c.t.Helper()
	table := &metav1.Table{}
	c.ok(c.CoreV1().RESTClient().(*rest.RESTClient).Get().Namespace(ns).Resource("pods").Name(pod).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(c.ctx).Into(table))
	if len(table.Rows) != 1 {
		c.t.Fatalf("table: %+v", table)
	}
	return table.Rows[0].Cells
}

// KEP-3838.
func TestSchedulingDirectivesOfAGatedPod(t *testing.T) {
	c := start(t, 1)
	pods := c.CoreV1().Pods(ns)
	c.createPod(newPod("web", gated("example.com/foo")))
	term := func(values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: "type", Operator: corev1.NodeSelectorOpIn, Values: values}
	}
	required := func(p *corev1.Pod) *corev1.NodeSelectorTerm {
		return &p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0]
	}
	type change func(*corev1.Pod)
	for _, step := range []struct {
		name    string
		change  change
		message string // empty: accepted
	}{
		{"a label more", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"type": "kwok"} }, ""},
		{"another value", func(p *corev1.Pod) { p.Spec.NodeSelector["type"] = "b" }, "spec.nodeSelector: Invalid value"},
		{"a label less", func(p *corev1.Pod) { p.Spec.NodeSelector = nil }, "spec.nodeSelector: Invalid value"},
		{"affinity where there is none", func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{term("kwok", "other")}}},
			}}}
		}, ""},
		{"an expression more", func(p *corev1.Pod) { t := required(p); t.MatchExpressions = append(t.MatchExpressions, term("kwok")) }, ""},
		{"a field more", func(p *corev1.Pod) {
			required(p).MatchFields = []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"elsewhere"}}}
		}, ""},
		{"another expression", func(p *corev1.Pod) { required(p).MatchExpressions[0].Values = []string{"x"} }, "spec.affinity.nodeAffinity"},
		{"an expression less", func(p *corev1.Pod) { t := required(p); t.MatchExpressions = t.MatchExpressions[1:] }, "spec.affinity.nodeAffinity"},
		{"a term more", func(p *corev1.Pod) {
			r := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
			r.NodeSelectorTerms = append(r.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{term("y")}})
		}, "spec.affinity.nodeAffinity"},
		{"a preference", func(p *corev1.Pod) {
			p.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{{
				Weight: 1, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{term("z")}},
			}}
		}, ""},
		{"no preference", func(p *corev1.Pod) {
			p.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = nil
		}, ""},
		{"a label with the last gate", func(p *corev1.Pod) {
			p.Spec.NodeSelector[corev1.LabelHostname] = "sim-0"
			p.Spec.SchedulingGates = nil
		}, ""},
		{"a label after it", func(p *corev1.Pod) { p.Spec.NodeSelector["late"] = "x" }, "spec: Forbidden: pod updates may not change fields other than"},
	} {
		p := must(pods.Get(c.ctx, "web", metav1.GetOptions{}))(c)
		p.ResourceVersion = ""
		step.change(p)
		_, err := pods.Update(c.ctx, p, metav1.UpdateOptions{})
		switch {
		case step.message == "" && err != nil:
			t.Errorf("%s: %v", step.name, err)
		case step.message != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), step.message)):
			t.Errorf("%s: %v, want %s", step.name, err, step.message)
		}
	}
	if node := c.scheduled("web"); node != "sim-0" {
		t.Errorf("on %s", node)
	}
}

// KEP-3633 and the merge of KEP-3243: what a pod's own labels are is written into
// its selectors.
func TestLabelKeysAreWrittenIntoSelectors(t *testing.T) {
	c := start(t, 1)
	term := func(change func(*corev1.PodAffinityTerm)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Labels["tenant"], p.Labels["revision"] = "a", "r1"
			at := corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: selector("web")}
			change(&at)
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{at}}}
		}
	}
	p := c.createPod(newPod("web", term(func(at *corev1.PodAffinityTerm) {
		at.MatchLabelKeys, at.MismatchLabelKeys = []string{"revision", "absent"}, []string{"tenant"}
	})))
	got := p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector.MatchExpressions
	wanted := []metav1.LabelSelectorRequirement{
		{Key: "revision", Operator: metav1.LabelSelectorOpIn, Values: []string{"r1"}},
		{Key: "tenant", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"a"}},
	}
	if fmt.Sprint(got) != fmt.Sprint(wanted) {
		t.Errorf("stored: %v", got)
	}
	for message, change := range map[string]func(*corev1.PodAffinityTerm){
		"exists in both matchLabelKeys and mismatchLabelKeys": func(at *corev1.PodAffinityTerm) {
			at.MatchLabelKeys, at.MismatchLabelKeys = []string{"tenant"}, []string{"tenant"}
		},
		"exists in both matchLabelKeys and labelSelector":     func(at *corev1.PodAffinityTerm) { at.MatchLabelKeys = []string{"app"} },
		"must not be specified when labelSelector is not set": func(at *corev1.PodAffinityTerm) { at.LabelSelector, at.MatchLabelKeys = nil, []string{"tenant"} },
	} {
		_, err := c.CoreV1().Pods(ns).Create(c.ctx, newPod("bad", term(change)), metav1.CreateOptions{})
		c.refused(err, message)
	}

	spread := func(change func(*corev1.TopologySpreadConstraint)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Labels["revision"] = "r1"
			s := corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector("web")}
			change(&s)
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{s}
		}
	}
	p = c.createPod(newPod("spread", spread(func(s *corev1.TopologySpreadConstraint) { s.MatchLabelKeys = []string{"revision", "absent"} })))
	if got := p.Spec.TopologySpreadConstraints[0].LabelSelector.MatchExpressions; fmt.Sprint(got) != fmt.Sprint(wanted[:1]) {
		t.Errorf("stored: %v", got)
	}
	for message, change := range map[string]func(*corev1.TopologySpreadConstraint){
		"exists in both matchLabelKeys and labelSelector": func(s *corev1.TopologySpreadConstraint) { s.MatchLabelKeys = []string{"app"} },
		"must not be specified when labelSelector is not set": func(s *corev1.TopologySpreadConstraint) {
			s.LabelSelector, s.MatchLabelKeys = nil, []string{"revision"}
		},
	} {
		_, err := c.CoreV1().Pods(ns).Create(c.ctx, newPod("bad", spread(change)), metav1.CreateOptions{})
		c.refused(err, message)
	}
}

// KEP-2249.
func TestAffinityAcrossNamespaces(t *testing.T) {
	c := start(t, 2)
	for _, name := range []string{"blue", "red"} {
		must(c.CoreV1().Namespaces().Create(c.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": name}}}, metav1.CreateOptions{}))(c)
		until(c, c.CoreV1().ServiceAccounts(name), metav1.ListOptions{}, func(l *corev1.ServiceAccountList) error { return want("accounts", len(l.Items), 1) })
	}
	for i, in := range []string{"blue", "red"} {
		p := newPod("web", func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: fmt.Sprintf("sim-%d", i)}
		})
		must(c.CoreV1().Pods(in).Create(c.ctx, p, metav1.CreateOptions{}))(c)
		until(c, c.CoreV1().Pods(in), named("web"), func(l *corev1.PodList) error { return want("ready", isReady(&l.Items[0]), true) })
	}
	avoid := func(teams *metav1.LabelSelector) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: selector("web"), NamespaceSelector: teams,
			}}}}
		}
	}
	c.createPod(newPod("not-blue", avoid(&metav1.LabelSelector{MatchLabels: map[string]string{"team": "blue"}})))
	if node := c.scheduled("not-blue"); node != "sim-1" {
		t.Errorf("on %s", node)
	}
	c.createPod(newPod("own", avoid(nil)))
	c.scheduled("own")
	c.createPod(newPod("none", avoid(&metav1.LabelSelector{})))
	c.unschedulable("none")

	quotas := c.CoreV1().ResourceQuotas(ns)
	must(quotas.Create(c.ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "cross"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")},
		ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{{
			ScopeName: corev1.ResourceQuotaScopeCrossNamespacePodAffinity, Operator: corev1.ScopeSelectorOpExists,
		}}},
	}}, metav1.CreateOptions{}))(c)
	until(c, quotas, named("cross"), func(l *corev1.ResourceQuotaList) error { return want("counted", len(l.Items[0].Status.Hard), 1) })
	_, err := c.CoreV1().Pods(ns).Create(c.ctx, newPod("refused", avoid(&metav1.LabelSelector{})), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: cross") {
		t.Errorf("across namespaces: %v", err)
	}
	c.createPod(newPod("allowed", avoid(nil)))
}

// A stand-in for Cluster Autoscaler adds a node for every pod that fits nowhere,
// and takes one away as it does: a taint, evictions, then the node.
func TestAnAutoscalerAddsAndRemovesNodes(t *testing.T) {
	c := startEmpty(t)
	c.node("first", simulated("1"))
	// Once it is bound the scheduler knows that there is this node alone.
	c.createPod(newPod("a", asks("1", ""), func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
				{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"first"}}}}},
		}}}
	}))
	c.scheduled("a")
	ctx, cancel := context.WithCancel(c.ctx)
	done := make(chan struct{})
	w := must(c.CoreV1().Pods(ns).Watch(ctx, metav1.ListOptions{}))(c)
	go func() {
		defer close(done)
		added := map[types.UID]bool{}
		for e := range w.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok || added[p.UID] {
				continue
			}
			if d := podCondition(p, corev1.PodScheduled); d.Status == corev1.ConditionFalse && d.Reason == corev1.PodReasonUnschedulable {
				added[p.UID] = true
				c.node("for-"+p.Name, simulated("1"))
			}
		}
	}()
	defer func() { cancel(); w.Stop(); <-done }()

	c.createPod(newPod("waits", asks("1", ""), gated("example.com/quota")))
	c.createPod(newPod("b", asks("1", "")))
	if node := c.scheduled("b"); node != "for-b" {
		t.Errorf("b runs on %s", node)
	}
	if l := must(c.CoreV1().Nodes().List(c.ctx, metav1.ListOptions{}))(c); len(l.Items) != 2 {
		t.Errorf("%d nodes: a gated pod asks for none", len(l.Items))
	}

	rs := replicaSet("web", 1)
	rs.Spec.Template.Spec = podSpec("100m")
	c.node("small", simulated("200m"))
	c.createReplicaSet(rs)
	pod := c.pods("app=web", readyPods(1))[0]
	c.createBudget(budget("web", 1))
	c.budgetUntil("web", func(b *policyv1.PodDisruptionBudget) error { return want("healthy", b.Status.CurrentHealthy, 1) })
	edit(c, c.CoreV1().Nodes(), "small", func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Value: "1", Effect: corev1.TaintEffectNoSchedule})
	})
	if err := c.evict(pod.Name); !apierrors.IsTooManyRequests(err) {
		t.Errorf("against the budget: %v", err)
	}
	c.ok(c.PolicyV1().PodDisruptionBudgets(ns).Delete(c.ctx, "web", metav1.DeleteOptions{}))
	c.ok(c.evict(pod.Name))
	moved := c.pods("app=web", readyPods(1))[0]
	for moved.Spec.NodeName == "small" { // the scheduler had not seen the taint yet: a drain goes on
		c.ok(c.evict(moved.Name))
		moved = c.pods("app=web", readyPods(1))[0]
	}
	if !strings.HasPrefix(moved.Spec.NodeName, "for-web-") {
		t.Errorf("%s runs on %s", moved.Name, moved.Spec.NodeName)
	}
	c.ok(c.CoreV1().Nodes().Delete(c.ctx, "small", metav1.DeleteOptions{}))
}

// What a plugin has no say in it is not asked, nor counted.
func TestPluginsAreCountedWhereTheyRan(t *testing.T) {
	c := start(t, 1)
	count := func(plugin, point string) string {
		t.Helper()
		series := `scheduler_plugin_evaluation_total{extension_point="` + point + `",plugin="` + plugin + `",profile="default-scheduler"} `
		_, rest, _ := strings.Cut(c.metrics(), series)
		value, _, _ := strings.Cut(rest, "\n")
		return value
	}
	c.createPod(newPod("plain"))
	c.scheduled("plain")
	if fit, affinity := count("NodeResourcesFit", "Filter"), count("InterPodAffinity", "Filter"); fit != "1" || affinity != "0" {
		t.Errorf("after a plain pod: NodeResourcesFit %q, InterPodAffinity %q", fit, affinity)
	}
	c.createPod(newPod("apart", func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: selector("apart"),
		}}}}
	}))
	c.scheduled("apart")
	for _, point := range []string{"PreFilter", "Filter"} {
		if n := count("InterPodAffinity", point); n != "1" {
			t.Errorf("InterPodAffinity at %s: %q", point, n)
		}
	}
	if fit := count("NodeResourcesFit", "Filter"); fit != "2" {
		t.Errorf("NodeResourcesFit: %q", fit)
	}
}

// Volumes of the plugins that drivers took over count for the drivers' limits.
func TestAPodGoesWhereItsDriverHasRoom(t *testing.T) {
	c := startEmpty(t)
	for _, name := range []string{"one", "two"} {
		c.node(name, simulated("10"))
		must(c.StorageV1().CSINodes().Create(c.ctx, &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
				Name: "ebs.csi.aws.com", NodeID: name, Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(1))},
			}}},
		}, metav1.CreateOptions{}))(c)
	}
	withDisk := func(id string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "disk", VolumeSource: corev1.VolumeSource{
				AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: id},
			}}}
		}
	}
	c.createPod(newPod("first", withDisk("vol-1")))
	c.createPod(newPod("second", withDisk("vol-2")))
	if a, b := c.scheduled("first"), c.scheduled("second"); a == b {
		t.Errorf("both on %s", a)
	}
	c.createPod(newPod("third", withDisk("vol-3")))
	if p := c.unschedulable("third"); !strings.Contains(podCondition(p, corev1.PodScheduled).Message, "2 node(s) exceed max volume count") {
		t.Errorf("%+v", p.Status.Conditions)
	}
	c.deletePod("first") // its place is free again
	c.scheduled("third")
}

// KEP-4247: what the queue does is measured, under upstream's names.
func TestTheSchedulersQueueIsMeasured(t *testing.T) {
	c := startEmpty(t)
	c.node("small", simulated("1"))
	c.createPod(newPod("p", asks("4", "")))
	c.pod("p", func(p *corev1.Pod) error {
		c := podCondition(p, corev1.PodScheduled)
		return want("rejected: "+c.Message, strings.Contains(c.Message, "Insufficient cpu"), true)
	})
	c.node("large", simulated("8"))
	c.scheduled("p")
	metrics := c.metrics()
	for _, series := range []string{
		`scheduler_queueing_hint_execution_duration_seconds_count{event="NodeAdd",hint="Queue",plugin="NodeResourcesFit"}`,
		`scheduler_inflight_events{event="PodPopped"}`,
		`scheduler_event_handling_duration_seconds_count{event="NodeAdd"}`,
		`scheduler_queue_incoming_pods_total{event="UnscheduledPodAdd",queue="active"}`,
		`scheduler_queue_incoming_pods_total{event="ScheduleAttemptFailure",queue="unschedulable"}`,
		`scheduler_framework_extension_point_duration_seconds_count{extension_point="Filter",profile="default-scheduler",status="Success"}`,
		`scheduler_pending_pods{queue="unschedulable"} 0`,
		`scheduler_goroutines{operation="binding"}`,
	} {
		if !strings.Contains(metrics, series) {
			t.Errorf("%s is missing", series)
		}
	}
}
