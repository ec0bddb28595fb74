// Package defaultpreemption makes room for a pod that fits nowhere, by deleting
// pods of lower priority on the node where that does the least harm.
package defaultpreemption

import (
	"cmp"
	"context"
	"math/rand"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"proa/internal/client"
	"proa/internal/scheduler/framework"
)

const Name = "DefaultPreemption"

// Args of the plugin. A share and a floor bound the nodes on which it looks for victims.
type Args struct {
	MinCandidateNodesPercentage *int  // of those where victims could help; nil means 10
	MinCandidateNodesAbsolute   *int  // nil means 100
	Seed                        int64 // of the node it begins with
}

type Plugin struct {
	handle         *framework.Handle
	pods           *client.Informer[*corev1.Pod]
	budgets        *client.Informer[*policyv1.PodDisruptionBudget]
	share, atLeast int        // percentage and number of nodes to look for victims on
	random         *rand.Rand // used by the scheduling loop only

	mu         sync.Mutex // guards what follows
	preempting map[types.UID]struct{}
	evictions  map[types.UID]*eviction // by victim, until the snapshot shows them
}

func New(h *framework.Handle) (framework.Plugin, error) {
	p := &Plugin{
		handle: h, preempting: map[types.UID]struct{}{}, evictions: map[types.UID]*eviction{},
		pods:    client.Shared[*corev1.Pod](h.Cache),
		budgets: client.Shared[*policyv1.PodDisruptionBudget](h.Cache),
	}
	args, _ := h.Args.(*Args)
	if args == nil {
		args = &Args{}
	}
	p.share, p.atLeast = ptr.Deref(args.MinCandidateNodesPercentage, 10), ptr.Deref(args.MinCandidateNodesAbsolute, 100)
	p.random = rand.New(rand.NewSource(cmp.Or(args.Seed, 1)))
	return p, nil
}

func (*Plugin) Name() string { return Name }

var underWay = framework.NewStatus(framework.UnschedulableAndUnresolvable, "waiting for the preemption for this pod to be finished")

// PreEnqueue keeps a pod out while its victims are being deleted.
func (p *Plugin) PreEnqueue(_ context.Context, pod *corev1.Pod) *framework.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.preempting[pod.UID]; ok {
		return underWay
	}
	return nil
}

// EventsToRegister: none; the plugin itself activates the pods that it holds.
func (*Plugin) EventsToRegister() []framework.HintedEvent { return nil }

func refuse(message string) *framework.Status {
	return framework.NewStatus(framework.Unschedulable, "preemption: "+message)
}

// PostFilter nominates the node with the cheapest victims, and has them deleted
// in the background.
func (p *Plugin) PostFilter(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, d *framework.Diagnosis) (*framework.PostFilterResult, *framework.Status) {
	if message := p.ineligible(pod, d); message != "" {
		return &framework.PostFilterResult{KeepNomination: true}, refuse(message)
	}
	candidates, account, err := p.candidates(ctx, state, pod, d)
	if err != nil {
		return nil, framework.AsStatus(err)
	}
	if len(candidates) == 0 {
		return &framework.PostFilterResult{}, refuse(framework.NoneAvailable(d.AllNodes, account))
	}
	if candidates, err = p.askExtenders(ctx, pod.Pod, candidates); err != nil {
		return nil, framework.AsStatus(err)
	}
	if len(candidates) == 0 {
		return &framework.PostFilterResult{}, refuse("no candidate node for preemption")
	}
	best := pick(candidates)
	p.preempt(pod, best)
	return &framework.PostFilterResult{NominatedNode: best.node.Name()}, nil
}

// Preview tells whom PostFilter would have leave, extenders not asked.
func (p *Plugin) Preview(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, d *framework.Diagnosis) (framework.Preemption, error) {
	if message := p.ineligible(pod, d); message != "" {
		return framework.Preemption{Refused: message}, nil
	}
	candidates, account, err := p.candidates(ctx, state, pod, d)
	if err != nil || len(candidates) == 0 {
		return framework.Preemption{Refused: framework.NoneAvailable(d.AllNodes, account)}, err
	}
	best := pick(candidates)
	return framework.Preemption{Node: best.node.Name(), Victims: best.victims}, nil
}

// ineligible says why a pod may not preempt, empty when it may. It may not do so
// again while its last victims are still leaving.
func (p *Plugin) ineligible(pod *framework.PodInfo, d *framework.Diagnosis) string {
	if policy := pod.Pod.Spec.PreemptionPolicy; policy != nil && *policy == corev1.PreemptNever {
		return "not eligible due to preemptionPolicy=Never."
	}
	nominated := p.handle.NominationOf(pod.Pod.UID)
	node := p.handle.Snapshot.ByName[nominated]
	if node == nil {
		return ""
	}
	for _, r := range d.Rejections {
		if r.Node == node && r.Status.Code() == framework.UnschedulableAndUnresolvable {
			return ""
		}
	}
	for _, other := range node.Pods {
		if other.Priority < pod.Priority && (isLeavingVictim(other.Pod) || p.evicted(other.Pod)) {
			return "not eligible due to a terminating pod on the nominated node."
		}
	}
	return ""
}

func isLeavingVictim(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
	})
}

// candidate is a node and the pods that would have to go.
type candidate struct {
	node       *framework.NodeInfo
	victims    []*framework.PodInfo // most important first
	violations int                  // victims that a disruption budget protects
}

// candidates looks for nodes where victims make room, from a random one on, until
// there are enough. The account counts what was said about the others.
func (p *Plugin) candidates(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, d *framework.Diagnosis) ([]candidate, map[*framework.Status]int, error) {
	account := map[*framework.Status]int{notHelpful: d.AllNodes}
	var helpful []*framework.NodeInfo
	for i := range d.Rejections {
		r := &d.Rejections[i]
		if r.Status.Code() == framework.Unschedulable {
			helpful = append(helpful, r.Node)
		}
	}
	account[notHelpful] -= len(helpful)
	if len(helpful) == 0 {
		return nil, account, nil
	}
	budgets := p.budgets.Select("", labels.Everything())
	enough := min(max(len(helpful)*p.share/100, p.atLeast), len(helpful))
	start := p.random.Intn(len(helpful))
	var found []candidate
	harmless := false
	for i := range helpful {
		node := helpful[(start+i)%len(helpful)]
		c, status := p.tryNode(ctx, state, pod, node, budgets)
		switch {
		case status.Code() == framework.Error:
			return nil, nil, status.Err()
		case status != nil:
			account[status]++
			continue
		}
		found = append(found, c)
		harmless = harmless || c.violations == 0
		if harmless && len(found) >= enough {
			break
		}
	}
	return found, account, nil
}

var (
	notHelpful = framework.NewStatus(framework.UnschedulableAndUnresolvable, "Preemption is not helpful for scheduling")
	noVictims  = framework.NewStatus(framework.UnschedulableAndUnresolvable, "No preemption victims found for incoming pod")
)

// tryNode takes all pods of lower priority off, and puts back as many as it can,
// first those that a budget protects, the most important first.
func (p *Plugin) tryNode(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo, budgets []*policyv1.PodDisruptionBudget) (candidate, *framework.Status) {
	var lower []*framework.PodInfo
	for _, other := range node.Pods {
		if other.Priority < pod.Priority {
			lower = append(lower, other)
		}
	}
	if len(lower) == 0 {
		return candidate{}, noVictims
	}
	trial, trialState := node.Clone(), state.Clone()
	for _, other := range lower {
		trial.RemovePod(other)
		if s := p.handle.Trials.RemovePod(ctx, trialState, pod, other, trial); s != nil {
			return candidate{}, s
		}
	}
	if _, s := p.handle.Trials.FilterWithNominated(ctx, trialState, pod, trial); s != nil {
		return candidate{}, s
	}
	slices.SortStableFunc(lower, byImportance)
	protected, others := splitByBudget(lower, budgets)
	c := candidate{node: node}
	for i, other := range append(protected, others...) {
		fits, s := p.reprieve(ctx, trialState, pod, other, trial)
		if s != nil {
			return candidate{}, s
		}
		if !fits {
			c.victims = append(c.victims, other)
			if i < len(protected) {
				c.violations++
			}
		}
	}
	if len(c.victims) == 0 {
		return candidate{}, noVictims
	}
	slices.SortStableFunc(c.victims, byImportance)
	return c, nil
}

// reprieve puts a pod back if the preemptor still fits then.
func (p *Plugin) reprieve(ctx context.Context, state *framework.CycleState, pod, other *framework.PodInfo, trial *framework.NodeInfo) (bool, *framework.Status) {
	trial.AddPod(other)
	if s := p.handle.Trials.AddPod(ctx, state, pod, other, trial); s != nil {
		return false, s
	}
	if _, s := p.handle.Trials.FilterWithNominated(ctx, state, pod, trial); s == nil {
		return true, nil
	}
	trial.RemovePod(other)
	return false, p.handle.Trials.RemovePod(ctx, state, pod, other, trial)
}

// byImportance sorts the most important pod first: by priority, then the longest running.
func byImportance(a, b *framework.PodInfo) int {
	if a.Priority != b.Priority {
		return cmp.Compare(b.Priority, a.Priority)
	}
	return startOf(a.Pod).Time.Compare(startOf(b.Pod).Time)
}

// splitByBudget separates the pods whose eviction would break a budget.
func splitByBudget(pods []*framework.PodInfo, budgets []*policyv1.PodDisruptionBudget) (protected, others []*framework.PodInfo) {
	allowed := make([]int32, len(budgets))
	for i, b := range budgets {
		allowed[i] = b.Status.DisruptionsAllowed
	}
	for _, p := range pods {
		violates := false
		for i, b := range budgets {
			if !covers(b, p.Pod) {
				continue
			}
			if _, counted := b.Status.DisruptedPods[p.Pod.Name]; counted {
				continue
			}
			allowed[i]--
			violates = violates || allowed[i] < 0
		}
		if violates {
			protected = append(protected, p)
		} else {
			others = append(others, p)
		}
	}
	return protected, others
}
