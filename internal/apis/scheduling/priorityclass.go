// Package scheduling declares the kinds of the scheduling.k8s.io group: v1, and the
// group scheduling of v1beta1 and v1alpha3, which is off by default.
package scheduling

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/validate"
)

// Resources returns every kind of the group.
func Resources() []*apis.Resource {
	return []*apis.Resource{&CompositePodGroups, &PodGroups, &PriorityClasses, &Workloads}
}

// HighestUserPriority is the highest value of a class that is not the system's.
const HighestUserPriority = int32(1_000_000_000)

// NodeCritical and ClusterCritical are the classes that every cluster has.
var (
	NodeCritical = &schedulingv1.PriorityClass{
		ObjectMeta:  metav1.ObjectMeta{Name: "system-node-critical"},
		Value:       2*HighestUserPriority + 1000,
		Description: "Used for system critical pods that must not be moved from their current node.",
	}
	ClusterCritical = &schedulingv1.PriorityClass{
		ObjectMeta:  metav1.ObjectMeta{Name: "system-cluster-critical"},
		Value:       2 * HighestUserPriority,
		Description: "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
	}
)

// PriorityClasses is the scheduling.k8s.io/v1 priorityclasses resource.
var PriorityClasses = apis.Resource{
	Group: "scheduling.k8s.io", Version: "v1", Kind: "PriorityClass", Plural: "priorityclasses", Short: []string{"pc"}, Scope: apis.Cluster,
	New: apis.New[schedulingv1.PriorityClass], NewList: apis.NewList[schedulingv1.PriorityClassList],
	FixedGeneration: true,
	Default: apis.On(func(c *schedulingv1.PriorityClass) {
		if c.PreemptionPolicy == nil {
			c.PreemptionPolicy = new(corev1.PreemptLowerPriority)
		}
	}),
	Validate:       apis.Check(validateClass),
	ValidateUpdate: apis.CheckUpdate(validateClassUpdate),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Value", "integer", schedulingv1.PriorityClass{}.SwaggerDoc()["value"]),
		apis.Column("Global-Default", "boolean", schedulingv1.PriorityClass{}.SwaggerDoc()["globalDefault"]),
		apis.AgeColumn,
		apis.Column("PreemptionPolicy", "string", schedulingv1.PriorityClass{}.SwaggerDoc()["preemptionPolicy"]),
	},
	Row: apis.Cells(func(c *schedulingv1.PriorityClass, now time.Time) []any {
		policy := ""
		if c.PreemptionPolicy != nil {
			policy = string(*c.PreemptionPolicy)
		}
		return []any{c.Name, int64(c.Value), c.GlobalDefault, apis.AgeOf(c, now), policy}
	}),
}

func validateClass(c *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if strings.HasPrefix(c.Name, "system-") {
		if err := knownSystemClass(c); err != nil {
			errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"), "priority class names with 'system-' prefix are reserved for system use only. error: "+err.Error()))
		}
	} else if c.Value > HighestUserPriority {
		errs = append(errs, field.Forbidden(field.NewPath("value"), fmt.Sprintf("maximum allowed value of a user defined priority is %v", HighestUserPriority)))
	}
	if p := c.PreemptionPolicy; p != nil {
		errs = append(errs, validate.RequiredListed(field.NewPath("preemptionPolicy"), *p, corev1.PreemptLowerPriority, corev1.PreemptNever)...)
	}
	return errs
}

func knownSystemClass(c *schedulingv1.PriorityClass) error {
	for _, known := range []*schedulingv1.PriorityClass{NodeCritical, ClusterCritical} {
		switch {
		case known.Name != c.Name:
		case known.Value != c.Value:
			return fmt.Errorf("value of %v PriorityClass must be %v", known.Name, known.Value)
		case known.GlobalDefault != c.GlobalDefault:
			return fmt.Errorf("globalDefault of %v PriorityClass must be %v", known.Name, known.GlobalDefault)
		default:
			return nil
		}
	}
	return fmt.Errorf("%v is not a known system priority class", c.Name)
}

func validateClassUpdate(c, old *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if c.Value != old.Value {
		errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
	}
	return append(errs, validate.Immutable(field.NewPath("preemptionPolicy"), c.PreemptionPolicy, old.PreemptionPolicy)...)
}
