package builtin

import (
	"slices"
	"testing"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"proa/internal/apis"
)

func TestEveryKindIsRegisteredInTheScheme(t *testing.T) {
	scheme := apis.Scheme()
	check := func(t *testing.T, group, version, kind string, obj runtime.Object) {
		kinds, _, err := scheme.ObjectKinds(obj)
		if err != nil {
			t.Fatal(err)
		}
		if k := kinds[0]; k.Group != group || k.Version != version || k.Kind != kind {
			t.Errorf("scheme says %v for a %s of %s/%s", k, kind, group, version)
		}
	}
	for _, r := range allOn().All() {
		t.Run(r.Plural+"."+r.Group, func(t *testing.T) {
			check(t, r.Group, r.Version, r.Kind, r.New())
			if r.NewList != nil {
				check(t, r.Group, r.Version, r.Kind+"List", r.NewList())
			}
			for _, s := range r.Also {
				check(t, s.Group, s.Version, s.Kind, s.New())
				check(t, s.Group, s.Version, s.Kind+"List", s.NewList())
			}
		})
	}
}

func TestStoredKindsHaveListsAndColumns(t *testing.T) {
	for _, r := range allOn().All() {
		stored := len(r.Verbs) == 0 || slices.Contains(r.Verbs, "list")
		if !stored {
			continue
		}
		t.Run(r.Plural+"."+r.Group, func(t *testing.T) {
			if r.NewList == nil {
				t.Error("stored without a list type")
			}
			if (r.Columns == nil) != (r.Row == nil) {
				t.Fatal("columns and row come together")
			}
			if r.Columns == nil && (r.Kind == "CustomResourceDefinition" || r.Kind == "CSIStorageCapacity") {
				return // upstream prints them as it prints unknown kinds
			}
			if r.Columns == nil {
				t.Fatal("no columns")
			}
			obj := r.New()
			obj.SetName("x")
			if r.Default != nil {
				r.Default(obj)
			}
			cells := r.Row(obj, time.Unix(0, 0))
			if r.Kind == "IPAddress" {
				cells = cells[:len(r.Columns)] // upstream's rows have a cell more
			}
			if len(cells) != len(r.Columns) {
				t.Errorf("%d columns, %d cells", len(r.Columns), len(cells))
			}
			for i, c := range cells {
				switch c.(type) {
				case string, int64, bool, float64:
				default:
					t.Errorf("cell %q is a %T, which a Table cannot hold", r.Columns[i].Name, c)
				}
			}
		})
	}
}

func TestEmptyObjectsSurviveEveryFunction(t *testing.T) {
	for _, r := range allOn().All() {
		t.Run(r.Plural+"."+r.Group, func(t *testing.T) {
			obj, old := r.New(), r.New()
			if r.Default != nil {
				r.Default(obj)
				r.Default(old)
			}
			if r.PrepareCreate != nil {
				r.PrepareCreate(obj)
			}
			if r.PrepareUpdate != nil {
				r.PrepareUpdate(obj, old)
			}
			if r.Stamp != nil {
				r.Stamp(obj, nil, time.Unix(0, 0))
				r.Stamp(obj, old, time.Unix(0, 0))
			}
			if r.Validate != nil {
				r.Validate(t.Context(), obj)
			}
			if r.ValidateUpdate != nil {
				r.ValidateUpdate(t.Context(), obj, old)
			}
			if r.Warnings != nil {
				r.Warnings(obj, nil)
				r.Warnings(obj, old)
			}
			for _, of := range r.Fields {
				of(obj)
			}
			for _, name := range r.Indexed {
				if r.Fields[name] == nil {
					t.Errorf("index of %q, which is no field", name)
				}
			}
			if r.GracefulDelete != nil {
				r.GracefulDelete(obj, nil)
			}
			for _, s := range r.Subresources {
				if s.PrepareUpdate != nil {
					s.PrepareUpdate(obj, old)
				}
				if s.ValidateUpdate != nil {
					s.ValidateUpdate(t.Context(), obj, old)
				}
				if s.Scale != nil {
					s.Scale.SetReplicas(obj, 3)
					if n := s.Scale.Replicas(obj); n != 3 {
						t.Errorf("scaled to 3, reads %d", n)
					}
					s.Scale.StatusReplicas(obj)
					s.Scale.Selector(obj)
				}
			}
		})
	}
}

func TestDefaultingTwiceChangesNothing(t *testing.T) {
	for _, r := range allOn().All() {
		if r.Default == nil {
			continue
		}
		t.Run(r.Plural+"."+r.Group, func(t *testing.T) {
			obj := r.New()
			r.Default(obj)
			again := obj.DeepCopyObject().(apis.Object)
			r.Default(again)
			if !apiequality.Semantic.DeepEqual(obj, again) {
				t.Errorf("defaulted again to %v, was %v", again, obj)
			}
		})
	}
}

func TestDefaultedObjectsRoundTrip(t *testing.T) {
	scheme := apis.Scheme()
	codecs := map[string]runtime.Serializer{
		"json":     json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{}),
		"protobuf": protobuf.NewSerializer(scheme, scheme),
	}
	for _, r := range allOn().All() {
		for name, codec := range codecs {
			t.Run(r.Plural+"."+r.Group+"/"+name, func(t *testing.T) {
				obj := r.New()
				obj.SetName("x")
				if r.Default != nil {
					r.Default(obj)
				}
				obj.GetObjectKind().SetGroupVersionKind(r.GroupVersionKind())
				data, err := runtime.Encode(codec, obj)
				if err != nil {
					t.Fatal(err)
				}
				gvk := r.GroupVersionKind()
				back, _, err := codec.Decode(data, &gvk, r.New())
				if err != nil {
					t.Fatal(err)
				}
				back.GetObjectKind().SetGroupVersionKind(gvk)
				if !apiequality.Semantic.DeepEqual(obj, back) {
					t.Errorf("came back as %v, was %v", back, obj)
				}
			})
		}
	}
}
