package apiextensions

import (
	"fmt"
	"sync"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
)

// version is one version of a definition.
type version struct {
	definition *definition
	spec       *apiextensionsv1.CustomResourceDefinitionVersion
	kind       schema.GroupVersionKind
	declared   *internal.JSONSchemaProps
	schema     *structural.Structural // defaults pruned
	shape      *shape                 // of schema
	validators func() (*validators, error)
}

func newVersion(d *definition, spec *apiextensionsv1.CustomResourceDefinitionVersion) (*version, error) {
	v := &version{definition: d, spec: spec, kind: d.kind(spec.Name)}
	v.validators = sync.OnceValues(v.newValidators)
	if spec.Schema == nil || spec.Schema.OpenAPIV3Schema == nil {
		v.schema = &structural.Structural{Extensions: structural.Extensions{XPreserveUnknownFields: true}}
		v.shape = newShape(v.schema)
		return v, nil
	}
	v.declared = &internal.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(spec.Schema.OpenAPIV3Schema.DeepCopy(), v.declared, nil); err != nil {
		return nil, err
	}
	s, err := structural.NewStructural(v.declared)
	if err != nil {
		return nil, fmt.Errorf("schema is not structural: %w", err)
	}
	v.schema = s.DeepCopy() // what it shares with declared must not be pruned there
	if err := defaulting.PruneDefaults(v.schema); err != nil {
		return nil, fmt.Errorf("prune defaults: %w", err)
	}
	v.shape = newShape(v.schema)
	return v, nil
}

func (v *version) hasStatus() bool {
	return v.spec.Subresources != nil && v.spec.Subresources.Status != nil
}

func (v *version) scale() *apiextensionsv1.CustomResourceSubresourceScale {
	if v.spec.Subresources == nil {
		return nil
	}
	return v.spec.Subresources.Scale
}

// complete drops what the schema does not know and fills in its defaults.
func (v *version) complete(u *unstructured.Unstructured) {
	if v.shape.fitsObject(u.Object, true, true) {
		return
	}
	if !v.shape.fitsObject(u.Object, false, true) {
		pruning.Prune(u.Object, v.schema, true)
		defaulting.PruneNonNullableNullsWithoutDefaults(u.Object, v.schema)
	}
	defaulting.Default(u.Object, v.schema)
}

// completed is complete for an object that must not be changed.
func (v *version) completed(u *unstructured.Unstructured) *unstructured.Unstructured {
	if v.shape.fitsObject(u.Object, true, true) {
		return u
	}
	u = u.DeepCopy()
	v.complete(u)
	return u
}

// pruned drops what the schema does not know from an object that must not be changed.
func (v *version) pruned(u *unstructured.Unstructured) *unstructured.Unstructured {
	if v.shape.fitsObject(u.Object, false, true) {
		return u
	}
	u = u.DeepCopy()
	pruning.Prune(u.Object, v.schema, true)
	defaulting.PruneNonNullableNullsWithoutDefaults(u.Object, v.schema)
	return u
}

// load implements apis.Custom.Load.
func (v *version) load(obj apis.Object) (apis.Object, error) {
	u := obj.(*unstructured.Unstructured)
	from, err := v.definition.versionOf(u)
	if err != nil {
		return nil, err
	}
	u = from.completed(u)
	if from == v {
		return u, nil
	}
	converted, err := v.definition.converter.load(u, v)
	if err != nil {
		return nil, err
	}
	return v.pruned(converted), nil
}

// store implements apis.Custom.Store.
func (v *version) store(obj apis.Object) (apis.Object, error) {
	to := v.definition.storage
	if to == v {
		return obj, nil
	}
	converted, err := v.definition.converter.convert(obj.(*unstructured.Unstructured), to)
	if err != nil {
		return nil, err
	}
	return to.pruned(converted), nil
}

// coerce implements apis.Custom.Coerce.
func (v *version) coerce(u *unstructured.Unstructured, report bool) ([]string, error) {
	for _, name := range [...]string{"kind", "apiVersion"} {
		if value, ok := u.Object[name]; ok {
			if _, isString := value.(string); !isString {
				return nil, fmt.Errorf(".%s accessor error: %v is of the type %T, expected string", name, value, value)
			}
		}
	}
	var unknown []string
	if !plainMeta(u.Object["metadata"]) {
		meta, found, paths, err := objectmeta.GetObjectMetaWithOptions(u.Object, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: report})
		if err != nil {
			return nil, err
		}
		unknown = append(unknown, paths...)
		if found {
			if err := objectmeta.SetObjectMeta(u.Object, meta); err != nil {
				return nil, err
			}
		}
	}
	if !v.shape.fitsObject(u.Object, false, true) {
		options := structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: report}
		unknown = append(unknown, pruning.PruneWithOptions(u.Object, v.schema, true, options)...)
		defaulting.PruneNonNullableNullsWithoutDefaults(u.Object, v.schema)
	}
	if !v.shape.embeds {
		return unknown, nil
	}
	fieldErr, paths := objectmeta.CoerceWithOptions(nil, u.Object, v.schema, false, objectmeta.CoerceOptions{ReturnUnknownFieldPaths: report})
	if fieldErr != nil {
		return nil, fieldErr
	}
	return append(unknown, paths...), nil
}
