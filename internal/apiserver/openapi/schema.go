package openapi

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"proa/internal/apis"
)

// Schema describes one kind of a catalogue, with everything it refers to in its
// place. False for a kind that is not served.
func Schema(c *apis.Catalogue, gvk schema.GroupVersionKind) (*spec.Schema, bool, error) {
	gv := gvk.GroupVersion()
	kinds := byGroupVersion(c.All())[gv]
	if len(kinds) == 0 {
		return nil, false, nil
	}
	data, err := marshal(build(dialect{v3: true}, "", map[schema.GroupVersion][]served{gv: kinds}))
	if err != nil {
		return nil, false, fmt.Errorf("describe %s: %w", gv, err)
	}
	var doc struct {
		Components struct {
			Schemas map[string]*spec.Schema `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, false, fmt.Errorf("describe %s: %w", gv, err)
	}
	const prefix = "#/components/schemas/"
	for name, s := range doc.Components.Schemas {
		if !describes(s, gvk) {
			continue
		}
		whole, err := resolver.PopulateRefs(func(ref string) (*spec.Schema, bool) {
			s, ok := doc.Components.Schemas[ref[min(len(prefix), len(ref)):]]
			return s, ok
		}, prefix+name)
		return whole, err == nil, err
	}
	return nil, false, nil
}

// describes reads x-kubernetes-group-version-kind.
func describes(s *spec.Schema, gvk schema.GroupVersionKind) bool {
	kinds, _ := s.Extensions["x-kubernetes-group-version-kind"].([]any)
	for _, k := range kinds {
		if m, _ := k.(map[string]any); m["group"] == gvk.Group && m["version"] == gvk.Version && m["kind"] == gvk.Kind {
			return true
		}
	}
	return false
}
