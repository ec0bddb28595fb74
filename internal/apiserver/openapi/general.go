package openapi

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// generalPath is a path below no group version, described in a document of its own.
type generalPath struct {
	path    string // api, apis/apps, version, ...
	id      string
	doc     string
	tag     string
	answer  reflect.Type // nil: text
	is      []string     // media types; nil: those of objects
	accepts bool         // the media types are told for requests, too
}

// Identity says which paths of a service account issuer a server has.
type Identity struct{ Keys, Configuration bool }

// generalPaths lists what a server with these group versions has beside them.
func generalPaths(gvs map[schema.GroupVersion][]served, issuer Identity) []generalPath {
	const versions, group = "get available API versions", "get information of a group"
	all := []generalPath{
		{path: "apis", id: "getAPIVersions", doc: versions, tag: "apis", answer: reflect.TypeFor[metav1.APIGroupList](), accepts: true},
		{path: "version", id: "getCodeVersion", doc: "get the version information for this server", tag: "version", answer: reflect.TypeFor[version.Info](), is: []string{"application/json"}, accepts: true},
	}
	if issuer.Keys {
		all = append(all, generalPath{
			path: "openid/v1/jwks", id: "getServiceAccountIssuerOpenIDKeyset", tag: "openid", is: []string{"application/jwk-set+json"},
			doc: "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)",
		})
	}
	if issuer.Configuration {
		all = append(all, generalPath{
			path: ".well-known/openid-configuration", id: "getServiceAccountIssuerOpenIDConfiguration", tag: "WellKnown", is: []string{"application/json"},
			doc: "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'",
		})
	}
	groups := map[string]bool{}
	for gv, list := range gvs {
		if onlyCustom(list) || groups[gv.Group] {
			continue
		}
		groups[gv.Group] = true
		name := groupName(gv.Group)
		p := generalPath{path: "apis/" + gv.Group, id: "get" + name + "APIGroup", doc: group, tag: firstLower(name), answer: reflect.TypeFor[metav1.APIGroup](), accepts: true}
		if gv.Group == "" {
			p = generalPath{path: "api", id: "getCoreAPIVersions", doc: versions, tag: "core", answer: reflect.TypeFor[metav1.APIVersions](), accepts: true}
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b generalPath) int { return cmp.Compare(a.path, b.path) })
	return all
}

func firstLower(s string) string { return strings.ToLower(s[:1]) + s[1:] }

func (d *document) addGeneral(p generalPath) {
	types := p.is
	if types == nil {
		types = d.also(objectTypes, cborType)
	}
	answer := object{"type": "string"}
	if p.answer != nil {
		answer = d.models.ref(p.answer)
	}
	op := object{
		"operationId": p.id, "description": p.doc, "tags": []string{p.tag},
		"responses": d.responses(operation{codes: codes("200"), answer: answer, answerIs: types}),
	}
	if !d.models.v3 {
		op["schemes"], op["produces"] = []string{"https"}, types
		if p.accepts {
			op["consumes"] = types
		}
	}
	d.paths["/"+p.path+"/"] = object{"get": op}
}
