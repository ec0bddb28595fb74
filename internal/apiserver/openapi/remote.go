package openapi

import (
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Remotes are the group versions that other servers serve and describe. A list is
// never changed: another value means another state.
type Remotes struct{ List []Remote }

// Remote is one of them. What it says takes the place of what the catalogue says.
type Remote struct {
	schema.GroupVersion
	V2 *spec.Swagger // paths of the group version alone; nil: its server has none. Not to be changed.
	V3 *Document     // nil: its server has none
}

// Document is one OpenAPI 3 document as it is served.
type Document struct{ compressed }

// NewDocument keeps what content says as JSON.
func NewDocument(content any) (*Document, error) {
	body, err := json.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("describe the API: %w", err)
	}
	return &Document{*compress(body, fmt.Sprintf("%X", sha512.Sum512(body)))}, nil
}

// Hash differs between documents that say different things.
func (d *Document) Hash() string { return d.etag }

func (r *Remotes) list() []Remote {
	if r == nil {
		return nil
	}
	return r.List
}

// find returns who describes a group version instead of the catalogue.
func (r *Remotes) find(gv schema.GroupVersion) *Remote {
	for i := range r.list() {
		if r.List[i].GroupVersion == gv {
			return &r.List[i]
		}
	}
	return nil
}

// without leaves out of a catalogue's versions what others serve.
func without(gvs map[schema.GroupVersion][]served, remotes *Remotes) map[schema.GroupVersion][]served {
	if len(remotes.list()) == 0 {
		return gvs
	}
	gvs = maps.Clone(gvs)
	for _, r := range remotes.list() {
		delete(gvs, r.GroupVersion)
	}
	return gvs
}

// mergeV2 adds the OpenAPI 2 of other servers to this one's. Definitions of one
// name that say different things are told apart by a number.
func mergeV2(body []byte, remotes *Remotes) ([]byte, error) {
	var all *spec.Swagger
	for _, r := range remotes.list() {
		if r.V2 == nil {
			continue
		}
		if all == nil {
			all = &spec.Swagger{}
			if err := all.UnmarshalJSON(body); err != nil {
				return nil, err
			}
		}
		if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(all, r.V2); err != nil {
			return nil, fmt.Errorf("OpenAPI of %s: %w", r.GroupVersion, err)
		}
	}
	if all == nil {
		return body, nil
	}
	return all.MarshalJSON()
}
