package config

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"

	"proa/internal/scheduler/plugins/defaultpreemption"
	"proa/internal/scheduler/plugins/dynamicresources"
	"proa/internal/scheduler/plugins/interpodaffinity"
	"proa/internal/scheduler/plugins/nodeaffinity"
	"proa/internal/scheduler/plugins/noderesources"
	"proa/internal/scheduler/plugins/podtopologyspread"
	"proa/internal/scheduler/plugins/volumebinding"
	"proa/internal/scheduler/profile"
)

// settings turns a complete and valid configuration into what the scheduler takes.
func settings(c *configv1.KubeSchedulerConfiguration) Settings {
	s := Settings{
		Extenders:      slices.Clone(c.Extenders),
		InitialBackoff: time.Duration(*c.PodInitialBackoffSeconds) * time.Second,
		MaxBackoff:     time.Duration(*c.PodMaxBackoffSeconds) * time.Second,
		Parallelism:    int(ptr.Deref(c.Parallelism, 0)),
		Client:         c.ClientConnection,
		Election:       c.LeaderElection,
	}
	// One that may be left out is asked last, when the others have narrowed the nodes.
	slices.SortStableFunc(s.Extenders, func(a, b configv1.Extender) int {
		switch {
		case a.Ignorable == b.Ignorable:
			return 0
		case b.Ignorable:
			return -1
		}
		return 1
	})
	for i := range c.Profiles {
		s.Profiles = append(s.Profiles, profileOf(&c.Profiles[i], *c.PercentageOfNodesToScore, ignoredByScheduler(c.Extenders)))
	}
	return s
}

func profileOf(p *configv1.KubeSchedulerProfile, percentage int32, ignored []string) profile.Config {
	made := profile.Config{
		SchedulerName:            *p.SchedulerName,
		PercentageOfNodesToScore: int(ptr.Deref(p.PercentageOfNodesToScore, percentage)),
		Plugins:                  profile.DefaultPlugins(),
		Points:                   map[profile.Point]profile.Set{},
		Args:                     map[string]any{},
	}
	if p.Plugins != nil {
		made.Plugins = merge(made.Plugins, p.Plugins.MultiPoint)
		for point, set := range pointsOf(p.Plugins) {
			if len(set.Enabled)+len(set.Disabled) > 0 {
				made.Points[point] = profile.Set{Enabled: enabled(set.Enabled), Disabled: names(set.Disabled)}
			}
		}
	}
	for i := range p.PluginConfig {
		if args := argsFor(&p.PluginConfig[i]); args != nil {
			made.Args[p.PluginConfig[i].Name] = args
		}
	}
	if len(ignored) > 0 {
		fit, ok := made.Args[noderesources.FitName].(*noderesources.FitArgs)
		if !ok {
			fit = &noderesources.FitArgs{}
			made.Args[noderesources.FitName] = fit
		}
		fit.IgnoredResources = append(fit.IgnoredResources, ignored...)
	}
	return made
}

// ignoredByScheduler are the resources that extenders count themselves.
func ignoredByScheduler(extenders []configv1.Extender) []string {
	var ignored []string
	for i := range extenders {
		for _, r := range extenders[i].ManagedResources {
			if r.IgnoredByScheduler {
				ignored = append(ignored, r.Name)
			}
		}
	}
	return ignored
}

func pointsOf(p *configv1.Plugins) map[profile.Point]configv1.PluginSet {
	return map[profile.Point]configv1.PluginSet{
		profile.PreEnqueue: p.PreEnqueue, profile.QueueSort: p.QueueSort, profile.PreFilter: p.PreFilter,
		profile.Filter: p.Filter, profile.PostFilter: p.PostFilter, profile.PreScore: p.PreScore, profile.Score: p.Score,
		profile.Reserve: p.Reserve, profile.Permit: p.Permit, profile.PreBind: p.PreBind, profile.Bind: p.Bind,
		profile.PostBind: p.PostBind,
	}
}

// merge applies a set to the default plugins: those disabled go, those named
// again get the new weight in their place, the rest is appended.
func merge(defaults []profile.Enabled, set configv1.PluginSet) []profile.Enabled {
	disabled, added := names(set.Disabled), enabled(set.Enabled)
	merged := []profile.Enabled{}
	replaced := map[int]struct{}{}
	for _, d := range defaults {
		if slices.Contains(disabled, profile.All) || slices.Contains(disabled, d.Name) {
			continue
		}
		for i, e := range slices.Backward(added) {
			if e.Name == d.Name {
				d = e
				replaced[i] = struct{}{}
				break
			}
		}
		merged = append(merged, d)
	}
	for i, e := range added {
		if _, ok := replaced[i]; !ok {
			merged = append(merged, e)
		}
	}
	return merged
}

func enabled(plugins []configv1.Plugin) []profile.Enabled {
	var list []profile.Enabled
	for _, p := range plugins {
		list = append(list, profile.Enabled{Name: p.Name, Weight: int64(ptr.Deref(p.Weight, 0))})
	}
	return list
}

func names(plugins []configv1.Plugin) []string {
	var list []string
	for _, p := range plugins {
		list = append(list, p.Name)
	}
	return list
}

// argsFor converts the arguments of upstream's plugins; others get theirs raw.
func argsFor(p *configv1.PluginConfig) any {
	switch a := p.Args.Object.(type) {
	case *configv1.DefaultPreemptionArgs:
		return &defaultpreemption.Args{
			MinCandidateNodesPercentage: ptr.To(int(*a.MinCandidateNodesPercentage)),
			MinCandidateNodesAbsolute:   ptr.To(int(*a.MinCandidateNodesAbsolute)),
		}
	case *configv1.DynamicResourcesArgs:
		return &dynamicresources.Args{FilterTimeout: &a.FilterTimeout.Duration, BindingTimeout: &a.BindingTimeout.Duration}
	case *configv1.InterPodAffinityArgs:
		return &interpodaffinity.Args{
			HardPodAffinityWeight:              ptr.To(int64(*a.HardPodAffinityWeight)),
			IgnorePreferredTermsOfExistingPods: a.IgnorePreferredTermsOfExistingPods,
		}
	case *configv1.NodeAffinityArgs:
		return &nodeaffinity.Args{AddedAffinity: a.AddedAffinity}
	case *configv1.NodeResourcesBalancedAllocationArgs:
		return &noderesources.BalancedArgs{Resources: weighted(a.Resources)}
	case *configv1.NodeResourcesFitArgs:
		return &noderesources.FitArgs{
			IgnoredResources:      slices.Clone(a.IgnoredResources),
			IgnoredResourceGroups: a.IgnoredResourceGroups,
			Strategy:              strategyOf(a.ScoringStrategy),
		}
	case *configv1.PodTopologySpreadArgs:
		if a.DefaultingType == configv1.SystemDefaulting {
			return &podtopologyspread.Args{}
		}
		return &podtopologyspread.Args{DefaultConstraints: append([]corev1.TopologySpreadConstraint{}, a.DefaultConstraints...)}
	case *configv1.VolumeBindingArgs:
		return &volumebinding.Args{BindTimeout: ptr.To(time.Duration(*a.BindTimeoutSeconds) * time.Second)}
	}
	if len(p.Args.Raw) > 0 {
		return &p.Args
	}
	return nil
}

func strategyOf(s *configv1.ScoringStrategy) noderesources.Strategy {
	made := noderesources.Strategy{Type: noderesources.StrategyType(s.Type), Resources: weighted(s.Resources)}
	if s.RequestedToCapacityRatio != nil {
		for _, point := range s.RequestedToCapacityRatio.Shape {
			made.Shape = append(made.Shape, noderesources.ShapePoint{Utilization: int64(point.Utilization), Score: int64(point.Score)})
		}
	}
	return made
}

func weighted(resources []configv1.ResourceSpec) []noderesources.Weighted {
	var list []noderesources.Weighted
	for _, r := range resources {
		list = append(list, noderesources.Weighted{Name: corev1.ResourceName(r.Name), Weight: r.Weight})
	}
	return list
}
