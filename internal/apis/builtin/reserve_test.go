package builtin

import (
	"strings"
	"testing"

	"proa/internal/apis/admissionregistration"
	"proa/internal/apis/feature"
)

// Names of files are not for objects, but where they are from before.
func TestNamesOfFilesAreReserved(t *testing.T) {
	const text = `names ending with ".static.k8s.io" are reserved for static manifest-based configurations and cannot be managed via the API`
	off, err := feature.ParseGates("ManifestBasedAdmissionControlConfig=false")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range admissionregistration.Resources() {
		for gates, refused := range map[*feature.Gates]bool{{}: true, &off: false} {
			served, _ := Serving(*gates, feature.Runtime{}).Stored(r.GroupResource())
			obj, old := r.New(), r.New()
			obj.SetName("x.static.k8s.io")
			old.SetName("x.static.k8s.io")
			found := false
			for _, e := range served.Validate(t.Context(), obj) {
				found = found || e.Field == "metadata.name" && e.Detail == text
			}
			if found != refused {
				t.Errorf("%s: refused %v, want %v", r.Plural, found, refused)
			}
			for _, e := range served.ValidateUpdate(t.Context(), obj, old) {
				if e.Field == "metadata.name" {
					t.Errorf("%s: an update is refused: %v", r.Plural, e)
				}
			}
			if w := served.Warnings(obj, old); strings.Join(w, "") != "metadata.name: "+text {
				t.Errorf("%s: warnings %q", r.Plural, w)
			}
			obj.SetName("x")
			if w := served.Warnings(obj, nil); len(w) > 0 {
				t.Errorf("%s: warnings %q", r.Plural, w)
			}
		}
	}
}
