package profile

import (
	"fmt"
	"math"
	"slices"
	"time"

	"k8s.io/utils/clock"

	"proa/internal/scheduler/framework"
)

// Enabled is one plugin of a profile.
type Enabled struct {
	Name   string
	Weight int64 // of its scores; 0 means 1
}

// Config is one scheduler that pods can name.
type Config struct {
	SchedulerName string
	// Plugins in the order in which they are asked, each at every extension point
	// that it has the interface of. Nil means the default set.
	Plugins []Enabled
	// Disabled names plugins to leave out of the default set.
	Disabled []string
	// Points are the departures from Plugins at single extension points.
	Points map[Point]Set
	// Args by plugin name, of the type that the plugin documents.
	Args map[string]any
	// PercentageOfNodesToScore: how many nodes that fit are enough, 1 to 100.
	// 0 means fewer the larger the cluster.
	PercentageOfNodesToScore int
	// Count returns what counts the calls of a plugin at PreFilter, Filter,
	// PreScore or Score. Nil: they are not counted.
	Count func(point Point, plugin string) Counter
	// Took is told how long an extension point took, and, for sampled pods, each
	// plugin there; plugin is empty for the point as a whole. It may be called from
	// several goroutines. Nil: nobody is told.
	Took func(plugin, point string, code framework.Code, took time.Duration)
}

// DefaultPlugins is upstream's default set, in its order and with its weights.
func DefaultPlugins() []Enabled {
	return []Enabled{
		{Name: "SchedulingGates"}, {Name: "PrioritySort"},
		{Name: "NodeUnschedulable"}, {Name: "NodeName"},
		{Name: "TaintToleration", Weight: 3}, {Name: "NodeAffinity", Weight: 2},
		{Name: "NodePorts"}, {Name: "NodeResourcesFit", Weight: 1},
		{Name: "VolumeRestrictions"}, {Name: "NodeVolumeLimits"}, {Name: "VolumeBinding"}, {Name: "VolumeZone"},
		{Name: "PodTopologySpread", Weight: 2}, {Name: "InterPodAffinity", Weight: 2},
		{Name: "DynamicResources", Weight: 2}, {Name: "DefaultPreemption"}, {Name: "NodeResourcesBalancedAllocation", Weight: 1},
		{Name: "ImageLocality", Weight: 1}, {Name: "DefaultBinder"},
		{Name: "GangScheduling"}, // does nothing unless PodGroups are served
	}
}

// Factory makes a plugin for one profile.
type Factory func(h *framework.Handle) (framework.Plugin, error)

// New makes the plugins of a profile. Every plugin gets its own copy of handle
// with its Args; handle.Snapshot must be set by then.
func New(c Config, factories map[string]Factory, handle framework.Handle) (*Profile, error) {
	if c.Plugins == nil {
		c.Plugins = slices.DeleteFunc(DefaultPlugins(), func(e Enabled) bool { return slices.Contains(c.Disabled, e.Name) })
	}
	p := &Profile{SchedulerName: c.SchedulerName, Percentage: c.PercentageOfNodesToScore, nominated: handle.Nominated, took: c.Took, clock: handle.Clock}
	if p.clock == nil {
		p.clock = clock.RealClock{}
	}
	all, err := p.make(&c, factories, handle)
	if err == nil {
		err = p.place(&c, all)
	}
	if err != nil {
		return nil, fmt.Errorf("creating profile for scheduler name %s: %w", c.SchedulerName, err)
	}
	return p, nil
}

func (p *Profile) make(c *Config, factories map[string]Factory, handle framework.Handle) (map[string]made, error) {
	names := c.names()
	if len(names) > maxPlugins {
		return nil, fmt.Errorf("more than %d plugins", maxPlugins)
	}
	all := map[string]made{}
	for _, name := range names {
		factory, ok := factories[name]
		if !ok {
			continue // the extension point that names it says so
		}
		h := handle
		h.Args, h.Trials = c.Args[name], p
		plugin, err := factory(&h)
		if err != nil {
			return nil, fmt.Errorf("initializing plugin %q: %w", name, err)
		}
		all[name] = made{plugin, 1 << len(p.all)}
		p.all = append(p.all, plugin)
		if x, ok := plugin.(framework.Signer); ok {
			p.signers = append(p.signers, x)
		}
	}
	return all, nil
}

// place lists the plugins at each extension point, in upstream's order of checks.
func (p *Profile) place(c *Config, all map[string]made) error {
	var errs []error
	var sorts []framework.QueueSortPlugin
	fill(&p.preFilter, c, PreFilter, all, &errs)
	fill(&p.filter, c, Filter, all, &errs)
	plain(&p.postFilter, c, PostFilter, all, &errs)
	plain(&p.reserve, c, Reserve, all, &errs)
	fill(&p.preScore, c, PreScore, all, &errs)
	fill(&p.score, c, Score, all, &errs)
	plain(&p.preBind, c, PreBind, all, &errs)
	plain(&p.bind, c, Bind, all, &errs)
	plain(&p.postBind, c, PostBind, all, &errs)
	plain(&p.permit, c, Permit, all, &errs)
	plain(&p.preEnqueue, c, PreEnqueue, all, &errs)
	plain(&sorts, c, QueueSort, all, &errs)
	count(p.preFilter, c, PreFilter)
	count(p.filter, c, Filter)
	count(p.preScore, c, PreScore)
	count(p.score, c, Score)
	for i := range p.score {
		if _, ok := p.score[i].plugin.(framework.RangeNormalizer); ok && p.ranged == nil {
			p.ranged = &p.score[i]
		}
	}
	p.findClassed()
	for _, f := range p.preFilter {
		if x, ok := f.plugin.(framework.PreFilterExtensions); ok {
			p.extensions = append(p.extensions, at[framework.PreFilterExtensions]{plugin: x, bit: f.bit, weight: f.weight})
		}
	}
	switch {
	case len(errs) > 0:
		return errs[0]
	case len(sorts) != 1:
		return fmt.Errorf("only one queue sort plugin required for profile with scheduler name %q, but got %d", c.SchedulerName, len(sorts))
	case len(p.bind) == 0:
		return fmt.Errorf("at least one bind plugin is needed for profile with scheduler name %q", c.SchedulerName)
	}
	p.sort = sorts[0]
	return p.checkWeights()
}

// checkWeights refuses weights with which a sum of scores could overflow.
func (p *Profile) checkWeights() error {
	left := int64(math.MaxInt64)
	for _, x := range p.score {
		if x.weight > left/framework.MaxNodeScore {
			return fmt.Errorf("total score of Score plugins could overflow")
		}
		left -= x.weight * framework.MaxNodeScore
	}
	return nil
}
