package scheduler

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis/explain"
	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/profile"
)

// question asks the scheduling loop what keeps a pod from having a node.
type question struct {
	pod    *corev1.Pod
	answer chan answered // one value
}

type answered struct {
	scheduling *explain.Scheduling
	err        error
}

// Explain says what keeps a pod from having a node: what the last attempt found,
// and what every plugin says of every node now. It is asked between two cycles
// and changes nothing. The pod's scheduler must be one of this one's profiles.
func (s *Scheduler) Explain(ctx context.Context, pod *corev1.Pod) (*explain.Scheduling, error) {
	q := question{pod, make(chan answered, 1)}
	select {
	case s.questions <- q:
	case <-ctx.Done():
		return nil, fmt.Errorf("the scheduler does not answer: %w", ctx.Err())
	}
	select {
	case a := <-q.answer:
		return a.scheduling, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("the scheduler does not answer: %w", ctx.Err())
	}
}

// Schedules tells whether a scheduler name is one of this one's profiles.
func (s *Scheduler) Schedules(name string) bool { return s.profiles[name] != nil }

// answerWaiting answers a question that came during a cycle.
func (s *Scheduler) answerWaiting(ctx context.Context) {
	select {
	case q := <-s.questions:
		s.answer(ctx, q)
	default:
	}
}

func (s *Scheduler) answer(ctx context.Context, q question) {
	p := s.profiles[q.pod.Spec.SchedulerName]
	if p == nil {
		q.answer <- answered{err: fmt.Errorf("no scheduler %q works here", q.pod.Spec.SchedulerName)}
		return
	}
	s.refresh()
	e := &explain.Scheduling{Scheduler: p.SchedulerName, AllNodes: len(s.snapshot.Nodes)}
	s.recall(e, q.pod)
	err := s.examine(ctx, p, e, q.pod)
	q.answer <- answered{e, err}
}

// recall tells of the last attempt and of the queue.
func (s *Scheduler) recall(e *explain.Scheduling, pod *corev1.Pod) {
	where := s.queue.Where(pod.UID)
	e.Queue, e.GatedBy, e.Until = string(where.State), where.GatedBy, metav1.NewTime(where.Until)
	last, ok := s.LastAttempt(pod.UID)
	if !ok || last.Attempts == 0 {
		return
	}
	e.Last = &explain.Attempt{
		At: metav1.NewTime(last.At), Attempts: last.Attempts, Reason: last.Reason, Message: last.Message,
		RejectedBy: last.RejectedBy, PendingOn: last.PendingOn, PostFilter: last.PostFilter, Nominated: last.NominatedNode,
	}
	for _, n := range last.Nodes {
		e.Last.Nodes = append(e.Last.Nodes, explain.Node{Name: n.Node, Verdicts: []explain.Verdict{{
			Plugin: n.Plugin, Reasons: n.Reasons, Preemptable: n.Preemptable,
		}}})
	}
}

// mostExplained nodes are looked at more closely, as that can take its time.
const mostExplained = 100

// examine asks every plugin about every node.
func (s *Scheduler) examine(ctx context.Context, p *profile.Profile, e *explain.Scheduling, pod *corev1.Pod) error {
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		return err
	}
	state, d := &framework.CycleState{}, &framework.Diagnosis{AllNodes: e.AllNodes}
	names, status := p.PreFilter(ctx, state, info, d)
	if status.IsRejected() {
		e.PreFilter = status.Message()
		return nil
	}
	if status != nil {
		return status.Err()
	}
	nodes := s.snapshot.Nodes
	if names != nil {
		nodes, e.Untried = s.named(names), d.Untried.Message()
	}
	verdicts := make([][]profile.Verdict, len(nodes))
	s.inParallel(filtering, len(nodes), func(i int) { verdicts[i] = s.verdicts(ctx, p, state, info, nodes[i]) })
	for i, node := range nodes {
		if len(verdicts[i]) == 0 {
			e.Fits = append(e.Fits, node.Name())
			continue
		}
		first := verdicts[i][0]
		d.Rejections = append(d.Rejections, framework.Rejection{Node: node, Name: node.Name(), Plugin: first.Plugin, Status: first.Status})
		e.Nodes = append(e.Nodes, verdictOf(info, node, verdicts[i]))
		if len(e.Nodes) <= mostExplained {
			explained := e.Nodes[len(e.Nodes)-1].Verdicts
			for j := range explained {
				explained[j].Reasons = append(slices.Clip(explained[j].Reasons), p.Explain(ctx, explained[j].Plugin, state, info, node)...)
			}
		}
	}
	if len(e.Fits) > 0 || len(nodes) == 0 {
		return nil
	}
	preview, err := p.Preview(ctx, state, info, d)
	if err != nil {
		return err
	}
	e.Preemption = &explain.Preemption{Node: preview.Node, Refused: preview.Refused}
	for _, v := range preview.Victims {
		e.Preemption.Victims = append(e.Preemption.Victims, v.Pod.Namespace+"/"+v.Pod.Name)
	}
	return nil
}

// verdicts are what all plugins have against a node, with the pods counted that
// it has been promised to, if there is nothing else.
func (s *Scheduler) verdicts(ctx context.Context, p *profile.Profile, state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) []profile.Verdict {
	all := p.FilterAll(ctx, state, pod, node)
	if len(all) > 0 || !s.queue.AnyNominated() {
		return all
	}
	if plugin, status := p.FilterWithNominated(ctx, state, pod, node); status != nil {
		all = append(all, profile.Verdict{Plugin: plugin, Status: status})
	}
	return all
}

func verdictOf(pod *framework.PodInfo, node *framework.NodeInfo, verdicts []profile.Verdict) explain.Node {
	n := explain.Node{Name: node.Name()}
	for _, v := range verdicts {
		n.Verdicts = append(n.Verdicts, explain.Verdict{
			Plugin: v.Plugin, Reasons: v.Status.Reasons(), Preemptable: v.Status.Code() == framework.Unschedulable,
		})
	}
	n.Lacks, n.Never = lacks(pod, node)
	return n
}

// lacks is what a node has too little of for the pod, nil when it has enough of
// everything, and whether it would be so on the empty node, too.
func lacks(pod *framework.PodInfo, node *framework.NodeInfo) (missing map[string]string, never bool) {
	want, used, total := &pod.Requests, &node.Requested, &node.Allocatable
	note := func(name corev1.ResourceName, want, used, total int64, unit func(int64) *resource.Quantity) {
		short := want - (total - used)
		if want == 0 || short <= 0 {
			return
		}
		if missing == nil {
			missing = map[string]string{}
		}
		missing[string(name)] = unit(short).String()
		never = never || want > total
	}
	bytes := func(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }
	count := func(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.DecimalSI) }
	note(corev1.ResourceCPU, want.MilliCPU, used.MilliCPU, total.MilliCPU, func(n int64) *resource.Quantity {
		return resource.NewMilliQuantity(n, resource.DecimalSI)
	})
	note(corev1.ResourceMemory, want.Memory, used.Memory, total.Memory, bytes)
	note(corev1.ResourceEphemeralStorage, want.EphemeralStorage, used.EphemeralStorage, total.EphemeralStorage, bytes)
	note(corev1.ResourcePods, 1, int64(len(node.Pods)), total.Pods, count)
	for _, s := range want.Scalar {
		note(s.Name, s.Value, used.Of(s.Name), total.Of(s.Name), count)
	}
	return missing, never
}
