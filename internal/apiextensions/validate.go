package apiextensions

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"

	"proa/internal/apis"
	"proa/internal/apis/expression"
)

// validators judge objects of one version.
type validators struct {
	sound  *sound
	object validation.SchemaValidator
	status validation.SchemaValidator // of the status alone; nil without a schema for it
	rules  *cel.Validator             // nil when the schema has none
}

func (v *version) newValidators() (*validators, error) {
	out := &validators{sound: newSound(v.declared)}
	var err error
	if out.object, _, err = validation.NewSchemaValidator(v.declared); err != nil {
		return nil, err
	}
	if v.hasStatus() && v.declared != nil {
		if status, ok := v.declared.Properties["status"]; ok {
			if out.status, _, err = validation.NewSchemaValidator(&status); err != nil {
				return nil, err
			}
		}
	}
	expression.Environment()
	out.rules = cel.NewValidator(v.schema, true, celconfig.PerCallLimit)
	return out, nil
}

// validate returns what is wrong with a new object. Rules are not tried on an
// object whose shape is wrong.
func (v *version) validate(ctx context.Context, obj apis.Object) field.ErrorList {
	u, check, errs := v.begin(obj)
	if len(errs) > 0 {
		return errs
	}
	if !check.sound.holds(u.Object) {
		errs = append(errs, validation.ValidateCustomResource(nil, u.Object, check.object)...)
	}
	errs = append(errs, v.validateScale(u)...)
	errs = append(errs, v.validateEmbedded(ctx, u)...)
	if !v.shape.uniqueItems(u.Object) {
		errs = append(errs, listtype.ValidateListSetsAndMaps(nil, v.schema, u.Object)...)
	}
	return check.applyRules(ctx, errs, v, u, nil)
}

// validateUpdate returns what is wrong with an object that replaces another. A
// value that was already wrong and did not change is let pass (KEP-4008).
func (v *version) validateUpdate(ctx context.Context, obj, before apis.Object) field.ErrorList {
	u, check, errs := v.begin(obj)
	if len(errs) > 0 {
		return errs
	}
	old := before.(*unstructured.Unstructured)
	same := common.NewCorrelatedObject(u.Object, old.Object, &model.Structural{Structural: v.schema})
	if !check.sound.holds(u.Object) {
		errs = append(errs, validation.ValidateCustomResourceUpdate(nil, u.Object, old.Object, check.object, validation.WithRatcheting(same))...)
	}
	errs = append(errs, v.validateScale(u)...)
	errs = append(errs, v.validateEmbedded(ctx, u)...)
	errs = append(errs, v.validateLists(u, old)...)
	return check.applyRules(ctx, errs, v, u, old, cel.WithRatcheting(same))
}

// validateStatus is validateUpdate for a write of the status subresource.
func (v *version) validateStatus(ctx context.Context, obj, before apis.Object) field.ErrorList {
	u, check, errs := v.begin(obj)
	if len(errs) > 0 {
		return errs
	}
	old := before.(*unstructured.Unstructured)
	same := common.NewCorrelatedObject(u.Object, old.Object, &model.Structural{Structural: v.schema})
	if status, ok := u.Object["status"]; ok {
		errs = append(errs, validation.ValidateCustomResourceUpdate(field.NewPath("status"), status, old.Object["status"], check.status,
			validation.WithRatcheting(same.Key("status")))...)
	}
	errs = append(errs, v.validateScaleStatus(u)...)
	errs = append(errs, v.validateLists(u, old)...)
	return check.applyRules(ctx, errs, v, u, old, cel.WithRatcheting(same))
}

// begin checks kind and version, without which nothing else makes sense.
func (v *version) begin(obj apis.Object) (*unstructured.Unstructured, *validators, field.ErrorList) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, nil, field.ErrorList{field.Invalid(field.NewPath(""), obj, fmt.Sprintf("has type %T. Must be a pointer to an Unstructured type", obj))}
	}
	check, err := v.validators()
	if err != nil {
		return nil, nil, field.ErrorList{field.InternalError(nil, err)}
	}
	var errs field.ErrorList
	if kind := u.GetKind(); kind != v.kind.Kind {
		errs = append(errs, field.Invalid(field.NewPath("kind"), kind, "must be "+v.kind.Kind))
	}
	if got, want := u.GetAPIVersion(), v.kind.GroupVersion().String(); got != want {
		errs = append(errs, field.Invalid(field.NewPath("apiVersion"), got, "must be "+want))
	}
	return u, check, errs
}

// validateEmbedded checks the metadata of the resources inside an object.
func (v *version) validateEmbedded(ctx context.Context, u *unstructured.Unstructured) field.ErrorList {
	if !v.shape.embeds {
		return nil
	}
	return objectmeta.Validate(ctx, nil, u.Object, v.schema, false)
}

func (v *version) validateLists(u, old *unstructured.Unstructured) field.ErrorList {
	if v.shape.uniqueItems(u.Object) {
		return nil
	}
	errs := listtype.ValidateListSetsAndMaps(nil, v.schema, u.Object)
	if len(errs) > 0 && len(listtype.ValidateListSetsAndMaps(nil, v.schema, old.Object)) > 0 {
		return nil
	}
	return errs
}

var blocking = []field.ErrorType{
	field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid,
}

const rulesSkipped = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"

func (c *validators) applyRules(ctx context.Context, errs field.ErrorList, v *version, u, old *unstructured.Unstructured, options ...cel.Option) field.ErrorList {
	if c.rules == nil {
		return errs
	}
	for _, err := range errs {
		if slices.Contains(blocking, err.Type) {
			return append(errs, field.Invalid(nil, nil, rulesSkipped))
		}
	}
	var before any
	if old != nil {
		before = old.Object
	}
	broken, _ := c.rules.Validate(ctx, nil, v.schema, u.Object, before, celconfig.RuntimeCELCostBudget, options...)
	return append(errs, broken...)
}

func (v *version) validateScale(u *unstructured.Unstructured) field.ErrorList {
	s := v.scale()
	if s == nil {
		return nil
	}
	return append(validateReplicas(u, s.SpecReplicasPath), v.validateScaleStatus(u)...)
}

func (v *version) validateScaleStatus(u *unstructured.Unstructured) field.ErrorList {
	s := v.scale()
	if s == nil {
		return nil
	}
	errs := validateReplicas(u, s.StatusReplicasPath)
	if s.LabelSelectorPath != nil {
		value, _, err := unstructured.NestedString(u.Object, pathOf(*s.LabelSelectorPath)...)
		if err != nil {
			errs = append(errs, field.Invalid(field.NewPath(*s.LabelSelectorPath), value, err.Error()))
		}
	}
	return errs
}

func validateReplicas(u *unstructured.Unstructured, path string) field.ErrorList {
	n, _, err := unstructured.NestedInt64(u.Object, pathOf(path)...)
	switch at := field.NewPath(path); {
	case err != nil:
		return field.ErrorList{field.Invalid(at, n, err.Error())}
	case n < 0:
		return field.ErrorList{field.Invalid(at, n, "should be a non-negative integer")}
	case n > math.MaxInt32:
		return field.ErrorList{field.Invalid(at, n, fmt.Sprintf("should be less than or equal to %v", math.MaxInt32))}
	}
	return nil
}

// pathOf splits a simple JSON path (.spec.replicas).
func pathOf(jsonPath string) []string { return strings.Split(strings.TrimPrefix(jsonPath, "."), ".") }

var standardFinalizers = []string{metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents, string(corev1.FinalizerKubernetes)}

// finalizerWarnings tells of new finalizers whose names may collide.
func finalizerWarnings(obj, old apis.Object) []string {
	added := obj.GetFinalizers()
	if old != nil {
		had := old.GetFinalizers()
		added = slices.DeleteFunc(slices.Clone(added), func(f string) bool { return slices.Contains(had, f) })
	}
	var texts []string
	slices.Sort(added)
	for _, name := range slices.Compact(added) {
		for _, text := range utilvalidation.IsQualifiedName(name) {
			texts = append(texts, fmt.Sprintf("metadata.finalizers: %q: %s", name, text))
		}
		switch {
		case strings.Contains(name, "/") || slices.Contains(standardFinalizers, name):
		case strings.Contains(name, "."):
			texts = append(texts, fmt.Sprintf("metadata.finalizers: %q: prefer a domain-qualified finalizer name including a path (/) to avoid accidental conflicts with other finalizer writers", name))
		default:
			texts = append(texts, fmt.Sprintf("metadata.finalizers: %q: prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers", name))
		}
	}
	return texts
}
