package scheduling

import (
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
	New: apis.New[schedulingv1beta1.Workload], NewList: apis.NewList[schedulingv1beta1.WorkloadList],
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

// validateWorkload: template names are unique over the whole tree, and the tree
// is not too deep.
func validateWorkload(w *schedulingv1beta1.Workload) field.ErrorList {
	names := map[string]bool{}
	var errs field.ErrorList
	seen := func(name string, path *field.Path) {
		if names[name] {
			errs = append(errs, field.Duplicate(path.Child("name"), name))
		}
		names[name] = true
	}
	var visit func(list []schedulingv1beta1.CompositePodGroupTemplate, path *field.Path, depth int)
	groups := func(list []schedulingv1beta1.PodGroupTemplate, path *field.Path) {
		for i := range list {
			seen(list[i].Name, path.Index(i))
		}
	}
	visit = func(list []schedulingv1beta1.CompositePodGroupTemplate, path *field.Path, depth int) {
		if depth > maxTemplateDepth-1 && len(list) > 0 {
			errs = append(errs, field.TooMany(path, depth, maxTemplateDepth-1))
			return
		}
		for i := range list {
			t, at := &list[i], path.Index(i)
			seen(t.Name, at)
			if len(t.PodGroupTemplates) == 0 && len(t.CompositePodGroupTemplates) == 0 {
				errs = append(errs, field.Required(at, "at least one of podGroupTemplates or compositePodGroupTemplates must be set"))
			}
			groups(t.PodGroupTemplates, at.Child("podGroupTemplates"))
			visit(t.CompositePodGroupTemplates, at.Child("compositePodGroupTemplates"), depth+1)
		}
	}
	visit(w.Spec.CompositePodGroupTemplates, field.NewPath("spec", "compositePodGroupTemplates"), 1)
	return errs
}

// PodGroups is the scheduling.k8s.io/v1beta1 podgroups resource, also served as
// v1alpha3.
var PodGroups = apis.Resource{
	Group: "scheduling.k8s.io", Version: "v1beta1", Kind: "PodGroup", Plural: "podgroups", Gate: "GenericWorkload",
	New: apis.New[schedulingv1beta1.PodGroup], NewList: apis.NewList[schedulingv1beta1.PodGroupList],
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
