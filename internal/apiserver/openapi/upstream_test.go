package openapi_test

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis/builtin"
	"proa/internal/apis/core"
	"proa/internal/apiserver/openapi"
)

// What upstream's API server 1.37 says with all gates on (OpenAPIEnums off) and
// all APIs served, as digests of each schema and path: "d document",
// "s schema digest", "p path digest", "q shared parameter". A schema that a
// document has in common with one before it is not written again. Left out are
// /logs, and PodCertificateRequests of v1beta1, which Proa only reads in stores.
//
//go:embed testdata/upstream.txt
var recorded string

// ownWords are schemas whose descriptions are not wholly upstream's: no module
// carries those. They are compared without them.
var ownWords = map[string]bool{
	"io.k8s.apimachinery.pkg.util.intstr.IntOrString":                          true,
	"io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec": true,
	"io.k8s.api.certificates.v1.CertificateSigningRequestStatus":               true,
	"io.k8s.api.core.v1.PodSecurityContext":                                    true,
	"io.k8s.api.core.v1.PodSpec":                                               true,
	"io.k8s.api.admissionregistration.v1alpha1.MatchCondition":                 true,
	"io.k8s.api.core.v1.TopologySpreadConstraint":                              true,
}

// mute leaves descriptions out of a schema.
func mute(of any, properties bool) any {
	switch of := of.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, v := range of {
			if properties || name != "description" {
				out[name] = mute(v, name == "properties" && !properties)
			}
		}
		return out
	case []any:
		out := make([]any, len(of))
		for i, v := range of {
			out[i] = mute(v, false)
		}
		return out
	}
	return of
}

func schemaDigest(t *testing.T, name string, of any) string {
	if ownWords[name] {
		of = mute(of, false)
	}
	return digest(t, of)
}

// everything describes all kinds in all versions.
func everything(t *testing.T) *openapi.Handler {
	gates, served, err := builtin.Options{FeatureGates: "AllAlpha=true,AllBeta=true", RuntimeConfig: "api/all=true"}.Parse()
	if err != nil {
		t.Fatal(err)
	}
	c := builtin.Serving(gates, served)
	if err := c.Add(&core.ComponentStatuses); err != nil {
		t.Fatal(err)
	}
	return openapi.New(openapi.Config{
		Catalogue: c, Version: "unversioned", CBOR: true, Plain: true, Issuer: openapi.Identity{Keys: true, Configuration: true},
		Returned: func(gvr schema.GroupVersionResource) bool {
			return returned[gvr.GroupResource().String()] && gvr.String() != "resource.k8s.io/v1, Resource=devicetaintrules"
		},
	})
}

// returned are the kinds whose deletion answers with the object.
var returned = func() map[string]bool {
	set := map[string]bool{}
	for _, name := range strings.Fields(`persistentvolumeclaims persistentvolumes pods podtemplates resourcequotas serviceaccounts services
		csidrivers.storage.k8s.io csinodes.storage.k8s.io storageclasses.storage.k8s.io volumeattachments.storage.k8s.io
		volumeattributesclasses.storage.k8s.io deviceclasses.resource.k8s.io resourceclaims.resource.k8s.io
		resourceclaimtemplates.resource.k8s.io resourceslices.resource.k8s.io devicetaintrules.resource.k8s.io
		resourcepoolstatusrequests.resource.k8s.io`) {
		set[name] = true
	}
	return set
}()

// document is what one of them says.
type document struct {
	Components  struct{ Schemas map[string]any }
	Definitions map[string]any
	Paths       map[string]any
	Parameters  map[string]any
}

func (d *document) schemas() map[string]any {
	if d.Definitions != nil {
		return d.Definitions
	}
	return d.Components.Schemas
}

func fetch(t *testing.T, h *openapi.Handler, path string) *document {
	t.Helper()
	if path = "/openapi/v3/" + path; path == "/openapi/v3/v2" {
		path = "/openapi/v2"
	}
	w := httptest.NewRecorder()
	if found, err := h.ServeHTTP(w, httptest.NewRequest("GET", path, nil)); !found || err != nil {
		t.Errorf("%s: found %t, %v", path, found, err)
		return nil
	}
	d := &document{}
	decoder := json.NewDecoder(w.Body)
	decoder.UseNumber()
	if err := decoder.Decode(d); err != nil {
		t.Fatal(path, err)
	}
	return d
}

func digest(t *testing.T, of any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(of); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(bytes.TrimSuffix(b.Bytes(), []byte("\n"))))[:8]
}

func TestDocumentsSayWhatUpstreamsSay(t *testing.T) {
	h := everything(t)
	var path string
	var d *document
	var unnamed struct{ schemas, paths map[string]bool }
	known := map[string]bool{} // schemas of the dialect, with their digests
	finish := func() {
		for name := range unnamed.schemas {
			if !known[name+" "+schemaDigest(t, name, d.schemas()[name])] {
				t.Errorf("%s: schema %s is not as upstream's", path, name)
			}
		}
		for p := range unnamed.paths {
			t.Errorf("%s: upstream has no path %s", path, p)
		}
	}
	for line := range strings.Lines(recorded) {
		fields := strings.Fields(line)
		if fields[0] == "d" {
			finish()
			if path = fields[1]; path == "v2" {
				clear(known)
			}
			if d = fetch(t, h, path); d == nil {
				d = &document{}
			}
			unnamed.schemas, unnamed.paths = names(d.schemas()), names(d.Paths)
			continue
		}
		switch name := fields[1]; fields[0] {
		case "s":
			known[name+" "+fields[2]] = true
			if s, ok := d.schemas()[name]; !ok {
				t.Errorf("%s: no schema %s", path, name)
			} else if schemaDigest(t, name, s) != fields[2] {
				t.Errorf("%s: schema %s is not as upstream's", path, name)
			}
			delete(unnamed.schemas, name)
		case "p":
			if p, ok := d.Paths[name]; !ok {
				t.Errorf("%s: no path %s", path, name)
			} else if digest(t, p) != fields[2] {
				t.Errorf("%s: path %s is not as upstream's", path, name)
			}
			delete(unnamed.paths, name)
		case "q":
			if _, ok := d.Parameters[name]; !ok {
				t.Errorf("%s: no parameter %s", path, name)
			}
		}
	}
	finish()
}

func names(m map[string]any) map[string]bool {
	set := map[string]bool{}
	for name := range m {
		set[name] = true
	}
	return set
}
