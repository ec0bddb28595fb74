package scheduler

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"proa/internal/scheduler/extender"
	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/profile"
)

// extended tells whether some extender wants to be asked about a pod.
func (s *Scheduler) extended(pod *corev1.Pod) bool {
	return slices.ContainsFunc(s.extenders, func(e *extender.Extender) bool { return e.Interested(pod) })
}

func objects(nodes []*framework.NodeInfo) []*corev1.Node {
	list := make([]*corev1.Node, len(nodes))
	for i, n := range nodes {
		list[i] = n.Node
	}
	return list
}

// filterOutside has the extenders narrow the nodes that fit, one after the other.
// What they say against a node goes into d.
func (s *Scheduler) filterOutside(ctx context.Context, pod *framework.PodInfo, fits []*framework.NodeInfo, d *framework.Diagnosis) ([]*framework.NodeInfo, error) {
	before := len(fits)
	for _, e := range s.extenders {
		if len(fits) == 0 {
			break
		}
		if !e.Filters() || !e.Interested(pod.Pod) {
			continue
		}
		answer, err := e.Filter(ctx, pod.Pod, objects(fits))
		if err != nil {
			if e.Ignorable() {
				slog.WarnContext(ctx, "skipping extender as it returned error and has ignorable flag set", "extender", e.Name(), "err", err)
				continue
			}
			return nil, err
		}
		fits = s.narrow(fits, answer, d)
	}
	if len(fits) < before {
		d.Blame(extender.Name, nil)
	}
	return fits, nil
}

// narrow keeps the nodes that an extender chose, in its order.
func (s *Scheduler) narrow(fits []*framework.NodeInfo, answer *extender.Filtered, d *framework.Diagnosis) []*framework.NodeInfo {
	for _, n := range fits {
		reason, code := answer.Unresolvable[n.Name()], framework.UnschedulableAndUnresolvable
		if _, ok := answer.Unresolvable[n.Name()]; !ok {
			if reason, ok = answer.Failed[n.Name()]; !ok {
				continue
			}
			code = framework.Unschedulable
		}
		d.Rejections = append(d.Rejections, framework.Rejection{
			Node: n, Name: n.Name(), Plugin: extender.Name, Status: framework.NewStatus(code, reason),
		})
	}
	kept := make([]*framework.NodeInfo, 0, len(answer.Fits))
	for _, name := range answer.Fits {
		kept = append(kept, s.snapshot.ByName[name])
	}
	return kept
}

// scoreOutside adds what extenders give the nodes. One that fails has no say.
func (s *Scheduler) scoreOutside(ctx context.Context, pod *framework.PodInfo, scores *profile.Scores) {
	var wg sync.WaitGroup
	var mu sync.Mutex // guards scores
	nodes := objects(scores.Nodes)
	for _, e := range s.extenders {
		if !e.Prioritizes() || !e.Interested(pod.Pod) {
			continue
		}
		wg.Go(func() {
			points, err := e.Prioritize(ctx, pod.Pod, nodes)
			if err != nil {
				slog.WarnContext(ctx, "failed to run extender's priority function, no score given by it", "extender", e.Name(), "err", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for i, n := range nodes {
				scores.Total[i] += points[n.Name] * (framework.MaxNodeScore / extenderv1.MaxExtenderPriority)
			}
		})
	}
	wg.Wait()
}

// bindOutside leaves the binding to an extender; false when there is none for it.
func (s *Scheduler) bindOutside(ctx context.Context, pod *corev1.Pod, node string) (bool, *framework.Status) {
	for _, e := range s.extenders {
		if e.Binds() && e.Interested(pod) {
			return true, framework.AsStatus(e.Bind(ctx, pod, node))
		}
	}
	return false, nil
}
