// Package profile is a set of plugins that work as one scheduler: it calls them
// in order at each extension point and combines their answers.
package profile

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"proa/internal/scheduler/framework"
)

// maxPlugins is the width of the skip sets in framework.CycleState.
const maxPlugins = 64

// Profile is one scheduler's plugins. It is immutable.
type Profile struct {
	SchedulerName string
	Percentage    int // of nodes to score; 0: adaptive

	clock      clock.PassiveClock
	took       func(plugin, point string, code framework.Code, took time.Duration)
	nominated  func(node string) []*framework.PodInfo
	all        []framework.Plugin
	signers    []framework.Signer
	sort       framework.QueueSortPlugin
	preEnqueue []framework.PreEnqueuePlugin
	preFilter  []at[framework.PreFilterPlugin]
	extensions []at[framework.PreFilterExtensions]
	filter     []at[framework.FilterPlugin]
	postFilter []framework.PostFilterPlugin
	preScore   []at[framework.PreScorePlugin]
	score      []at[framework.ScorePlugin]
	ranged     *at[framework.ScorePlugin] // of score: the one that is a framework.RangeNormalizer, nil for none
	classed    *classed                   // nil for none
	reserve    []framework.ReservePlugin
	permit     []framework.PermitPlugin
	preBind    []framework.PreBindPlugin
	bind       []framework.BindPlugin
	postBind   []framework.PostBindPlugin
}

// Less orders the active queue.
func (p *Profile) Less(a, b *framework.QueuedPodInfo) bool { return p.sort.Less(a, b) }

// Hints returns the events that each plugin registered for.
func (p *Profile) Hints() map[string][]framework.HintedEvent {
	hints := map[string][]framework.HintedEvent{}
	for _, plugin := range p.all {
		if x, ok := plugin.(framework.EnqueueExtensions); ok {
			hints[plugin.Name()] = x.EventsToRegister()
			continue
		}
		hints[plugin.Name()] = []framework.HintedEvent{{Event: framework.Event{Resource: framework.WildCard, Action: framework.All}}}
	}
	return hints
}

// PreEnqueue asks whether a pod may enter the active queue, and names the plugin
// that says no.
func (p *Profile) PreEnqueue(ctx context.Context, pod *corev1.Pod) (string, *framework.Status) {
	for _, plugin := range p.preEnqueue {
		if s := plugin.PreEnqueue(ctx, pod); !s.IsSuccess() {
			return plugin.Name(), s
		}
	}
	return "", nil
}

// PreFilter returns the names of the nodes to try, nil for all. A rejection or
// failure ends it; d then says why.
func (p *Profile) PreFilter(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, d *framework.Diagnosis) (nodes map[string]struct{}, status *framework.Status) {
	defer func(began time.Time) { p.timed(timedPreFilter, began, status) }(p.clock.Now())
	var narrowedBy []string
	for _, f := range p.preFilter {
		var result *framework.PreFilterResult
		s := p.call(state, timedPreFilter, f.plugin, func() (s *framework.Status) {
			result, s = f.plugin.PreFilter(ctx, state, pod)
			return s
		})
		if s.IsSkip() {
			state.SkipFilter |= f.bit
			continue
		}
		f.calls.Add(1)
		switch {
		case s.IsRejected():
			d.Blame(f.plugin.Name(), s)
			d.PreFilter = s.Message()
			d.Untried = s
			return nil, s
		case !s.IsSuccess():
			return nil, framework.AsStatus(fmt.Errorf("running PreFilter plugin %q: %w", f.plugin.Name(), s.Err()))
		}
		if result == nil || result.Nodes == nil {
			continue
		}
		narrowedBy = append(narrowedBy, f.plugin.Name())
		nodes = intersect(nodes, result.Nodes)
		if len(nodes) == 0 {
			return nil, p.nowhere(narrowedBy, d)
		}
	}
	if nodes != nil {
		d.Untried = framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) didn't satisfy plugin(s) "+list(narrowedBy))
	}
	return nodes, nil
}

func (p *Profile) nowhere(narrowedBy []string, d *framework.Diagnosis) *framework.Status {
	msg := "node(s) didn't satisfy plugin(s) " + list(narrowedBy) + " simultaneously"
	if len(narrowedBy) == 1 {
		msg = "node(s) didn't satisfy plugin " + narrowedBy[0]
	}
	s := framework.NewStatus(framework.UnschedulableAndUnresolvable, msg)
	for _, name := range narrowedBy {
		d.Blame(name, s)
	}
	d.PreFilter, d.Untried = msg, s
	return s
}

func list(names []string) string {
	sorted := slices.Sorted(slices.Values(names))
	return "[" + strings.Join(sorted, " ") + "]"
}

func intersect(a, b map[string]struct{}) map[string]struct{} {
	if a == nil {
		return b
	}
	both := map[string]struct{}{}
	for name := range a {
		if _, ok := b[name]; ok {
			both[name] = struct{}{}
		}
	}
	return both
}

// Filter asks whether the pod fits the node; nil means it does.
func (p *Profile) Filter(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	_, s := p.FilterBy(ctx, state, pod, node)
	return s
}

// FilterBy is Filter, with the name of the plugin that rejects the pod.
func (p *Profile) FilterBy(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) (string, *framework.Status) {
	for i := range p.filter {
		f := &p.filter[i]
		if state.SkipFilter&f.bit != 0 {
			continue
		}
		if s := p.filterWith(ctx, f.plugin, state, pod, node); s != nil && !s.IsSuccess() {
			return f.plugin.Name(), s
		}
	}
	return "", nil
}

// filterWith is call for the many calls of Filter: it makes no closure.
func (p *Profile) filterWith(ctx context.Context, plugin framework.FilterPlugin, state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	if !state.Sampled || p.took == nil {
		return plugin.Filter(ctx, state, pod, node)
	}
	began := p.clock.Now()
	s := plugin.Filter(ctx, state, pod, node)
	p.took(plugin.Name(), timedFilter, s.Code(), p.clock.Since(began))
	return s
}

// Verdict is what one plugin has against a node.
type Verdict struct {
	Plugin string
	Status *framework.Status
}

// FilterAll is Filter by every plugin, also after one has rejected the pod.
func (p *Profile) FilterAll(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) []Verdict {
	var verdicts []Verdict
	for i := range p.filter {
		f := &p.filter[i]
		if state.SkipFilter&f.bit != 0 {
			continue
		}
		if s := f.plugin.Filter(ctx, state, pod, node); s != nil && !s.IsSuccess() {
			verdicts = append(verdicts, Verdict{f.plugin.Name(), s})
		}
	}
	return verdicts
}

// Explain is what a plugin has to say of a node that it rejected, if anything.
func (p *Profile) Explain(ctx context.Context, plugin string, state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) []string {
	for i := range p.filter {
		if x, ok := p.filter[i].plugin.(framework.ExplainPlugin); ok && x.Name() == plugin {
			return x.Explain(ctx, state, pod, node)
		}
	}
	return nil
}

// Preview tells what PostFilter would do, as far as its plugins can tell.
func (p *Profile) Preview(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, d *framework.Diagnosis) (framework.Preemption, error) {
	for _, plugin := range p.postFilter {
		if x, ok := plugin.(framework.PreviewPlugin); ok {
			return x.Preview(ctx, state, pod, d)
		}
	}
	return framework.Preemption{Refused: "no plugin of this scheduler preempts"}, nil
}

// FilterWithNominated is Filter, with the pods counted that are as important or
// more so and wait for this node. The pod must fit with them, as it must not take
// their place, and without them, as they may never come. It names the plugin that
// rejects the pod.
func (p *Profile) FilterWithNominated(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) (string, *framework.Status) {
	nominated := slices.DeleteFunc(p.nominated(node.Name()), func(n *framework.PodInfo) bool {
		return n.Priority < pod.Priority || n.Pod.UID == pod.Pod.UID
	})
	if len(nominated) > 0 {
		full, trial := node.Clone(), state.Clone()
		for _, n := range nominated {
			full.AddPod(n)
			if s := p.AddPod(ctx, trial, pod, n, full); !s.IsSuccess() {
				return "", s
			}
		}
		if plugin, s := p.FilterBy(ctx, trial, pod, full); s != nil {
			return plugin, s
		}
	}
	return p.FilterBy(ctx, state, pod, node)
}

// AddPod tells PreFilter's states of a pod added in a trial.
func (p *Profile) AddPod(ctx context.Context, state *framework.CycleState, pod, added *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	for _, x := range p.extensions {
		if state.SkipFilter&x.bit != 0 {
			continue
		}
		s := p.call(state, timedAddPod, x.plugin, func() *framework.Status { return x.plugin.AddPod(ctx, state, pod, added, node) })
		if !s.IsSuccess() {
			return framework.AsStatus(fmt.Errorf("running AddPod on PreFilter plugin %q: %w", x.plugin.Name(), s.Err()))
		}
	}
	return nil
}

// RemovePod tells PreFilter's states of a pod removed in a trial.
func (p *Profile) RemovePod(ctx context.Context, state *framework.CycleState, pod, removed *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	for _, x := range p.extensions {
		if state.SkipFilter&x.bit != 0 {
			continue
		}
		s := p.call(state, timedRemovePod, x.plugin, func() *framework.Status { return x.plugin.RemovePod(ctx, state, pod, removed, node) })
		if !s.IsSuccess() {
			return framework.AsStatus(fmt.Errorf("running RemovePod on PreFilter plugin %q: %w", x.plugin.Name(), s.Err()))
		}
	}
	return nil
}

// PostFilter runs until a plugin makes room or declares the case hopeless. The
// messages of the others are joined.
func (p *Profile) PostFilter(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, d *framework.Diagnosis) (result *framework.PostFilterResult, status *framework.Status) {
	defer func(began time.Time) { p.timed(timedPostFilter, began, status) }(p.clock.Now())
	var reasons []string
	for _, plugin := range p.postFilter {
		var r *framework.PostFilterResult
		s := p.call(state, timedPostFilter, plugin, func() (s *framework.Status) {
			r, s = plugin.PostFilter(ctx, state, pod, d)
			return s
		})
		if r != nil {
			result = r
		}
		switch {
		case s.IsSuccess():
			return r, s
		case s.Code() == framework.UnschedulableAndUnresolvable:
			return r, s
		case !s.IsRejected():
			return r, framework.AsStatus(fmt.Errorf("running PostFilter plugin %q: %w", plugin.Name(), s.Err()))
		}
		reasons = append(reasons, s.Reasons()...)
	}
	return result, framework.NewStatus(framework.Unschedulable, reasons...)
}

// HasPostFilter tells whether anything can be done about a pod that fits nowhere.
func (p *Profile) HasPostFilter() bool { return len(p.postFilter) > 0 }

// Reserve takes what the pod needs; a refusal gives back all that was taken.
func (p *Profile) Reserve(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, node string) (plugin string, status *framework.Status) {
	defer func(began time.Time) { p.timed(timedReserve, began, status) }(p.clock.Now())
	for _, plugin := range p.reserve {
		s := p.call(state, timedReserve, plugin, func() *framework.Status { return plugin.Reserve(ctx, state, pod, node) })
		if !s.IsSuccess() {
			p.Unreserve(ctx, state, pod, node)
			return plugin.Name(), s
		}
	}
	return "", nil
}

// Unreserve undoes Reserve, the last plugin first.
func (p *Profile) Unreserve(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, node string) {
	defer p.timed(timedUnreserve, p.clock.Now(), nil)
	for _, plugin := range slices.Backward(p.reserve) {
		p.call(state, timedUnreserve, plugin, func() *framework.Status {
			plugin.Unreserve(ctx, state, pod, node)
			return nil
		})
	}
}

// HasPermit tells whether any plugin has a say before the binding.
func (p *Profile) HasPermit() bool { return len(p.permit) > 0 }

// Permit returns Success, a refusal with the plugin's name, or Wait with the
// plugins to wait for and how long each may take.
func (p *Profile) Permit(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, node string) (plugin string, wait map[string]time.Duration, s *framework.Status) {
	defer func(began time.Time) { p.timed(timedPermit, began, s) }(p.clock.Now())
	for _, x := range p.permit {
		var timeout time.Duration
		s := p.call(state, timedPermit, x, func() (s *framework.Status) {
			s, timeout = x.Permit(ctx, state, pod, node)
			return s
		})
		switch {
		case s.IsWait():
			if wait == nil {
				wait = map[string]time.Duration{}
			}
			wait[x.Name()] = min(timeout, framework.MaxPermitTimeout)
		case !s.IsSuccess():
			return x.Name(), nil, s
		}
	}
	if wait != nil {
		return "", wait, framework.NewStatus(framework.Wait)
	}
	return "", nil, nil
}

// PreBindNeeded tells whether some plugin has work to do before the binding.
func (p *Profile) PreBindNeeded(state *framework.CycleState) bool {
	for _, plugin := range p.preBind {
		if plugin.PreBindNeeded(state) {
			return true
		}
	}
	return false
}

// PreBind does what must be done before the binding.
func (p *Profile) PreBind(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, node string) (plugin string, status *framework.Status) {
	defer func(began time.Time) { p.timed(timedPreBind, began, status) }(p.clock.Now())
	for _, plugin := range p.preBind {
		if !plugin.PreBindNeeded(state) {
			continue
		}
		s := p.call(state, timedPreBind, plugin, func() *framework.Status { return plugin.PreBind(ctx, state, pod, node) })
		if !s.IsSuccess() {
			return plugin.Name(), s
		}
	}
	return "", nil
}

// Bind writes the binding.
func (p *Profile) Bind(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, node string) (status *framework.Status) {
	defer func(began time.Time) { p.timed(timedBind, began, status) }(p.clock.Now())
	for _, plugin := range p.bind {
		s := p.call(state, timedBind, plugin, func() *framework.Status { return plugin.Bind(ctx, state, pod, node) })
		if !s.IsSkip() {
			return s
		}
	}
	return framework.AsStatus(fmt.Errorf("no bind plugin took pod %s/%s", pod.Pod.Namespace, pod.Pod.Name))
}

// PostBind tells plugins of a binding.
func (p *Profile) PostBind(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, node string) {
	defer p.timed(timedPostBind, p.clock.Now(), nil)
	for _, plugin := range p.postBind {
		p.call(state, timedPostBind, plugin, func() *framework.Status {
			plugin.PostBind(ctx, state, pod, node)
			return nil
		})
	}
}
