package builtin

import (
	stdjson "encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"

	"proa/internal/apis"
)

// full is where k8s.io/api keeps an object of every kind with every field set.
var full = sync.OnceValues(func() (string, error) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/api").Output()
	return filepath.Join(strings.TrimSpace(string(dir)), "testdata", "HEAD"), err
})

// version is one group version of a kind.
type version struct {
	*apis.Resource
	served *apis.Served // nil for the hub
}

func (v version) gvk() schema.GroupVersionKind {
	if v.served == nil {
		return v.GroupVersionKind()
	}
	return schema.GroupVersionKind{Group: v.served.Group, Version: v.served.Version, Kind: v.served.Kind}
}

func (v version) make() apis.Object {
	if v.served == nil {
		return v.New()
	}
	return v.served.New()
}

func everyVersion() []version {
	var all []version
	for _, r := range Everything().All() {
		all = append(all, version{r, nil})
		for i := range r.Also {
			all = append(all, version{r, &r.Also[i]})
		}
	}
	return all
}

// fullObject reads upstream's full object of a kind; nil when it has none.
func fullObject(t *testing.T, v version, codec runtime.Decoder, ending string) apis.Object {
	t.Helper()
	dir, err := full()
	if err != nil {
		t.Fatal(err)
	}
	gvk := v.gvk()
	group := gvk.Group
	if group == "" {
		group = "core"
	}
	data, err := os.ReadFile(filepath.Join(dir, strings.Join([]string{group, gvk.Version, gvk.Kind, ending}, ".")))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	obj, _, err := codec.Decode(data, &gvk, v.make())
	if err != nil {
		t.Fatal(err)
	}
	return obj.(apis.Object)
}

func TestFullObjectsReadTheSameInEveryEncoding(t *testing.T) {
	scheme := apis.Scheme()
	fromJSON := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Strict: true})
	fromProto := protobuf.NewSerializer(scheme, scheme)
	for _, v := range everyVersion() {
		t.Run(v.gvk().String(), func(t *testing.T) {
			a, b := fullObject(t, v, fromJSON, "json"), fullObject(t, v, fromProto, "pb")
			if a == nil {
				t.Skip("upstream has no example")
			}
			a.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
			b.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
			one, err := stdjson.Marshal(a) // which writes raw JSON without white space
			if err != nil {
				t.Fatal(err)
			}
			other, err := stdjson.Marshal(b)
			if err != nil {
				t.Fatal(err)
			}
			if string(one) != string(other) {
				t.Error(cmp.Diff(a, b))
			}
		})
	}
}

func TestFullObjectsConvertWithoutLoss(t *testing.T) {
	scheme := apis.Scheme()
	codec := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{})
	for _, v := range everyVersion() {
		if v.served == nil {
			continue
		}
		t.Run(v.gvk().String(), func(t *testing.T) {
			served := fullObject(t, v, codec, "json")
			if _, isV1 := served.(*autoscalingv1.HorizontalPodAutoscaler); isV1 {
				t.Skip("has a test of its own: the full object mixes metrics of all types")
			}
			hub := fullObject(t, version{v.Resource, nil}, codec, "json")
			there(t, v.served, hub)
			served.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
			asHub, err := v.served.ToHub(served)
			if err != nil {
				t.Fatal(err)
			}
			back, err := v.served.FromHub(asHub)
			if err != nil {
				t.Fatal(err)
			}
			if !apiequality.Semantic.DeepEqual(served, back) {
				t.Error(cmp.Diff(served, back))
			}
		})
	}
}

// there converts a hub object and back, and finds it as it was.
func there(t *testing.T, s *apis.Served, hub apis.Object) {
	t.Helper()
	hub.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	before := hub.DeepCopyObject()
	served, err := s.FromHub(hub)
	if err != nil {
		t.Fatal(err)
	}
	back, err := s.ToHub(served)
	if err != nil {
		t.Fatal(err)
	}
	if !apiequality.Semantic.DeepEqual(hub, before) {
		t.Error("converting changed the stored object")
	}
	if !apiequality.Semantic.DeepEqual(hub, back) {
		t.Error(cmp.Diff(hub, back))
	}
}

func TestAnyObjectConvertsWithoutLoss(t *testing.T) {
	for _, v := range everyVersion() {
		if v.served == nil {
			continue
		}
		t.Run(v.gvk().String(), func(t *testing.T) {
			fill := randfill.NewWithSeed(1).NilChance(0.4).NumElements(1, 2).MaxDepth(20).Funcs(
				func(r *runtime.RawExtension, _ randfill.Continue) { r.Raw = []byte(`{"a":1}`) },
				func(s *autoscalingv2.HorizontalPodAutoscalerSpec, c randfill.Continue) {
					s.MaxReplicas, s.ScaleTargetRef.Name = 5, c.String(0)
				},
				func(s *autoscalingv2.HorizontalPodAutoscalerStatus, c randfill.Continue) {
					s.CurrentReplicas = c.Int31()
				},
				func(s *resourcev1.ResourceSliceSpec, c randfill.Continue) {
					c.FillNoCustom(s)
					s.NodeName, s.AllNodes = nil, new(true) // no version tells false, or no name, from nothing
				},
			)
			for range 20 {
				hub := v.New()
				fill.Fill(hub)
				there(t, v.served, hub)
			}
		})
	}
}

func TestAutoscalersConvertWithoutLoss(t *testing.T) {
	r := lookup(t, "horizontalpodautoscalers.autoscaling")
	hub := r.New()
	if err := yaml.UnmarshalStrict([]byte(`
metadata: {name: x, annotations: {mine: stays}}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  minReplicas: 2
  maxReplicas: 9
  metrics:
  - {type: Resource, resource: {name: memory, target: {type: AverageValue, averageValue: 100Mi}}}
  - {type: ContainerResource, containerResource: {name: cpu, container: c, target: {type: Utilization, averageUtilization: 50}}}
  - {type: Pods, pods: {metric: {name: m, selector: {matchLabels: {a: b}}}, target: {type: AverageValue, averageValue: "7"}}}
  - {type: Object, object: {describedObject: {kind: Service, name: s}, metric: {name: m}, target: {type: Value, value: "5"}}}
  - {type: External, external: {metric: {name: m}, target: {type: AverageValue, averageValue: "3"}}}
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}
  behavior: {scaleDown: {stabilizationWindowSeconds: 60, tolerance: "0.1", policies: [{type: Pods, value: 1, periodSeconds: 60}]}}
status:
  observedGeneration: 3
  lastScaleTime: "2026-01-01T00:00:00Z"
  currentReplicas: 3
  desiredReplicas: 4
  currentMetrics:
  - {type: Resource, resource: {name: cpu, current: {averageUtilization: 70, averageValue: 700m}}}
  - {type: External, external: {metric: {name: m}, current: {averageValue: "2"}}}
  conditions: [{type: AbleToScale, status: "True", reason: R, message: M, lastTransitionTime: "2026-01-01T00:00:00Z", observedGeneration: 3}]
`), hub); err != nil {
		t.Fatal(err)
	}
	there(t, &r.Also[0], hub)
	served, err := r.Also[0].FromHub(hub)
	if err != nil {
		t.Fatal(err)
	}
	v1 := served.(*autoscalingv1.HorizontalPodAutoscaler)
	if p := v1.Spec.TargetCPUUtilizationPercentage; p == nil || *p != 80 {
		t.Errorf("CPU target is %v", p)
	}
	if p := v1.Status.CurrentCPUUtilizationPercentage; p == nil || *p != 70 {
		t.Errorf("CPU now is %v", p)
	}
	for _, key := range []string{"metrics", "current-metrics", "conditions", "behavior"} {
		if v1.Annotations["autoscaling.alpha.kubernetes.io/"+key] == "" {
			t.Errorf("no annotation of %s", key)
		}
	}
	if v1.Annotations["mine"] != "stays" {
		t.Errorf("annotations are %v", v1.Annotations)
	}
}
