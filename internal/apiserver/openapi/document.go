// Package openapi describes the API in OpenAPI 2 and 3. Nothing is generated
// ahead of time: paths come from the catalogue, schemas from the Go types by
// reflection (JSON names, documentation, patch strategies), merge rules from the
// schema that client-go's apply configurations carry. A document is made when it
// is first asked for and kept compressed; the graph it was made from is dropped.
package openapi

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"sort"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
)

var rawExtension = reflect.TypeFor[runtime.RawExtension]()

// dialect says how a document is written.
type dialect struct {
	v3    bool
	cbor  bool                                   // CBOR is among the media types
	plain bool                                   // enumerations are strings like others
	gone  func(schema.GroupVersionResource) bool // whose delete answers with the object; nil: none
}

// document is one OpenAPI document in the making.
type document struct {
	models *models
	paths  map[string]object
	seen   map[string]int // operation ids
}

// served is a resource in one of its versions.
type served struct {
	*apis.Resource
	kind    schema.GroupVersionKind
	newItem func() apis.Object
	newList func() runtime.Object
}

func (s served) gv() schema.GroupVersion { return s.kind.GroupVersion() }

// byGroupVersion sorts the catalogue into group versions.
func byGroupVersion(all []*apis.Resource) map[schema.GroupVersion][]served {
	m := map[schema.GroupVersion][]served{}
	for _, r := range all {
		if gvk := r.GroupVersionKind(); !r.Unserved {
			m[gvk.GroupVersion()] = append(m[gvk.GroupVersion()], served{r, gvk, r.New, r.NewList})
		}
		for _, s := range r.Also {
			gvk := schema.GroupVersionKind{Group: s.Group, Version: s.Version, Kind: s.Kind}
			m[gvk.GroupVersion()] = append(m[gvk.GroupVersion()], served{r, gvk, s.New, s.NewList})
		}
		for _, v := range r.Versions {
			gvk := v.GroupVersionKind()
			m[gvk.GroupVersion()] = append(m[gvk.GroupVersion()], served{v, gvk, v.New, v.NewList})
		}
	}
	return m
}

func sortedVersions[T any](m map[schema.GroupVersion]T) []schema.GroupVersion {
	list := make([]schema.GroupVersion, 0, len(m))
	for gv := range m {
		list = append(list, gv)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].String() < list[j].String() })
	return list
}

// sortedGroups sorts by group, then version.
func sortedGroups[T any](m map[schema.GroupVersion]T) []schema.GroupVersion {
	list := slices.Collect(maps.Keys(m))
	slices.SortFunc(list, func(a, b schema.GroupVersion) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Version, b.Version))
	})
	return list
}

// build describes the resources of some group versions and other paths.
func build(as dialect, version string, gvs map[schema.GroupVersion][]served, others ...generalPath) object {
	d := &document{models: newModels(as), paths: map[string]object{}, seen: map[string]int{}}
	d.declareCommon(gvs)
	for _, gv := range sortedVersions(gvs) {
		for _, s := range gvs[gv] {
			d.declareKinds(s)
		}
	}
	for _, gv := range sortedVersions(gvs) {
		for _, s := range gvs[gv] {
			d.addPaths(s)
		}
		if !onlyCustom(gvs[gv]) {
			d.addResourceList(gv)
		}
	}
	for _, p := range others {
		d.addGeneral(p)
	}
	info := object{"title": "Kubernetes", "version": version}
	if as.v3 && len(others) == 0 && onlyCustom(slices.Concat(slices.Collect(maps.Values(gvs))...)) {
		info = object{"title": "Kubernetes CRD Swagger", "version": "v0.1.0"}
	}
	if as.v3 {
		components := object{"securitySchemes": tokens()}
		if info["version"] != version {
			components = object{}
		}
		if len(d.models.all) > 0 {
			components["schemas"] = d.models.all
		}
		return object{"openapi": "3.0.0", "info": info, "paths": d.paths, "components": components}
	}
	shared := d.shareParameters()
	return object{
		"swagger": "2.0", "info": info, "paths": d.paths, "parameters": shared, "definitions": d.models.all,
		"securityDefinitions": tokens(), "security": []object{{"BearerToken": []string{}}},
	}
}

// otherVersions know the common options, too, as the release before knew them:
// versions of reviews that are only sent, and those that are no longer served.
var otherVersions = []schema.GroupVersion{
	{Group: "admission.k8s.io", Version: "v1"}, {Group: "admission.k8s.io", Version: "v1beta1"},
	{Group: "imagepolicy.k8s.io", Version: "v1alpha1"},
	{Group: "apiextensions.k8s.io", Version: "v1beta1"}, {Group: "apiregistration.k8s.io", Version: "v1beta1"},
}

// declareCommon says of which versions the types are that all groups have. In
// OpenAPI 2 these are all versions that there are.
func (d *document) declareCommon(gvs map[schema.GroupVersion][]served) {
	core := schema.GroupVersion{Version: "v1"}
	versions := map[schema.GroupVersion]bool{core: true}
	for gv := range gvs {
		versions[gv] = true
	}
	if !d.models.v3 {
		kinds, _, _ := apis.Scheme().ObjectKinds(&metav1.DeleteOptions{}) // registered with every group
		for _, k := range kinds {
			versions[k.GroupVersion()] = true
		}
		for _, gv := range otherVersions {
			versions[gv] = true
		}
	}
	for _, gv := range sortedGroups(versions) {
		for _, t := range []reflect.Type{reflect.TypeFor[metav1.DeleteOptions](), reflect.TypeFor[metav1.WatchEvent]()} {
			d.models.kind(t, gv.WithKind(t.Name()))
		}
	}
	for _, t := range []reflect.Type{
		reflect.TypeFor[metav1.Status](), reflect.TypeFor[metav1.APIVersions](), reflect.TypeFor[metav1.APIGroupList](),
		reflect.TypeFor[metav1.APIGroup](), reflect.TypeFor[metav1.APIResourceList](),
	} {
		d.models.kind(t, core.WithKind(t.Name()))
	}
}

// tokens says how clients authenticate.
func tokens() object {
	return object{"BearerToken": object{"type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication"}}
}

func (d *document) declareKinds(s served) {
	if isCustom(s) {
		return
	}
	d.models.kind(typeOf(s.newItem()), s.kind)
	if s.newList != nil {
		d.models.kind(typeOf(s.newList()), s.gv().WithKind(s.kind.Kind+"List"))
	}
	for _, sub := range s.Subresources {
		if sub.New == nil || sub.Kind == "" {
			continue
		}
		d.models.kind(typeOf(sub.New()), schema.GroupVersionKind{Group: sub.Group, Version: sub.Version, Kind: sub.Kind})
	}
}

func typeOf(obj runtime.Object) reflect.Type { return deref(reflect.TypeOf(obj)) }

func isCustom(s served) bool {
	_, ok := s.newItem().(runtime.Unstructured)
	return ok
}

// onlyCustom says whether all of a group version comes from definitions.
func onlyCustom(list []served) bool {
	return !slices.ContainsFunc(list, func(s served) bool { return !isCustom(s) })
}

// body refers to the model of the resource itself, list to that of its list.
func (d *document) body(s served) object {
	if !isCustom(s) {
		return d.models.ref(typeOf(s.newItem()))
	}
	name := customName(s.kind)
	if _, ok := d.models.all[name]; !ok {
		d.models.all[name] = d.customModel(s)
	}
	return d.models.refName(name)
}

func (d *document) list(s served) object {
	if !isCustom(s) {
		return d.models.ref(typeOf(s.newList()))
	}
	listKind := s.kind.Kind + "List"
	if s.Custom != nil {
		listKind = s.Custom.ListKind
	}
	name := customName(s.gv().WithKind(listKind))
	if _, ok := d.models.all[name]; !ok {
		properties := d.typeMeta()
		metadata := object{"description": "Standard list metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds"}
		if ref := d.models.ref(reflect.TypeFor[metav1.ListMeta]()); d.models.v3 {
			metadata["allOf"] = []object{ref}
		} else {
			metadata["$ref"] = ref["$ref"]
		}
		properties["metadata"] = metadata
		properties["items"] = object{
			"type": "array", "items": d.body(s),
			"description": "List of " + s.Plural + ". More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md",
		}
		model := object{
			"type": "object", "description": listKind + " is a list of " + s.kind.Kind, "properties": properties,
			"required": []string{"items"}, "x-kubernetes-group-version-kind": []object{kindObject(s.gv().WithKind(listKind))},
		}
		if fields := d.models.all[customName(s.kind)][selectableFields]; fields != nil {
			model[selectableFields] = fields
		}
		d.models.all[name] = model
	}
	return d.models.refName(name)
}

const selectableFields = "x-kubernetes-selectable-fields"

// customModel is the declared schema of a custom resource with the metadata
// that every object has. OpenAPI 2 cannot say that there are other fields, too:
// where there may be, it names none, or kubectl would refuse the others.
func (d *document) customModel(s served) object {
	var model object
	if s.Custom != nil {
		model = s.Custom.OpenAPI(d.models.v3)
	}
	if model == nil && d.models.v3 {
		model = object{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	}
	if model == nil {
		model = object{"type": "object"}
	} else {
		d.embedMeta(model)
		d.addMeta(model)
	}
	model["x-kubernetes-group-version-kind"] = []object{kindObject(s.kind)}
	return model
}

func (d *document) addMeta(model object) {
	properties, _ := model["properties"].(object)
	if properties == nil {
		properties = object{}
	}
	d.models.fields(reflect.TypeFor[metav1.PartialObjectMetadata](), nil, properties, new([]string))
	delete(properties["metadata"].(object), "default")
	model["properties"] = properties
}

// embedMeta gives embedded resources in a schema the fields that every resource has.
func (d *document) embedMeta(model object) {
	properties, _ := model["properties"].(object)
	for _, of := range properties {
		if of, ok := of.(object); ok {
			d.embedMeta(of)
		}
	}
	for _, name := range []string{"items", "additionalProperties"} {
		if of, ok := model[name].(object); ok {
			d.embedMeta(of)
		}
	}
	if model["x-kubernetes-embedded-resource"] != true || model["x-kubernetes-preserve-unknown-fields"] == true && !d.models.v3 {
		return
	}
	d.addMeta(model)
	required, _ := model["required"].([]any)
	for _, name := range []any{"kind", "apiVersion"} {
		if !slices.Contains(required, name) {
			required = append(required, name)
		}
	}
	model["required"] = required
}

func (d *document) typeMeta() object {
	properties := object{}
	var required []string
	d.models.fields(reflect.TypeFor[metav1.TypeMeta](), nil, properties, &required)
	return properties
}

// customName turns stable.example.com/v1 CronTab into com.example.stable.v1.CronTab.
func customName(k schema.GroupVersionKind) string {
	parts := strings.Split(k.Group, ".")
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
	return strings.Join(append(parts, k.Version, k.Kind), ".")
}
