package negotiate

import (
	"net/http/httptest"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestResponse(t *testing.T) {
	table := "application/json;as=Table;v=v1;g=meta.k8s.io"
	tests := []struct {
		name, accept string
		custom       bool
		want         Format
	}{
		{"nothing asked is JSON", "", false, Format{Media: JSON}},
		{"anything is JSON", "*/*", false, Format{Media: JSON}},
		{"any application type is JSON", "application/*", false, Format{Media: JSON}},
		{"protobuf", "application/vnd.kubernetes.protobuf", false, Format{Media: Protobuf}},
		{"protobuf before JSON", "application/vnd.kubernetes.protobuf,application/json", false, Format{Media: Protobuf}},
		{"custom resources have no protobuf", "application/vnd.kubernetes.protobuf,application/json", true, Format{Media: JSON}},
		{"kubectl get asks for a table first", table + ",application/json", false, Format{Media: JSON, As: "Table", AsVersion: "v1", AsGroup: "meta.k8s.io"}},
		{"a table has no protobuf", "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io," + table, false, Format{Media: JSON, As: "Table", AsVersion: "v1", AsGroup: "meta.k8s.io"}},
		{"an unknown kind falls through", "application/json;as=Nothing;v=v1;g=meta.k8s.io,application/yaml", false, Format{Media: YAML}},
		{"a watch stream", "application/json;stream=watch", false, Format{Media: JSON}},
		{"metadata of custom resources in protobuf", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", true,
			Format{Media: Protobuf, As: "PartialObjectMetadata", AsVersion: "v1", AsGroup: "meta.k8s.io"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/", nil)
			r.Header.Set("Accept", tt.accept)
			got, err := Response(r, Object(tt.custom, true))
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
}

func TestNothingAcceptable(t *testing.T) {
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Accept", "text/html")
	_, err := Response(r, Object(false, true))
	if apierrors.ReasonForError(err) != "NotAcceptable" {
		t.Errorf("got %v", err)
	}
}

func TestBody(t *testing.T) {
	if m, err := Body("application/yaml; charset=utf-8", JSON, YAML); m != YAML || err != nil {
		t.Errorf("got %q, %v", m, err)
	}
	if _, err := Body("text/plain", JSON, YAML); !apierrors.IsUnsupportedMediaType(err) {
		t.Errorf("got %v", err)
	}
}

func TestPretty(t *testing.T) {
	r := httptest.NewRequest("GET", "/?pretty=true", nil)
	if f, _ := Response(r, Plain); !f.Pretty {
		t.Error("pretty=true is not pretty")
	}
	r = httptest.NewRequest("GET", "/?pretty=false", nil)
	r.Header.Set("User-Agent", "curl/8")
	if f, _ := Response(r, Plain); f.Pretty {
		t.Error("pretty=false is pretty for curl")
	}
}
