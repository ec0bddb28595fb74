// Package apiextensions declares the kinds of the apiextensions.k8s.io group, v1.
package apiextensions

import (
	"context"
	"fmt"
	"slices"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/expression"
)

// Resources returns every kind of the group.
func Resources() []*apis.Resource { return []*apis.Resource{&CustomResourceDefinitions} }

// CustomResourceDefinitions is the apiextensions.k8s.io/v1 customresourcedefinitions resource.
var CustomResourceDefinitions = apis.Resource{
	Group: apiextensionsv1.GroupName, Version: "v1", Kind: "CustomResourceDefinition", Plural: "customresourcedefinitions",
	AnyFinalizer: true,
	ChecksMeta:   true,
	Short:        []string{"crd", "crds"}, Categories: []string{"api-extensions"}, Scope: apis.Cluster,
	New:               apis.New[apiextensionsv1.CustomResourceDefinition],
	NewList:           apis.NewList[apiextensionsv1.CustomResourceDefinitionList],
	ConditionalUpdate: true,
	Default:           apis.On(setDefaults),
	PrepareCreate: apis.On(func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Status = apiextensionsv1.CustomResourceDefinitionStatus{}
		storeVersion(d)
	}),
	PrepareUpdate: apis.OnUpdate(func(d, old *apiextensionsv1.CustomResourceDefinition) {
		d.Status = *old.Status.DeepCopy()
		storeVersion(d)
	}),
	Validate:       validate,
	ValidateUpdate: validateUpdate,
	Warnings:       apis.Warn(warnings),
	Columns:        columns,
	Row:            apis.Cells(row),
	Subresources: []apis.Subresource{{
		Name: "status", Verbs: []string{"get", "patch", "update"},
		PrepareUpdate: apis.OnUpdate(func(d, old *apiextensionsv1.CustomResourceDefinition) { d.Spec = old.Spec }),
		ValidateUpdate: func(ctx context.Context, obj, old apis.Object) field.ErrorList {
			return onInternal(obj, old, func(d, old *internal.CustomResourceDefinition) field.ErrorList {
				return validation.ValidateUpdateCustomResourceDefinitionStatus(ctx, d, old)
			})
		},
	}},
}

func setDefaults(d *apiextensionsv1.CustomResourceDefinition) {
	apiextensionsv1.SetDefaults_CustomResourceDefinition(d)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&d.Spec)
	if c := d.Spec.Conversion; c != nil && c.Webhook != nil && c.Webhook.ClientConfig != nil && c.Webhook.ClientConfig.Service != nil {
		apiextensionsv1.SetDefaults_ServiceReference(c.Webhook.ClientConfig.Service)
	}
}

// storeVersion notes that objects may be stored in the storage version from now on.
func storeVersion(d *apiextensionsv1.CustomResourceDefinition) {
	for _, v := range d.Spec.Versions {
		if v.Storage && !slices.Contains(d.Status.StoredVersions, v.Name) {
			d.Status.StoredVersions = append(d.Status.StoredVersions, v.Name)
		}
	}
}

func validate(ctx context.Context, obj apis.Object) field.ErrorList {
	return onInternal(obj, nil, func(d, _ *internal.CustomResourceDefinition) field.ErrorList {
		return validation.ValidateCustomResourceDefinition(ctx, d)
	})
}

func validateUpdate(ctx context.Context, obj, old apis.Object) field.ErrorList {
	return onInternal(obj, old, func(d, old *internal.CustomResourceDefinition) field.ErrorList {
		return validation.ValidateCustomResourceDefinitionUpdate(ctx, d, old)
	})
}

// onInternal calls check with the form that upstream's validation works on.
func onInternal(obj, old apis.Object, check func(d, old *internal.CustomResourceDefinition) field.ErrorList) field.ErrorList {
	expression.Environment() // defaults are tried on the rules
	d, err := toInternal(obj)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	var before *internal.CustomResourceDefinition
	if old != nil {
		if before, err = toInternal(old); err != nil {
			return field.ErrorList{field.InternalError(nil, err)}
		}
	}
	withoutHopelessSelectors(d)
	return check(d, before)
}

// withoutHopelessSelectors drops selectable fields of schemas that cannot be read:
// upstream's validation of them panics, and what is wrong with the schema is said in
// any case.
func withoutHopelessSelectors(d *internal.CustomResourceDefinition) {
	hopeless := func(v *internal.CustomResourceValidation) bool {
		if v == nil {
			return false // said, too
		}
		s, err := structural.NewStructural(v.OpenAPIV3Schema)
		return err != nil || s == nil
	}
	if len(d.Spec.SelectableFields) > 0 && hopeless(d.Spec.Validation) {
		d.Spec.SelectableFields = nil
	}
	for i := range d.Spec.Versions {
		if v := &d.Spec.Versions[i]; len(v.SelectableFields) > 0 && v.Schema != nil && v.Schema.OpenAPIV3Schema != nil && hopeless(v.Schema) {
			v.SelectableFields = nil
		}
	}
}

// toInternal works on a copy: the conversion rearranges what it shares.
func toInternal(obj apis.Object) (*internal.CustomResourceDefinition, error) {
	d, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return nil, fmt.Errorf("%T is no CustomResourceDefinition", obj)
	}
	out := &internal.CustomResourceDefinition{}
	err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(d.DeepCopy(), out, nil)
	return out, err
}
