package profile

import (
	"fmt"
	"slices"

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
	// Plugins in the order in which they are asked. None: the default set.
	Plugins []Enabled
	// Disabled names plugins to leave out of the default set.
	Disabled []string
	// Args by plugin name, of the type that the plugin documents.
	Args map[string]any
	// PercentageOfNodesToScore: how many nodes that fit are enough, 1 to 100.
	// 0 means fewer the larger the cluster.
	PercentageOfNodesToScore int
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
		{Name: "DefaultPreemption"}, {Name: "NodeResourcesBalancedAllocation", Weight: 1},
		{Name: "ImageLocality", Weight: 1}, {Name: "DefaultBinder"},
	}
}

// Factory makes a plugin for one profile.
type Factory func(h *framework.Handle) (framework.Plugin, error)

// New makes the plugins of a profile. Every plugin gets its own copy of handle
// with its Args; handle.Snapshot must be set by then.
func New(c Config, factories map[string]Factory, handle framework.Handle) (*Profile, error) {
	enabled := c.Plugins
	if len(enabled) == 0 {
		enabled = slices.DeleteFunc(DefaultPlugins(), func(e Enabled) bool { return slices.Contains(c.Disabled, e.Name) })
	}
	p := &Profile{SchedulerName: c.SchedulerName, Percentage: c.PercentageOfNodesToScore, nominated: handle.Nominated}
	if len(enabled) > maxPlugins {
		return nil, fmt.Errorf("profile %s: more than %d plugins", c.SchedulerName, maxPlugins)
	}
	for _, e := range enabled {
		factory, ok := factories[e.Name]
		if !ok {
			return nil, fmt.Errorf("profile %s: plugin %q does not exist", c.SchedulerName, e.Name)
		}
		h := handle
		h.Args, h.Trials = c.Args[e.Name], p
		plugin, err := factory(&h)
		if err != nil {
			return nil, fmt.Errorf("profile %s: plugin %s: %w", c.SchedulerName, e.Name, err)
		}
		p.add(plugin, max(e.Weight, 1))
	}
	switch {
	case p.sort == nil:
		return nil, fmt.Errorf("profile %s: no queue sort plugin is enabled", c.SchedulerName)
	case len(p.bind) == 0:
		return nil, fmt.Errorf("profile %s: at least one bind plugin is needed", c.SchedulerName)
	}
	return p, nil
}
