package explain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"

	"proa/internal/apis/explain"
)

func conditionSentence(pod *corev1.Pod) string {
	if c := condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return fmt.Sprintf("It has no node (%s): %s", c.Reason, c.Message)
	}
	return "It has no node yet."
}

// schedulingSentences tell an examination in words.
func schedulingSentences(pod *corev1.Pod, e *explain.Scheduling) []string {
	switch {
	case e == nil:
		return []string{fmt.Sprintf("It has no node: it waits for a scheduler named %q, which is not part of this server.", pod.Spec.SchedulerName)}
	case e.GatedBy != "":
		return []string{gateSentence(pod, e.GatedBy)}
	case e.AllNodes == 0:
		return []string{"It has no node: the cluster has none."}
	case e.PreFilter != "":
		return append([]string{"No node comes into question: " + e.PreFilter + "."}, queueSentence(e))
	case len(e.Fits) > 0:
		return []string{fmt.Sprintf("It fits on %s now.", some(e.Fits)), queueSentence(e)}
	}
	out := []string{fmt.Sprintf("It fits on none of %s.", counted(e.AllNodes, "node"))}
	out = append(out, nearest(e.Nodes), preemptionSentence(e.Preemption))
	out = append(out, verdictSentences(e)...)
	if e.Untried != "" {
		out = append(out, fmt.Sprintf("%s not looked at: %s.", counted(e.AllNodes-len(e.Nodes), "node"), e.Untried))
	}
	return append(out, queueSentence(e))
}

func gateSentence(pod *corev1.Pod, plugin string) string {
	var gates []string
	for _, g := range pod.Spec.SchedulingGates {
		gates = append(gates, g.Name)
	}
	if len(gates) > 0 {
		return "It is not scheduled before its gates are removed: " + strings.Join(gates, ", ") + "."
	}
	return fmt.Sprintf("It is not scheduled yet: the plugin %s holds it back.", plugin)
}

// nearest names the node that needs least to take the pod, of those where
// nothing but resources is in the way.
func nearest(nodes []explain.Node) string {
	var best *explain.Node
	for i := range nodes {
		n := &nodes[i]
		if len(n.Lacks) == 0 || n.Never || !onlyResources(n) {
			continue
		}
		if best == nil || compareLacks(n, best) < 0 {
			best = n
		}
	}
	if best == nil {
		return largeEnough(nodes)
	}
	return fmt.Sprintf("It would fit on %s if %s were free.", best.Name, amounts(best.Lacks))
}

// largeEnough says when no node is, not even an empty one.
func largeEnough(nodes []explain.Node) string {
	if len(nodes) == 0 || slices.ContainsFunc(nodes, func(n explain.Node) bool { return !n.Never }) {
		return ""
	}
	least := slices.MinFunc(nodes, func(a, b explain.Node) int { return compareLacks(&a, &b) })
	return fmt.Sprintf("No node is large enough, not even when it is empty: %s lacks %s.", least.Name, amounts(least.Lacks))
}

// resourceFit is the plugin that counts resources.
const resourceFit = "NodeResourcesFit"

func onlyResources(n *explain.Node) bool {
	return !slices.ContainsFunc(n.Verdicts, func(v explain.Verdict) bool { return v.Plugin != resourceFit })
}

// compareLacks prefers the node that lacks fewer resources, then less of them,
// CPU before memory before others, then the first name.
func compareLacks(a, b *explain.Node) int {
	if c := cmp.Compare(len(a.Lacks), len(b.Lacks)); c != 0 {
		return c
	}
	names := slices.SortedFunc(maps.Keys(a.Lacks), func(x, y string) int {
		return cmp.Or(cmp.Compare(weight(x), weight(y)), cmp.Compare(x, y))
	})
	for _, name := range names {
		have, ok := b.Lacks[name]
		if !ok {
			return 0
		}
		x, errX := resource.ParseQuantity(a.Lacks[name])
		y, errY := resource.ParseQuantity(have)
		if c := x.Cmp(y); errX == nil && errY == nil && c != 0 {
			return c
		}
	}
	return cmp.Compare(a.Name, b.Name)
}

func weight(name string) int {
	switch corev1.ResourceName(name) {
	case corev1.ResourceCPU:
		return 0
	case corev1.ResourceMemory:
		return 1
	}
	return 2
}

func amounts(lacks map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(lacks)) {
		what := map[string]string{"cpu": "CPU", "pods": "place for a pod"}[name]
		if name == "pods" {
			parts = append(parts, lacks[name]+" "+what)
			continue
		}
		parts = append(parts, lacks[name]+" "+cmp.Or(what, name))
	}
	return strings.Join(parts, " and ")
}

func preemptionSentence(p *explain.Preemption) string {
	switch {
	case p == nil:
		return ""
	case len(p.Victims) > 0:
		return fmt.Sprintf("It would preempt %s on %s.", some(p.Victims), p.Node)
	case p.Refused != "":
		return "It cannot preempt other pods: " + strings.TrimSuffix(p.Refused, ".") + "."
	}
	return ""
}

// verdictSentences count the nodes by what is in the way.
func verdictSentences(e *explain.Scheduling) []string {
	type reason struct{ plugin, text string }
	nodes := map[reason][]string{}
	for _, n := range e.Nodes {
		for _, v := range n.Verdicts {
			for _, text := range v.Reasons {
				nodes[reason{v.Plugin, text}] = append(nodes[reason{v.Plugin, text}], n.Name)
			}
		}
	}
	reasons := slices.SortedFunc(maps.Keys(nodes), func(a, b reason) int {
		return cmp.Or(cmp.Compare(len(nodes[b]), len(nodes[a])), cmp.Compare(a.plugin, b.plugin), cmp.Compare(a.text, b.text))
	})
	var out []string
	for _, r := range reasons {
		slices.SortFunc(nodes[r], natural)
		out = append(out, fmt.Sprintf("%s: %s (%s) says %s.", counted(len(nodes[r]), "node"), r.plugin, some(nodes[r]), quoted(r.text)))
	}
	return out
}

func quoted(text string) string { return "\"" + strings.TrimSuffix(text, ".") + "\"" }

func queueSentence(e *explain.Scheduling) string {
	if e.Last == nil {
		return ""
	}
	text := fmt.Sprintf("It was tried %s, last at %s", times(e.Last.Attempts), e.Last.At.UTC().Format(time.RFC3339))
	switch e.Queue {
	case "backoff":
		return text + ", and is tried again at " + e.Until.UTC().Format(time.RFC3339) + "."
	case "unschedulable":
		return text + ", and is tried again when something happens that may help, at the latest at " + e.Until.UTC().Format(time.RFC3339) + "."
	case "active":
		return text + ", and is about to be tried again."
	}
	return text + "."
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// natural puts shorter names first, so that n2 comes before n10.
func natural(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }

// some names a few.
func some(names []string) string {
	const few = 5
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %s", strings.Join(names[:few], ", "), counted(len(names)-few, "other"))
}

// quotaSentences say that quotas let the pod in: it would not exist otherwise.
func (s *Source) quotaSentences(pod *corev1.Pod) []string {
	var names []string
	for _, q := range s.quotas.Select(pod.Namespace, labels.Everything()) {
		names = append(names, q.Name)
	}
	switch len(names) {
	case 0:
		return nil
	case 1:
		return []string{fmt.Sprintf("Quota %s is not the cause: it has let the pod in.", names[0])}
	}
	return []string{fmt.Sprintf("Quotas %s are not the cause: they have let the pod in.", some(names))}
}
