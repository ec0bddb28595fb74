package registry

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis/builtin"
	"proa/internal/store"
)

// testdata/upstream.json is what upstream's own storage library put into etcd;
// test/datastore records it.
func TestWhatUpstreamWroteIsReadAndWrittenTheSame(t *testing.T) {
	data, err := os.ReadFile("testdata/upstream.json")
	if err != nil {
		t.Fatal(err)
	}
	var entries []struct {
		Group, Resource, Namespace, Name, Path string
		Value                                  []byte
	}
	if err := json.Unmarshal(data, &entries); err != nil {
		t.Fatal(err)
	}
	catalogue := builtin.Everything()
	c := NewCodec(catalogue)
	for _, e := range entries {
		key := store.Key{Resource: schema.GroupResource{Group: e.Group, Resource: e.Resource}, Namespace: e.Namespace, Name: e.Name}
		obj, err := c.Decode(key, e.Value)
		if err != nil {
			t.Errorf("%s: %v", e.Path, err)
			continue
		}
		if obj.GetName() != e.Name || obj.GetNamespace() != e.Namespace || obj.GetUID() == "" {
			t.Errorf("%s: read as %v", e.Path, obj)
		}
		got, err := c.Encode(key, obj)
		if err != nil {
			t.Errorf("%s: %v", e.Path, err)
			continue
		}
		if older := bytes.Contains(e.Value[:min(40, len(e.Value))], []byte("autoscaling/v1")); older {
			again, err := c.Decode(key, got)
			if err != nil || !bytes.Contains(got[:40], []byte("autoscaling/v2")) || again.GetUID() != obj.GetUID() {
				t.Errorf("%s: an older version becomes %q, %v", e.Path, got, err)
			}
			continue
		}
		if !bytes.Equal(got, e.Value) {
			t.Errorf("%s: written as\n%q, upstream has\n%q", e.Path, got, e.Value)
		}
	}
}

func TestNewVersionsAreKeptAsTheReleaseBeforeReadsThem(t *testing.T) {
	catalogue := builtin.Everything()
	c := NewCodec(catalogue)
	for resource, version := range map[string]string{
		"clustertrustbundles.certificates.k8s.io":          "certificates.k8s.io/v1beta1",
		"podcertificaterequests.certificates.k8s.io":       "certificates.k8s.io/v1beta1",
		"devicetaintrules.resource.k8s.io":                 "resource.k8s.io/v1beta2",
		"storageversionmigrations.storagemigration.k8s.io": "storagemigration.k8s.io/v1beta1",
		"horizontalpodautoscalers.autoscaling":             "autoscaling/v2",
		"events":                                           "v1",
	} {
		gr := schema.ParseGroupResource(resource)
		r, ok := catalogue.Stored(gr)
		if !ok {
			t.Errorf("%s is not known", resource)
			continue
		}
		obj := r.New()
		obj.SetName("n")
		key := store.Key{Resource: gr, Name: "n"}
		value, err := c.Encode(key, obj)
		if err != nil || !bytes.Contains(value[:min(60, len(value))], []byte(version)) {
			t.Errorf("%s is kept as %q, %v, want %s", resource, value, err, version)
		}
		back, err := c.Decode(key, value)
		if err != nil {
			t.Errorf("%s: %v", resource, err)
		} else if got, ok := catalogue.Of(back); !ok || got != r {
			t.Errorf("%s is read as %T", resource, back)
		}
	}
}
