package config

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"
)

const (
	defaultExtenderTimeout = 5 * time.Second
	defaultBindTimeout     = 600 // seconds
)

func setDefaults(c *configv1.KubeSchedulerConfiguration) error {
	if len(c.Profiles) == 0 {
		c.Profiles = []configv1.KubeSchedulerProfile{{}}
	}
	if len(c.Profiles) == 1 && c.Profiles[0].SchedulerName == nil {
		c.Profiles[0].SchedulerName = ptr.To(corev1.DefaultSchedulerName)
	}
	for i := range c.Profiles {
		for j := range c.Profiles[i].PluginConfig {
			if err := defaultArgs(&c.Profiles[i].PluginConfig[j]); err != nil {
				return err
			}
		}
	}
	setDefault(&c.PercentageOfNodesToScore, 0)
	setDefault(&c.PodInitialBackoffSeconds, 1)
	setDefault(&c.PodMaxBackoffSeconds, 10)
	if c.LeaderElection.ResourceLock == "" {
		c.LeaderElection.ResourceLock = "leases"
	}
	for i := range c.Extenders {
		if c.Extenders[i].HTTPTimeout.Duration == 0 {
			c.Extenders[i].HTTPTimeout = metav1.Duration{Duration: defaultExtenderTimeout}
		}
	}
	return nil
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// defaultArgs completes the arguments of one plugin. Those of plugins that are not
// upstream's stay raw.
func defaultArgs(p *configv1.PluginConfig) error {
	if p.Args.Object == nil && len(p.Args.Raw) > 0 {
		gvk := configv1.SchemeGroupVersion.WithKind(p.Name + "Args")
		obj, _, err := strict.Decode(p.Args.Raw, &gvk, nil)
		if runtime.IsNotRegisteredError(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("decoding args for plugin %s: %w", p.Name, err)
		}
		p.Args.Object = obj
	}
	switch args := p.Args.Object.(type) {
	case *configv1.DefaultPreemptionArgs:
		setDefault(&args.MinCandidateNodesPercentage, 10)
		setDefault(&args.MinCandidateNodesAbsolute, 100)
	case *configv1.DynamicResourcesArgs:
		setDefault(&args.FilterTimeout, metav1.Duration{Duration: configv1.DynamicResourcesFilterTimeoutDefault})
		setDefault(&args.BindingTimeout, metav1.Duration{Duration: configv1.DynamicResourcesBindingTimeoutDefault})
	case *configv1.InterPodAffinityArgs:
		setDefault(&args.HardPodAffinityWeight, 1)
	case *configv1.VolumeBindingArgs:
		setDefault(&args.BindTimeoutSeconds, defaultBindTimeout)
	case *configv1.NodeResourcesBalancedAllocationArgs:
		args.Resources = withWeights(args.Resources)
	case *configv1.PodTopologySpreadArgs:
		if args.DefaultingType == "" {
			args.DefaultingType = configv1.SystemDefaulting
		}
	case *configv1.NodeResourcesFitArgs:
		if args.ScoringStrategy == nil {
			args.ScoringStrategy = &configv1.ScoringStrategy{Type: configv1.LeastAllocated}
		}
		args.ScoringStrategy.Resources = withWeights(args.ScoringStrategy.Resources)
	}
	return nil
}

func withWeights(resources []configv1.ResourceSpec) []configv1.ResourceSpec {
	if len(resources) == 0 {
		return []configv1.ResourceSpec{{Name: string(corev1.ResourceCPU), Weight: 1}, {Name: string(corev1.ResourceMemory), Weight: 1}}
	}
	for i := range resources {
		if resources[i].Weight == 0 {
			resources[i].Weight = 1
		}
	}
	return resources
}
