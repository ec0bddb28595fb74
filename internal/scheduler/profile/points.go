package profile

import (
	"fmt"
	"slices"

	"proa/internal/scheduler/framework"
)

// Point is an extension point, by its name in KubeSchedulerConfiguration.
type Point string

const (
	PreEnqueue Point = "preEnqueue"
	QueueSort  Point = "queueSort"
	PreFilter  Point = "preFilter"
	Filter     Point = "filter"
	PostFilter Point = "postFilter"
	PreScore   Point = "preScore"
	Score      Point = "score"
	Reserve    Point = "reserve"
	Permit     Point = "permit"
	PreBind    Point = "preBind"
	Bind       Point = "bind"
	PostBind   Point = "postBind"
)

// interfaces are what upstream calls the plugins of a point in its messages.
var interfaces = map[Point]string{
	PreEnqueue: "PreEnqueuePlugin", QueueSort: "QueueSortPlugin", PreFilter: "PreFilterPlugin", Filter: "FilterPlugin",
	PostFilter: "PostFilterPlugin", PreScore: "PreScorePlugin", Score: "ScorePlugin", Reserve: "ReservePlugin",
	Permit: "PermitPlugin", PreBind: "PreBindPlugin", Bind: "BindPlugin", PostBind: "PostBindPlugin",
}

// All, as a disabled name, stands for every plugin.
const All = "*"

// Set departs at one extension point from what the plugins of the profile take
// part in: it adds plugins, gives them another place or weight, or leaves them out.
type Set struct {
	Enabled  []Enabled
	Disabled []string
}

// made is a plugin of the profile, with its bit in the skip sets.
type made struct {
	plugin framework.Plugin
	bit    uint64
}

// at is a plugin at one extension point.
type at[T any] struct {
	plugin T
	bit    uint64
	weight int64
	calls  Counter
}

// expand lists the plugins of one extension point: first those that are named for
// the point and are also plugins of the profile at large, then the others at
// large, then the others of the point.
func expand[T framework.Plugin](c *Config, point Point, all map[string]made) ([]at[T], error) {
	set := c.Points[point]
	var own, large, others []at[T]
	named := map[string]struct{}{}
	if !slices.Contains(set.Disabled, All) {
		var err error
		if large, err = atLarge[T](c, point, set, all); err != nil {
			return nil, err
		}
	}
	for _, e := range set.Enabled {
		m, ok := all[e.Name]
		if !ok {
			return nil, fmt.Errorf("%s %q does not exist", interfaces[point], e.Name)
		}
		x, ok := m.plugin.(T)
		if !ok {
			return nil, fmt.Errorf("plugin %q does not extend %s plugin", e.Name, interfaces[point])
		}
		if _, twice := named[e.Name]; twice {
			return nil, fmt.Errorf("plugin %q already registered as %q", e.Name, interfaces[point])
		}
		named[e.Name] = struct{}{}
		entry := at[T]{plugin: x, bit: m.bit, weight: max(e.Weight, 1)}
		if i := slices.IndexFunc(large, func(l at[T]) bool { return l.bit == m.bit }); i >= 0 {
			own, large = append(own, entry), slices.Delete(large, i, i+1)
			continue
		}
		others = append(others, entry)
	}
	return slices.Concat(own, large, others), nil
}

// atLarge are the profile's plugins that have the interface of a point.
func atLarge[T framework.Plugin](c *Config, point Point, set Set, all map[string]made) ([]at[T], error) {
	var list []at[T]
	for _, e := range c.Plugins {
		m, ok := all[e.Name]
		if !ok {
			return nil, fmt.Errorf("%s %q does not exist", interfaces[PreFilter], e.Name)
		}
		x, ok := m.plugin.(T)
		if !ok || slices.Contains(set.Disabled, e.Name) {
			continue
		}
		if slices.ContainsFunc(list, func(l at[T]) bool { return l.bit == m.bit }) {
			return nil, fmt.Errorf("plugin %q already registered as %q", e.Name, interfaces[point])
		}
		list = append(list, at[T]{plugin: x, bit: m.bit, weight: max(e.Weight, 1)})
	}
	return list, nil
}

// fill sets a list of the profile; errs collects what is wrong with it.
func fill[T framework.Plugin](into *[]at[T], c *Config, point Point, all map[string]made, errs *[]error) {
	list, err := expand[T](c, point, all)
	if err != nil {
		*errs = append(*errs, err)
	}
	*into = list
}

// plain is a list whose plugins have neither weight nor skip bit.
func plain[T framework.Plugin](into *[]T, c *Config, point Point, all map[string]made, errs *[]error) {
	var list []at[T]
	fill(&list, c, point, all, errs)
	for _, x := range list {
		*into = append(*into, x.plugin)
	}
}

// names lists the plugins that the profile names anywhere, each once.
func (c *Config) names() []string {
	var found []string
	take := func(list []Enabled) {
		for _, e := range list {
			if !slices.Contains(found, e.Name) {
				found = append(found, e.Name)
			}
		}
	}
	take(c.Plugins)
	for _, point := range []Point{PreEnqueue, QueueSort, PreFilter, Filter, PostFilter, PreScore, Score, Reserve, Permit, PreBind, Bind, PostBind} {
		take(c.Points[point].Enabled)
	}
	return found
}
