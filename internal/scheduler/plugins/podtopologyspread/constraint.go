// Package podtopologyspread spreads the pods of a workload over domains.
package podtopologyspread

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"proa/internal/client"
	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/plugins/hint"
	"proa/internal/scheduler/plugins/tainttoleration"
)

const Name = "PodTopologySpread"

// Args of the plugin.
type Args struct {
	// DefaultConstraints of pods that have none of their own, without label
	// selectors: those come from the services and workloads that own the pod.
	// Nil means the system's; empty means none.
	DefaultConstraints []corev1.TopologySpreadConstraint
}

// systemDefaults spread softly over nodes and zones.
var systemDefaults = []corev1.TopologySpreadConstraint{
	{TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 3},
	{TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 5},
}

type Plugin struct {
	handle       *framework.Handle
	defaults     []corev1.TopologySpreadConstraint
	system       bool // defaults are the system's
	services     *client.Informer[*corev1.Service]
	replicaSets  *client.Informer[*appsv1.ReplicaSet]
	statefulSets *client.Informer[*appsv1.StatefulSet]
	controllers  *client.Informer[*corev1.ReplicationController]
}

func New(h *framework.Handle) (framework.Plugin, error) {
	p := &Plugin{
		handle: h, defaults: systemDefaults, system: true,
		services:     client.Shared[*corev1.Service](h.Cache),
		replicaSets:  client.Shared[*appsv1.ReplicaSet](h.Cache),
		statefulSets: client.Shared[*appsv1.StatefulSet](h.Cache),
		controllers:  client.Shared[*corev1.ReplicationController](h.Cache),
	}
	p.services.AddIndex(servicesByNamespace, func(s *corev1.Service) []string {
		if len(s.Spec.Selector) == 0 {
			return nil
		}
		return []string{s.Namespace}
	})
	if args, ok := h.Args.(*Args); ok && args != nil && args.DefaultConstraints != nil {
		p.defaults, p.system = args.DefaultConstraints, false
	}
	return p, nil
}

const servicesByNamespace = "scheduler-selecting"

func (*Plugin) Name() string { return Name }

// constraint is a parsed corev1.TopologySpreadConstraint.
type constraint struct {
	maxSkew, minDomains int
	key                 string
	selector            labels.Selector
	byAffinity, byTaint bool // only nodes that the pod may use count
}

// constraintsOf returns the pod's constraints of one kind, or those by default;
// own is false for the latter.
func (p *Plugin) constraintsOf(pod *corev1.Pod, action corev1.UnsatisfiableConstraintAction) (parsed []constraint, own bool, err error) {
	if given := pod.Spec.TopologySpreadConstraints; len(given) > 0 {
		parsed, err = parse(given, pod, action, nil)
		return parsed, true, err
	}
	if !slices.ContainsFunc(p.defaults, func(c corev1.TopologySpreadConstraint) bool { return c.WhenUnsatisfiable == action }) {
		return nil, false, nil
	}
	selector := p.defaultSelector(pod)
	if selector.Empty() {
		return nil, false, nil
	}
	parsed, err = parse(p.defaults, pod, action, selector)
	return parsed, false, err
}

func parse(given []corev1.TopologySpreadConstraint, pod *corev1.Pod, action corev1.UnsatisfiableConstraintAction, selector labels.Selector) ([]constraint, error) {
	var parsed []constraint
	for i := range given {
		g := &given[i]
		if g.WhenUnsatisfiable != action {
			continue
		}
		c := constraint{maxSkew: int(g.MaxSkew), minDomains: 1, key: g.TopologyKey, selector: selector, byAffinity: true}
		if selector == nil {
			var err error
			if c.selector, err = selectorOf(g, pod); err != nil {
				return nil, fmt.Errorf("topology spread constraint on %s: %w", g.TopologyKey, err)
			}
		}
		if g.MinDomains != nil {
			c.minDomains = int(*g.MinDomains)
		}
		if g.NodeAffinityPolicy != nil {
			c.byAffinity = *g.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor
		}
		if g.NodeTaintsPolicy != nil {
			c.byTaint = *g.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor
		}
		parsed = append(parsed, c)
	}
	return parsed, nil
}

// selectorOf is the label selector, narrowed by matchLabelKeys to the pod's own values.
func selectorOf(g *corev1.TopologySpreadConstraint, pod *corev1.Pod) (labels.Selector, error) {
	selector, err := metav1.LabelSelectorAsSelector(g.LabelSelector)
	if err != nil {
		return nil, err
	}
	own := labels.Set{}
	for _, key := range g.MatchLabelKeys {
		if value, ok := pod.Labels[key]; ok {
			own[key] = value
		}
	}
	if len(own) == 0 || g.LabelSelector == nil {
		return selector, nil
	}
	requirements, _ := own.AsSelector().Requirements()
	return selector.Add(requirements...), nil
}

// defaultSelector selects the pods of the same services and workload. It is empty
// for a pod that belongs to none.
func (p *Plugin) defaultSelector(pod *corev1.Pod) labels.Selector {
	set := labels.Set{}
	for _, s := range p.services.ByIndex(servicesByNamespace, pod.Namespace) {
		if labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(pod.Labels)) {
			for k, v := range s.Spec.Selector {
				set[k] = v
			}
		}
	}
	selector := labels.NewSelector()
	if len(set) > 0 {
		selector = set.AsSelector()
	}
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return selector
	}
	var of *metav1.LabelSelector
	switch owner.Kind {
	case "ReplicationController":
		if rc, ok := p.controllers.Cached(pod.Namespace, owner.Name); ok {
			of = &metav1.LabelSelector{MatchLabels: rc.Spec.Selector}
		}
	case "ReplicaSet":
		if rs, ok := p.replicaSets.Cached(pod.Namespace, owner.Name); ok {
			of = rs.Spec.Selector
		}
	case "StatefulSet":
		if ss, ok := p.statefulSets.Cached(pod.Namespace, owner.Name); ok {
			of = ss.Spec.Selector
		}
	}
	if of == nil {
		return selector
	}
	if owned, err := metav1.LabelSelectorAsSelector(of); err == nil {
		requirements, _ := owned.Requirements()
		selector = selector.Add(requirements...)
	}
	return selector
}

// tallies counts the pods that each constraint selects, over the nodes that the
// pod may use as far as the constraint wants that, and that have all the keys.
func (p *Plugin) tallies(pod *framework.PodInfo, constraints []constraint, allKeys bool) []*framework.Tally {
	keys := make([]string, len(constraints))
	for i := range constraints {
		keys[i] = constraints[i].key
	}
	found := make([]*framework.Tally, len(constraints))
	for i := range constraints {
		c := &constraints[i]
		needed := keys[i : i+1]
		if allKeys {
			needed = keys
		}
		usable, id := usableNodes(pod.Pod, c)
		namespace, selector, own := pod.Pod.Namespace, c.selector, c.key
		found[i] = p.handle.Snapshot.Tally(framework.Rule{
			Pods: strings.Join([]string{Name, namespace, selector.String()}, "|"), Among: labelsOf(namespace, selector),
			Match: func(other *framework.PodInfo) bool {
				return other.Pod.DeletionTimestamp == nil && other.Pod.Namespace == namespace && selector.Matches(labels.Set(other.Pod.Labels))
			},
			Domains: strings.Join([]string{Name, own, strings.Join(needed, ","), id}, "|"),
			Domain: func(n *framework.NodeInfo) (string, bool) {
				for _, k := range needed {
					if _, ok := n.Node.Labels[k]; !ok {
						return "", false
					}
				}
				return n.Node.Labels[own], usable == nil || usable(n)
			},
		})
	}
	return found
}

// labelsOf returns the labels that a selector wants with one value.
func labelsOf(namespace string, selector labels.Selector) []framework.Label {
	requirements, selectable := selector.Requirements()
	if !selectable {
		return nil
	}
	var found []framework.Label
	for i := range requirements {
		r := &requirements[i]
		if values := r.ValuesUnsorted(); len(values) == 1 && (r.Operator() == selection.In || r.Operator() == selection.Equals || r.Operator() == selection.DoubleEquals) {
			found = append(found, framework.Label{Namespace: namespace, Key: r.Key(), Value: values[0]})
		}
	}
	return found
}

// usableNodes returns which nodes count for a constraint, nil for all, and what
// identifies that rule.
func usableNodes(pod *corev1.Pod, c *constraint) (func(*framework.NodeInfo) bool, string) {
	var rules []func(*framework.NodeInfo) bool
	id := ""
	if c.byAffinity && (len(pod.Spec.NodeSelector) > 0 || pod.Spec.Affinity != nil && pod.Spec.Affinity.NodeAffinity != nil) {
		required := nodeaffinity.GetRequiredNodeAffinity(pod)
		rules = append(rules, func(n *framework.NodeInfo) bool { ok, _ := required.Match(n.Node); return ok })
		id += labels.Set(pod.Spec.NodeSelector).String()
		if pod.Spec.Affinity != nil && pod.Spec.Affinity.NodeAffinity != nil {
			id += pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.String()
		}
	}
	if c.byTaint {
		tolerations := &framework.PodInfo{Pod: &corev1.Pod{Spec: corev1.PodSpec{Tolerations: pod.Spec.Tolerations}}}
		rules = append(rules, func(n *framework.NodeInfo) bool {
			return tainttoleration.Plugin{}.Filter(context.Background(), nil, tolerations, n) == nil
		})
		id += fmt.Sprint("taints", pod.Spec.Tolerations)
	}
	if len(rules) == 0 {
		return nil, id
	}
	return func(n *framework.NodeInfo) bool {
		return !slices.ContainsFunc(rules, func(rule func(*framework.NodeInfo) bool) bool { return !rule(n) })
	}, id
}

// EventsToRegister: pods that a constraint selects, and nodes of its domains.
func (p *Plugin) EventsToRegister() []framework.HintedEvent {
	return []framework.HintedEvent{
		hint.On(framework.AssignedPod, framework.Add|framework.Delete|framework.UpdatePodLabel, p.podHelps),
		hint.On(framework.UnscheduledPod, framework.UpdatePodLabel, nil),
		hint.On(framework.Node, framework.Add|framework.Delete|framework.UpdateNodeLabel|framework.UpdateNodeTaint, p.nodeHelps),
	}
}

func (p *Plugin) podHelps(pod *corev1.Pod, old, new any) framework.Hint {
	before, after := hint.Pods(old, new)
	constraints, _, err := p.constraintsOf(pod, corev1.DoNotSchedule)
	if err != nil {
		return framework.Queue
	}
	selected := func(of *corev1.Pod, c *constraint) bool {
		return of != nil && of.DeletionTimestamp == nil && of.Namespace == pod.Namespace && c.selector.Matches(labels.Set(of.Labels))
	}
	for i := range constraints {
		if selected(before, &constraints[i]) != selected(after, &constraints[i]) {
			return framework.Queue
		}
	}
	return framework.QueueSkip
}

func (p *Plugin) nodeHelps(pod *corev1.Pod, old, new any) framework.Hint {
	constraints, _, err := p.constraintsOf(pod, corev1.DoNotSchedule)
	if err != nil {
		return framework.Queue
	}
	before, _ := old.(*corev1.Node)
	after, _ := new.(*corev1.Node)
	hasAll := func(n *corev1.Node) bool {
		return n != nil && !slices.ContainsFunc(constraints, func(c constraint) bool { _, ok := n.Labels[c.key]; return !ok })
	}
	was, is := hasAll(before), hasAll(after)
	if before == nil || after == nil || was != is {
		return framework.Hint(was || is)
	}
	return framework.Hint(is && slices.ContainsFunc(constraints, func(c constraint) bool {
		return c.byTaint || before.Labels[c.key] != after.Labels[c.key]
	}))
}
