// Package openapi describes the API in OpenAPI 2 and 3. Nothing is generated
// ahead of time: paths come from the catalogue, schemas from the Go types by
// reflection (JSON names, documentation, patch strategies), merge rules from the
// schema that client-go's apply configurations carry. A document is made when it
// is first asked for and kept compressed; the graph it was made from is dropped.
package openapi

import (
	"reflect"
	"sort"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
)

var rawExtension = reflect.TypeFor[runtime.RawExtension]()

// document is one OpenAPI document in the making.
type document struct {
	models *models
	paths  map[string]object
	custom func(r *apis.Resource, version string) map[string]any
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
		gvk := r.GroupVersionKind()
		m[gvk.GroupVersion()] = append(m[gvk.GroupVersion()], served{r, gvk, r.New, r.NewList})
		for _, s := range r.Also {
			gvk := schema.GroupVersionKind{Group: s.Group, Version: s.Version, Kind: s.Kind}
			m[gvk.GroupVersion()] = append(m[gvk.GroupVersion()], served{r, gvk, s.New, s.NewList})
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

// build describes the resources of some group versions, in version 2 or 3.
func build(v3 bool, title, version string, gvs map[schema.GroupVersion][]served, custom func(*apis.Resource, string) map[string]any) object {
	d := &document{models: newModels(v3), paths: map[string]object{}, custom: custom, seen: map[string]int{}}
	for _, gv := range sortedVersions(gvs) {
		for _, s := range gvs[gv] {
			d.declareKinds(s)
		}
		for _, t := range []reflect.Type{reflect.TypeFor[metav1.DeleteOptions](), reflect.TypeFor[metav1.WatchEvent]()} {
			d.models.kind(t, gv.WithKind(t.Name()))
		}
	}
	status := reflect.TypeFor[metav1.Status]()
	d.models.kind(status, schema.GroupVersionKind{Version: "v1", Kind: "Status"})
	for _, gv := range sortedVersions(gvs) {
		for _, s := range gvs[gv] {
			d.addPaths(s)
		}
		d.addResourceList(gv)
	}
	info := object{"title": title, "version": version}
	if v3 {
		return object{"openapi": "3.0.0", "info": info, "paths": d.paths, "components": object{"schemas": d.models.all}}
	}
	return object{"swagger": "2.0", "info": info, "paths": d.paths, "definitions": d.models.all}
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
		t := typeOf(sub.New())
		gvk := schema.GroupVersionKind{Group: sub.Group, Version: sub.Version, Kind: sub.Kind}
		for _, known := range d.models.kinds[t] {
			if known == gvk {
				t = nil
				break
			}
		}
		if t != nil {
			d.models.kind(t, gvk)
		}
	}
}

func typeOf(obj runtime.Object) reflect.Type { return deref(reflect.TypeOf(obj)) }

func isCustom(s served) bool {
	_, ok := s.newItem().(runtime.Unstructured)
	return ok
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
	name := customName(s.kind) + "List"
	if _, ok := d.models.all[name]; !ok {
		properties := d.typeMeta()
		properties["metadata"] = d.models.ref(reflect.TypeFor[metav1.ListMeta]())
		properties["items"] = object{"type": "array", "items": d.body(s), "description": "List of " + s.Plural + "."}
		d.models.all[name] = object{
			"type": "object", "description": s.kind.Kind + "List is a list of " + s.kind.Kind, "properties": properties,
			"required": []string{"items"}, "x-kubernetes-group-version-kind": []object{kindObject(s.gv().WithKind(s.kind.Kind + "List"))},
		}
	}
	return d.models.refName(name)
}

// customModel is the declared schema of a custom resource with the metadata
// that every object has.
func (d *document) customModel(s served) object {
	model := object{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	if d.custom != nil {
		if declared := d.custom(s.Resource, s.kind.Version); declared != nil {
			model = object{}
			for k, v := range declared {
				model[k] = v
			}
		}
	}
	properties := d.typeMeta()
	if declared, ok := model["properties"].(map[string]any); ok {
		for k, v := range declared {
			if properties[k] == nil {
				properties[k] = v
			}
		}
	}
	properties["metadata"] = d.models.ref(reflect.TypeFor[metav1.ObjectMeta]())
	model["properties"] = properties
	model["x-kubernetes-group-version-kind"] = []object{kindObject(s.kind)}
	return model
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
