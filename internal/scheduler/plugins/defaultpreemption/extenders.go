package defaultpreemption

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"proa/internal/scheduler/extender"
	"proa/internal/scheduler/framework"
)

// askExtenders has the extenders that take part in preemption choose among the
// candidates, one after the other.
func (p *Plugin) askExtenders(ctx context.Context, pod *corev1.Pod, candidates []candidate) ([]candidate, error) {
	for _, e := range p.handle.Extenders {
		if len(candidates) == 0 || !e.Preempts() || !e.Interested(pod) {
			continue
		}
		left, err := askExtender(ctx, e, pod, candidates)
		switch {
		case err == nil:
			candidates = left
		case e.Ignorable():
			slog.WarnContext(ctx, "skipped extender as it returned error and has ignorable flag set", "extender", e.Name(), "err", err)
		default:
			return nil, err
		}
	}
	return candidates, nil
}

func askExtender(ctx context.Context, e *extender.Extender, pod *corev1.Pod, candidates []candidate) ([]candidate, error) {
	asked := map[string]*extenderv1.Victims{}
	for _, c := range candidates {
		victims := &extenderv1.Victims{NumPDBViolations: int64(c.violations)}
		for _, v := range c.victims {
			victims.Pods = append(victims.Pods, v.Pod)
		}
		asked[c.node.Name()] = victims
	}
	answer, err := e.Preempt(ctx, pod, asked)
	if err != nil {
		return nil, err
	}
	var left []candidate
	for _, c := range candidates { // in their order, not the map's
		victims, ok := answer[c.node.Name()]
		if !ok {
			continue
		}
		chosen, err := named(e, c.node, victims)
		if err != nil {
			return nil, err
		}
		left = append(left, candidate{node: c.node, victims: chosen, violations: int(victims.NumPDBViolations)})
	}
	return left, nil
}

// named finds the pods that an extender wants to go, most important first.
func named(e *extender.Extender, node *framework.NodeInfo, victims *extenderv1.MetaVictims) ([]*framework.PodInfo, error) {
	if victims == nil || len(victims.Pods) == 0 {
		return nil, fmt.Errorf("expected at least one victim pod on node %q", node.Name())
	}
	var found []*framework.PodInfo
	for _, v := range victims.Pods {
		i := slices.IndexFunc(node.Pods, func(p *framework.PodInfo) bool { return v != nil && string(p.Pod.UID) == v.UID })
		if i < 0 {
			return nil, fmt.Errorf("extender: %v claims to preempt pod (UID: %v) on node: %v, but the pod is not found on that node", e.Name(), v, node.Name())
		}
		found = append(found, node.Pods[i])
	}
	slices.SortStableFunc(found, byImportance)
	return found, nil
}
