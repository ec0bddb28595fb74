// Package apiextensions makes kinds of CustomResourceDefinitions. A definition
// whose names are accepted becomes the same Resource value that a built-in kind
// is, put into the catalogue while the server runs: requests, watches, discovery
// and the controllers treat both alike.
//
// What a schema means (structure, pruning, defaults, rules in CEL) is upstream's
// code; this package decides when it runs and keeps it from running in vain.
// Which definitions are accepted, established or finished is the matter of
// controllers/customresource.
package apiextensions

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"sort"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilversion "k8s.io/apimachinery/pkg/version"

	"proa/internal/apis"
	"proa/internal/store/backend"
)

// definition is one state of a CustomResourceDefinition, compiled.
type definition struct {
	object    *apiextensionsv1.CustomResourceDefinition // read-only
	state     string
	versions  map[string]*version
	storage   *version
	converter converter
	lifetime  context.Context
	end       context.CancelFunc
}

// served reports whether requests for a definition's kind are answered.
func served(d *apiextensionsv1.CustomResourceDefinition) bool {
	return conditionTrue(d, apiextensionsv1.NamesAccepted) || conditionTrue(d, apiextensionsv1.Established)
}

func conditionTrue(d *apiextensionsv1.CustomResourceDefinition, t apiextensionsv1.CustomResourceDefinitionConditionType) bool {
	for i := range d.Status.Conditions {
		if c := &d.Status.Conditions[i]; c.Type == t {
			return c.Status == apiextensionsv1.ConditionTrue
		}
	}
	return false
}

func terminating(d *apiextensionsv1.CustomResourceDefinition) bool {
	return d.DeletionTimestamp != nil || conditionTrue(d, apiextensionsv1.Terminating)
}

// stateOf names everything in a definition that its kind is made of.
func stateOf(d *apiextensionsv1.CustomResourceDefinition) string {
	names := fnv.New64a()
	fmt.Fprintf(names, "%q", d.Status.AcceptedNames)
	return fmt.Sprintf("%s.%d.%x.%t", d.UID, d.Generation, names.Sum64(), terminating(d))
}

// compile prepares every version. What is costly (validators, rules, merge
// schemas) is made when it is first needed.
func compile(object *apiextensionsv1.CustomResourceDefinition, services backend.Resolver) (*definition, error) {
	d := &definition{object: object, state: stateOf(object), versions: map[string]*version{}}
	for i := range object.Spec.Versions {
		v, err := newVersion(d, &object.Spec.Versions[i])
		if err != nil {
			return nil, fmt.Errorf("version %s: %w", object.Spec.Versions[i].Name, err)
		}
		d.versions[v.spec.Name] = v
		if v.spec.Storage {
			d.storage = v
		}
	}
	if d.storage == nil {
		return nil, fmt.Errorf("no version is the storage version")
	}
	d.lifetime, d.end = context.WithCancel(context.Background())
	var err error
	if d.converter, err = newConverter(d, services); err != nil {
		d.end()
		return nil, err
	}
	return d, nil
}

// resource is the definition's kind in its main version, which is the storage
// version where that is served. It is nil when no version is.
func (d *definition) resource() *apis.Resource {
	var list []*version
	for _, v := range d.versions {
		if v.spec.Served {
			list = append(list, v)
		}
	}
	if len(list) == 0 && terminating(d.object) {
		list = append(list, d.storage) // or else nobody could delete the objects
	}
	if len(list) == 0 {
		return nil
	}
	sort.Slice(list, func(i, j int) bool {
		if a, b := list[i] == d.storage, list[j] == d.storage; a != b {
			return a
		}
		return utilversion.CompareKubeAwareVersionStrings(list[i].spec.Name, list[j].spec.Name) > 0
	})
	main := list[0].resource()
	for _, v := range list[1:] {
		main.Versions = append(main.Versions, v.resource())
	}
	return main
}

func (d *definition) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: d.object.Spec.Group, Resource: d.object.Status.AcceptedNames.Plural}
}

func (d *definition) kind(version string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: d.object.Spec.Group, Version: version, Kind: d.object.Status.AcceptedNames.Kind}
}

// versionOf finds the version that an object is in.
func (d *definition) versionOf(u *unstructured.Unstructured) (*version, error) {
	group, name, _ := strings.Cut(u.GetAPIVersion(), "/")
	if v := d.versions[name]; v != nil && group == d.object.Spec.Group {
		return v, nil
	}
	return nil, fmt.Errorf("request to convert CR from an invalid group/version: %s", u.GetAPIVersion())
}

// resource describes one version as the catalogue needs it.
func (v *version) resource() *apis.Resource {
	d := v.definition
	names := &d.object.Status.AcceptedNames
	r := &apis.Resource{
		Group: d.object.Spec.Group, Version: v.spec.Name, Kind: names.Kind,
		Plural: names.Plural, Singular: names.Singular, Short: names.ShortNames, Categories: names.Categories,
		New: v.new, NewList: v.newList,
		Default:        func(obj apis.Object) { v.complete(obj.(*unstructured.Unstructured)) },
		Validate:       v.validate,
		ValidateUpdate: v.validateUpdate,
		Warnings:       finalizerWarnings,
		Fields:         v.fields(),
		Subresources:   v.subresources(),
		Custom:         v.custom(),
	}
	if d.object.Spec.Scope == apiextensionsv1.ClusterScoped {
		r.Scope = apis.Cluster
	}
	if v.hasStatus() {
		r.PrepareCreate, r.PrepareUpdate = dropStatus, keepStatus
	}
	r.Columns, r.Row = v.table()
	return r
}

func (v *version) custom() *apis.Custom {
	d := v.definition
	return &apis.Custom{
		Definition: d.object.Name, UID: d.object.UID, State: d.state + "." + v.spec.Name, Lifetime: d.lifetime,
		StorageVersion: d.storage.spec.Name, ListKind: d.object.Status.AcceptedNames.ListKind,
		Warning: deprecation(&d.object.Spec, v.spec), Terminating: terminating(d.object),
		Load:    v.load,
		Prepare: func(objs []apis.Object) { d.converter.prepare(objs, v) },
		Store:   v.store,
		Stored: func(obj apis.Object) bool {
			u := obj.(*unstructured.Unstructured)
			from, err := d.versionOf(u)
			return err == nil && from == d.storage && from.shape.fitsObject(u.Object, true, true)
		},
		Coerce: func(obj apis.Object, report bool) ([]string, error) {
			return v.coerce(obj.(*unstructured.Unstructured), report)
		},
		Convert: d.convert,
		Merge:   d.merge(),
		OpenAPI: v.openAPI,
	}
}

func (v *version) new() apis.Object {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(v.kind)
	return u
}

func (v *version) newList() runtime.Object {
	l := &unstructured.UnstructuredList{Object: map[string]any{}}
	l.SetGroupVersionKind(v.kind.GroupVersion().WithKind(v.definition.object.Status.AcceptedNames.ListKind))
	return l
}

// deprecation is what clients of a deprecated version are told.
func deprecation(spec *apiextensionsv1.CustomResourceDefinitionSpec, v *apiextensionsv1.CustomResourceDefinitionVersion) string {
	if !v.Deprecated {
		return ""
	}
	if v.DeprecationWarning != nil {
		return *v.DeprecationWarning
	}
	text := fmt.Sprintf("%s/%s %s is deprecated", spec.Group, v.Name, spec.Names.Kind)
	var better []string
	for _, other := range spec.Versions {
		if other.Served && !other.Deprecated && utilversion.CompareKubeAwareVersionStrings(v.Name, other.Name) < 0 {
			better = append(better, other.Name)
		}
	}
	if len(better) == 0 {
		return text
	}
	slices.SortFunc(better, func(a, b string) int { return utilversion.CompareKubeAwareVersionStrings(b, a) })
	return fmt.Sprintf("%s; use %s/%s %s", text, spec.Group, better[0], spec.Names.Kind)
}
