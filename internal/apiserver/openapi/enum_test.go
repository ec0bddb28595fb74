package openapi

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestEnumerationsNameTheirValues(t *testing.T) {
	m := newModels(dialect{v3: true})
	m.ref(reflect.TypeFor[corev1.Container]())
	properties := m.all["io.k8s.api.core.v1.Container"]["properties"].(object)
	policy := properties["imagePullPolicy"].(object)
	if d := cmp.Diff([]string{"Always", "IfNotPresent", "Never"}, policy["enum"]); d != "" {
		t.Error(d)
	}
	if !strings.HasSuffix(policy["description"].(string), "Possible enum values:\n - `\"Always\"`\n - `\"IfNotPresent\"`\n - `\"Never\"`") {
		t.Errorf("described as %q", policy["description"])
	}
	if name := properties["name"].(object); name["enum"] != nil {
		t.Errorf("names are %v", name["enum"])
	}
}
