package openapi

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"

	"k8s.io/kube-openapi/pkg/validation/spec"
)

// unshared are parameters that stay where they are: the name, whose text tells
// the kind, and two that old clients look for at each operation.
var unshared = map[string]bool{"name": true, "fieldValidation": true, "dryRun": true}

// shareParameters writes parameters that many paths of an OpenAPI 2 document have
// once, under a name that is made of what they say.
func (d *document) shareParameters() map[string]object {
	shared := map[string]object{}
	replace := func(of object) {
		list, _ := of["parameters"].([]object)
		for i, p := range list {
			if !d.isShared(p) {
				continue
			}
			name := sharedName(p)
			shared[name] = p
			list[i] = object{"$ref": "#/parameters/" + name}
		}
	}
	for _, item := range d.paths {
		replace(item)
		for _, operation := range item {
			if operation, ok := operation.(object); ok {
				replace(operation)
			}
		}
	}
	return shared
}

// isShared says whether a parameter goes among the common ones: a body does when
// its model is not that of a kind.
func (d *document) isShared(p object) bool {
	if p["in"] == "body" {
		ref, _ := p["schema"].(object)["$ref"].(string)
		return strings.HasPrefix(ref, d.models.prefix+"io.k8s.apimachinery")
	}
	return !unshared[p["name"].(string)]
}

// sharedName is a parameter's name and a hash of its text, in the order in which
// kube-openapi writes it: names of parameters are the same on every server.
func sharedName(p object) string {
	var canonical spec.Parameter
	data, err := json.Marshal(p)
	if err == nil {
		err = json.Unmarshal(data, &canonical)
	}
	if err == nil {
		data, err = json.Marshal(canonical)
	}
	if err != nil {
		panic(fmt.Sprintf("openapi: parameter %v cannot be written: %v", p["name"], err))
	}
	hash := fnv.New64()
	hash.Write(data) // cannot fail
	return p["name"].(string) + "-" + base64.URLEncoding.EncodeToString(hash.Sum(nil)[:6])
}
