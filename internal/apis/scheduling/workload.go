package scheduling

import (
	"fmt"
	"time"

	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
)

// maxTemplateDepth is how deep composite templates of a Workload may nest.
const maxTemplateDepth = schedulingv1alpha3.WorkloadMaxTreeDepth

// Workloads is the scheduling.k8s.io/v1beta1 workloads resource (KEP-4671), also
// served as v1alpha3. Nearly all of its rules are markers of its types.
var Workloads = apis.Resource{
	Group: "scheduling.k8s.io", Version: "v1beta1", Kind: "Workload", Plural: "workloads", Gate: "GenericWorkload",
	ConditionalUpdate: true,
	New:               apis.New[schedulingv1beta1.Workload], NewList: apis.NewList[schedulingv1beta1.WorkloadList],
	NoGeneration: true,
	Also: []apis.Served{
		apis.ServedAs[schedulingv1beta1.Workload, schedulingv1alpha3.Workload, schedulingv1alpha3.WorkloadList]("scheduling.k8s.io", "v1alpha3", "Workload"),
	},
	Validate: apis.Check(validateWorkload),
	Columns:  []metav1.TableColumnDefinition{apis.NameColumn, apis.AgeColumn},
	Row: func(obj apis.Object, now time.Time) []any {
		return []any{obj.GetName(), apis.AgeOf(obj, now)}
	},
}

type composite = schedulingv1beta1.CompositePodGroupTemplate

// validateWorkload: template names are unique over the whole tree, which is not too
// deep, has groups of pods at its ends, and one priority.
func validateWorkload(w *schedulingv1beta1.Workload) field.ErrorList {
	path, s := field.NewPath("spec"), &w.Spec
	names := map[string]bool{}
	for _, g := range s.PodGroupTemplates {
		names[g.Name] = true
	}
	composites := path.Child("compositePodGroupTemplates")
	errs := validateNames(s.CompositePodGroupTemplates, names, composites)
	for i := range s.CompositePodGroupTemplates {
		if t := &s.CompositePodGroupTemplates[i]; depthOf(t) >= maxTemplateDepth {
			errs = append(errs, field.Invalid(composites.Index(i), t.CompositePodGroupTemplates, fmt.Sprintf("maximum template hierarchy depth is %d", maxTemplateDepth)))
		}
	}
	errs = append(errs, validatePriorities(s, path)...)
	return append(errs, validateChildren(s.CompositePodGroupTemplates, composites)...)
}

// validateNames refuses names of other lists; those of one list differ by a marker.
func validateNames(list []composite, names map[string]bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range list {
		if names[list[i].Name] {
			errs = append(errs, field.Duplicate(path.Index(i).Child("name"), list[i].Name))
		}
	}
	for i := range list {
		names[list[i].Name] = true
	}
	for i := range list {
		t, at := &list[i], path.Index(i)
		for j, g := range t.PodGroupTemplates {
			if names[g.Name] {
				errs = append(errs, field.Duplicate(at.Child("podGroupTemplates").Index(j).Child("name"), g.Name))
			}
		}
		for _, g := range t.PodGroupTemplates {
			names[g.Name] = true
		}
		errs = append(errs, validateNames(t.CompositePodGroupTemplates, names, at.Child("compositePodGroupTemplates"))...)
	}
	return errs
}

func depthOf(t *composite) int {
	depth := 0
	for i := range t.CompositePodGroupTemplates {
		depth = max(depth, depthOf(&t.CompositePodGroupTemplates[i]))
	}
	return depth + 1
}

// priority is how urgent a template says its pods are.
type priority struct {
	class string
	set   bool
	value int32
}

func priorityOf(class string, value *int32) priority {
	p := priority{class: class}
	if value != nil {
		p.set, p.value = true, *value
	}
	return p
}

// validatePriorities wants the whole tree to be equally urgent.
func validatePriorities(s *schedulingv1beta1.WorkloadSpec, path *field.Path) field.ErrorList {
	seen := map[priority]bool{}
	groups := func(list []schedulingv1beta1.PodGroupTemplate) {
		for i := range list {
			seen[priorityOf(list[i].PriorityClassName, list[i].Priority)] = true
		}
	}
	groups(s.PodGroupTemplates)
	if len(seen) > 1 {
		return field.ErrorList{field.Invalid(path, nil, "detected multiple priority configurations")}
	}
	var visit func(list []composite)
	visit = func(list []composite) {
		for i := range list {
			seen[priorityOf(list[i].PriorityClassName, list[i].Priority)] = true
			groups(list[i].PodGroupTemplates)
			visit(list[i].CompositePodGroupTemplates)
		}
	}
	visit(s.CompositePodGroupTemplates)
	if len(seen) > 1 {
		return field.ErrorList{field.Invalid(path, nil, "all priority and priorityClassName values must be identical, detected multiple values")}
	}
	return nil
}

// validateChildren refuses composite templates of nothing.
func validateChildren(list []composite, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range list {
		t, at := &list[i], path.Index(i)
		if len(t.PodGroupTemplates) == 0 && len(t.CompositePodGroupTemplates) == 0 {
			errs = append(errs, field.Invalid(at, t.Name, "must have at least one child PodGroupTemplate or CompositePodGroupTemplate"))
		}
		errs = append(errs, validateChildren(t.CompositePodGroupTemplates, at.Child("compositePodGroupTemplates"))...)
	}
	return errs
}

// PodGroups is the scheduling.k8s.io/v1beta1 podgroups resource, also served as
// v1alpha3.
var PodGroups = apis.Resource{
	Group: "scheduling.k8s.io", Version: "v1beta1", Kind: "PodGroup", Plural: "podgroups", Gate: "GenericWorkload",
	ConditionalUpdate: true,
	New:               apis.New[schedulingv1beta1.PodGroup], NewList: apis.NewList[schedulingv1beta1.PodGroupList],
	NoGeneration: true,
	Also: []apis.Served{
		apis.ServedAs[schedulingv1beta1.PodGroup, schedulingv1alpha3.PodGroup, schedulingv1alpha3.PodGroupList]("scheduling.k8s.io", "v1alpha3", "PodGroup"),
	},
	Default: apis.On(func(g *schedulingv1beta1.PodGroup) {
		if g.Spec.DisruptionMode == nil {
			g.Spec.DisruptionMode = &schedulingv1beta1.DisruptionMode{Single: &schedulingv1beta1.SingleDisruptionMode{}}
		}
	}),
	Subresources: []apis.Subresource{
		apis.Status(func(g, old *schedulingv1beta1.PodGroup) { g.Spec = old.Spec }, func(g, _ *schedulingv1beta1.PodGroup) field.ErrorList {
			return validateConditions(g.Status.Conditions)
		}),
	},
	PrepareCreate: apis.On(func(g *schedulingv1beta1.PodGroup) { g.Status = schedulingv1beta1.PodGroupStatus{} }),
	PrepareUpdate: apis.OnUpdate(func(g, old *schedulingv1beta1.PodGroup) { g.Status = old.Status }),
	Columns:       []metav1.TableColumnDefinition{apis.NameColumn, apis.AgeColumn},
	Row: func(obj apis.Object, now time.Time) []any {
		return []any{obj.GetName(), apis.AgeOf(obj, now)}
	},
}

// CompositePodGroups is the scheduling.k8s.io/v1alpha3 compositepodgroups
// resource (KEP-6012).
var CompositePodGroups = apis.Resource{
	Group: "scheduling.k8s.io", Version: "v1alpha3", Kind: "CompositePodGroup", Plural: "compositepodgroups", Gate: "CompositePodGroup",
	New: apis.New[schedulingv1alpha3.CompositePodGroup], NewList: apis.NewList[schedulingv1alpha3.CompositePodGroupList],
	NoGeneration: true,
	Default: apis.On(func(g *schedulingv1alpha3.CompositePodGroup) {
		if g.Spec.DisruptionMode == nil {
			g.Spec.DisruptionMode = &schedulingv1alpha3.CompositeDisruptionMode{Single: &schedulingv1alpha3.SingleCompositeDisruptionMode{}}
		}
	}),
	Subresources: []apis.Subresource{
		apis.Status(func(g, old *schedulingv1alpha3.CompositePodGroup) { g.Spec = old.Spec }, func(g, _ *schedulingv1alpha3.CompositePodGroup) field.ErrorList {
			return validateConditions(g.Status.Conditions)
		}),
	},
	PrepareCreate: apis.On(func(g *schedulingv1alpha3.CompositePodGroup) {
		g.Status = schedulingv1alpha3.CompositePodGroupStatus{}
	}),
	PrepareUpdate: apis.OnUpdate(func(g, old *schedulingv1alpha3.CompositePodGroup) { g.Status = old.Status }),
	Columns:       []metav1.TableColumnDefinition{apis.NameColumn, apis.AgeColumn},
	Row: func(obj apis.Object, now time.Time) []any {
		return []any{obj.GetName(), apis.AgeOf(obj, now)}
	},
}

func validateConditions(conditions []metav1.Condition) field.ErrorList {
	return metav1validation.ValidateConditions(conditions, field.NewPath("status", "conditions"))
}
