package config

import (
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"
)

// validate tells all that is wrong with a configuration whose defaults are set.
func validate(c *configv1.KubeSchedulerConfiguration) error {
	var errs field.ErrorList
	if ptr.Deref(c.LeaderElection.LeaderElect, true) && c.LeaderElection.ResourceLock != "leases" {
		errs = append(errs, field.Invalid(field.NewPath("leaderElection", "resourceLock"), c.LeaderElection.ResourceLock, `resourceLock value must be "leases"`))
	}
	if c.Parallelism != nil && *c.Parallelism <= 0 {
		errs = append(errs, field.Invalid(field.NewPath("parallelism"), *c.Parallelism, "should be an integer value greater than zero"))
	}
	errs = append(errs, validateProfiles(field.NewPath("profiles"), c.Profiles)...)
	errs = append(errs, validatePercentage(field.NewPath("percentageOfNodesToScore"), c.PercentageOfNodesToScore)...)
	if *c.PodInitialBackoffSeconds <= 0 {
		errs = append(errs, field.Invalid(field.NewPath("podInitialBackoffSeconds"), *c.PodInitialBackoffSeconds, "must be greater than 0"))
	}
	if *c.PodMaxBackoffSeconds < *c.PodInitialBackoffSeconds {
		errs = append(errs, field.Invalid(field.NewPath("podMaxBackoffSeconds"), *c.PodMaxBackoffSeconds, "must be greater than or equal to PodInitialBackoffSeconds"))
	}
	errs = append(errs, validateExtenders(field.NewPath("extenders"), c.Extenders)...)
	return errs.ToAggregate()
}

func validatePercentage(path *field.Path, percentage *int32) field.ErrorList {
	if p := ptr.Deref(percentage, 0); p < 0 || p > 100 {
		return field.ErrorList{field.Invalid(path, p, "not in valid range [0-100]")}
	}
	return nil
}

func validateProfiles(path *field.Path, profiles []configv1.KubeSchedulerProfile) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]int{}
	for i := range profiles {
		p, at := &profiles[i], path.Index(i)
		name := ptr.Deref(p.SchedulerName, "")
		if name == "" {
			errs = append(errs, field.Required(at.Child("schedulerName"), ""))
		}
		errs = append(errs, validatePercentage(at.Child("percentageOfNodesToScore"), p.PercentageOfNodesToScore)...)
		errs = append(errs, validatePluginConfig(at.Child("pluginConfig"), p.PluginConfig)...)
		if first, twice := seen[name]; twice {
			errs = append(errs, field.Duplicate(at.Child("schedulerName"), path.Index(first).Child("schedulerName")))
		}
		seen[name] = i
	}
	return append(errs, validateQueueSort(path, profiles)...)
}

// validateQueueSort: all profiles share one queue, so they must order it alike.
func validateQueueSort(path *field.Path, profiles []configv1.KubeSchedulerProfile) field.ErrorList {
	var errs field.ErrorList
	setOf := func(p *configv1.KubeSchedulerProfile) configv1.PluginSet {
		if p.Plugins == nil {
			return configv1.PluginSet{}
		}
		return p.Plugins.QueueSort
	}
	first, name := setOf(&profiles[0]), ""
	if n := len(first.Enabled); n > 0 {
		name = first.Enabled[0].Name
		if n > 1 {
			errs = append(errs, field.Invalid(path.Index(0).Child("plugins", "queueSort", "Enabled"), n, "only one queue sort plugin can be enabled"))
		}
	}
	args := argsOf(&profiles[0], name)
	for i := range profiles[1:] {
		p, at := &profiles[i+1], path.Index(i+1)
		if set := setOf(p); !equality.Semantic.DeepEqual(first, set) {
			errs = append(errs, field.Invalid(at.Child("plugins", "queueSort"), set, "has to match for all profiles"))
		}
		if theirs := argsOf(p, name); theirs != nil && !equality.Semantic.DeepEqual(args, theirs) {
			errs = append(errs, field.Invalid(at.Child("pluginConfig", "args"), theirs, "has to match for all profiles"))
		}
	}
	return errs
}

func argsOf(p *configv1.KubeSchedulerProfile, plugin string) *runtime.RawExtension {
	for i := range p.PluginConfig {
		if plugin != "" && p.PluginConfig[i].Name == plugin {
			return &p.PluginConfig[i].Args
		}
	}
	return nil
}

func validateExtenders(path *field.Path, extenders []configv1.Extender) field.ErrorList {
	var errs field.ErrorList
	binders := 0
	managed := map[string]struct{}{}
	for i := range extenders {
		e, at := &extenders[i], path.Index(i)
		if e.PrioritizeVerb != "" && e.Weight <= 0 {
			errs = append(errs, field.Invalid(at.Child("weight"), e.Weight, "must have a positive weight applied to it"))
		}
		if e.BindVerb != "" {
			binders++
		}
		for j, r := range e.ManagedResources {
			name := at.Child("managedResources").Index(j).Child("name")
			errs = append(errs, validateExtendedResource(name, r.Name)...)
			if _, twice := managed[r.Name]; twice {
				errs = append(errs, field.Invalid(name, r.Name, "duplicate extender managed resource name"))
			}
			managed[r.Name] = struct{}{}
		}
	}
	if binders > 1 {
		errs = append(errs, field.Invalid(path, fmt.Sprintf("found %d extenders implementing bind", binders), "only one extender can implement bind"))
	}
	return errs
}

func validateExtendedResource(path *field.Path, name string) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range validation.IsQualifiedName(name) {
		errs = append(errs, field.Invalid(path, name, msg))
	}
	if len(errs) == 0 && !isExtended(corev1.ResourceName(name)) {
		errs = append(errs, field.Invalid(path, name, "is an invalid extended resource name"))
	}
	return errs
}

// isExtended tells whether a resource is one that nodes are told to have.
func isExtended(name corev1.ResourceName) bool {
	s := string(name)
	native := !strings.Contains(s, "/") || strings.Contains(s, corev1.ResourceDefaultNamespacePrefix)
	return !native && !strings.HasPrefix(s, corev1.DefaultResourceRequestsPrefix) &&
		len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+s)) == 0
}

func validatePluginConfig(path *field.Path, list []configv1.PluginConfig) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]struct{}{}
	for i := range list {
		p, at := &list[i], path.Index(i)
		if _, twice := seen[p.Name]; twice {
			errs = append(errs, field.Duplicate(at, p.Name))
		}
		seen[p.Name] = struct{}{}
		if want, known := argTypes[p.Name]; known && p.Args.Object != nil && reflect.TypeOf(p.Args.Object) != want {
			errs = append(errs, field.Invalid(at.Child("args"), p.Args.Object, "has to match plugin args"))
			continue
		}
		errs = append(errs, validateArgs(at.Child("args"), p.Args.Object)...)
	}
	return errs
}
