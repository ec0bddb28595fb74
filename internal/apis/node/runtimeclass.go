// Package node declares the kinds of the node.k8s.io group, v1.
package node

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/core"
	"proa/internal/apis/validate"
)

// Resources returns every kind of the group.
func Resources() []*apis.Resource { return []*apis.Resource{&RuntimeClasses} }

// RuntimeClasses is the node.k8s.io/v1 runtimeclasses resource.
var RuntimeClasses = apis.Resource{
	Group: "node.k8s.io", Version: "v1", Kind: "RuntimeClass", Plural: "runtimeclasses", Scope: apis.Cluster,
	ChecksNameOnUpdate: true,
	AnyFinalizer:       true,
	New:                apis.New[nodev1.RuntimeClass], NewList: apis.NewList[nodev1.RuntimeClassList],
	NoGeneration:        true,
	ConditionalUpdate:   true,
	AllowCreateOnUpdate: true,
	Validate: apis.Check(func(c *nodev1.RuntimeClass) field.ErrorList {
		return append(validateHandler(c), validateClass(c)...)
	}),
	ValidateUpdate: apis.CheckUpdate(func(c, old *nodev1.RuntimeClass) field.ErrorList {
		errs := append(validateHandler(c), validateClass(c)...)
		return append(errs, validate.Immutable(field.NewPath("handler"), c.Handler, old.Handler)...)
	}),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Handler", "string", ""),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(c *nodev1.RuntimeClass, now time.Time) []any {
		return []any{c.Name, c.Handler, apis.AgeOf(c, now)}
	}),
}

func validateHandler(c *nodev1.RuntimeClass) field.ErrorList {
	at := field.NewPath("handler")
	if c.Handler == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	return validate.Label(at, c.Handler)
}

func validateClass(c *nodev1.RuntimeClass) field.ErrorList {
	var errs field.ErrorList
	if c.Overhead != nil {
		errs = append(errs, core.ValidateOverhead(field.NewPath("overhead"), c.Overhead.PodFixed)...)
	}
	if s := c.Scheduling; s != nil {
		path := field.NewPath("scheduling")
		errs = append(errs, validate.Labels(path.Child("nodeSelector"), s.NodeSelector)...)
		errs = append(errs, core.ValidateTolerations(path.Child("tolerations"), s.Tolerations)...)
		errs = append(errs, uniqueTolerations(path.Child("tolerations"), s.Tolerations)...)
	}
	return errs
}

func uniqueTolerations(path *field.Path, tolerations []corev1.Toleration) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, t := range tolerations {
		key := t.String()
		if seen[key] {
			errs = append(errs, field.Duplicate(path.Index(i), t))
		}
		seen[key] = true
	}
	return errs
}
