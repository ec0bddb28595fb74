package registry

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	flowcontrolv1beta1 "k8s.io/api/flowcontrol/v1beta1"
	flowcontrolv1beta2 "k8s.io/api/flowcontrol/v1beta2"
	flowcontrolv1beta3 "k8s.io/api/flowcontrol/v1beta3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/utils/ptr"

	"proa/internal/apis"
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

func TestFlowControlOfOldReleasesIsRead(t *testing.T) {
	c := NewCodec(builtin.Everything())
	upstream := protobuf.NewSerializer(apis.Scheme(), apis.Scheme())
	read := func(resource, version string, obj runtime.Object) store.Object {
		t.Helper()
		kind := reflect.TypeOf(obj).Elem().Name()
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Group: flowcontrolv1.GroupName, Version: version, Kind: kind})
		var value bytes.Buffer
		if err := upstream.Encode(obj, &value); err != nil {
			t.Fatal(err)
		}
		back, err := c.Decode(store.Key{Resource: schema.GroupResource{Group: flowcontrolv1.GroupName, Resource: resource}, Name: "n"}, value.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		return back
	}
	meta := metav1.ObjectMeta{Name: "n", UID: "u", Annotations: map[string]string{"kept": "", flowcontrolv1beta3.PriorityLevelPreserveZeroConcurrencySharesKey: ""}}
	queuing := flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeQueue, Queuing: &flowcontrolv1.QueuingConfiguration{Queues: 16, HandSize: 4, QueueLengthLimit: 9}}
	want := func(shares int32) *flowcontrolv1.PriorityLevelConfiguration {
		return &flowcontrolv1.PriorityLevelConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Annotations: map[string]string{"kept": ""}},
			Spec: flowcontrolv1.PriorityLevelConfigurationSpec{Type: flowcontrolv1.PriorityLevelEnablementLimited, Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: &shares, LimitResponse: queuing, LendablePercent: ptr.To[int32](20), BorrowingLimitPercent: ptr.To[int32](30),
			}},
		}
	}
	old := flowcontrolv1beta3.LimitResponse{Type: flowcontrolv1beta3.LimitResponseTypeQueue, Queuing: &flowcontrolv1beta3.QueuingConfiguration{Queues: 16, HandSize: 4, QueueLengthLimit: 9}}
	older := flowcontrolv1beta2.LimitResponse{Type: flowcontrolv1beta2.LimitResponseTypeQueue, Queuing: &flowcontrolv1beta2.QueuingConfiguration{Queues: 16, HandSize: 4, QueueLengthLimit: 9}}
	for _, shares := range []int32{0, 7} {
		got := read("prioritylevelconfigurations", "v1beta3", &flowcontrolv1beta3.PriorityLevelConfiguration{ObjectMeta: meta, Spec: flowcontrolv1beta3.PriorityLevelConfigurationSpec{
			Type: flowcontrolv1beta3.PriorityLevelEnablementLimited, Limited: &flowcontrolv1beta3.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: shares, LimitResponse: old, LendablePercent: ptr.To[int32](20), BorrowingLimitPercent: ptr.To[int32](30),
			}}})
		if !reflect.DeepEqual(got, store.Object(want(shares))) {
			t.Errorf("a level of v1beta3 is read as %+v", got)
		}
		got = read("prioritylevelconfigurations", "v1beta2", &flowcontrolv1beta2.PriorityLevelConfiguration{ObjectMeta: meta, Spec: flowcontrolv1beta2.PriorityLevelConfigurationSpec{
			Type: flowcontrolv1beta2.PriorityLevelEnablementLimited, Limited: &flowcontrolv1beta2.LimitedPriorityLevelConfiguration{
				AssuredConcurrencyShares: shares, LimitResponse: older, LendablePercent: ptr.To[int32](20), BorrowingLimitPercent: ptr.To[int32](30),
			}}})
		if !reflect.DeepEqual(got, store.Object(want(shares))) {
			t.Errorf("a level of v1beta2 is read as %+v", got)
		}
	}
	for version, obj := range map[string]runtime.Object{
		"v1beta1": &flowcontrolv1beta1.FlowSchema{ObjectMeta: meta, Spec: flowcontrolv1beta1.FlowSchemaSpec{MatchingPrecedence: 5, DistinguisherMethod: &flowcontrolv1beta1.FlowDistinguisherMethod{Type: "ByUser"}}},
		"v1beta2": &flowcontrolv1beta2.FlowSchema{ObjectMeta: meta, Spec: flowcontrolv1beta2.FlowSchemaSpec{MatchingPrecedence: 5, DistinguisherMethod: &flowcontrolv1beta2.FlowDistinguisherMethod{Type: "ByUser"}}},
		"v1beta3": &flowcontrolv1beta3.FlowSchema{ObjectMeta: meta, Spec: flowcontrolv1beta3.FlowSchemaSpec{MatchingPrecedence: 5, DistinguisherMethod: &flowcontrolv1beta3.FlowDistinguisherMethod{Type: "ByUser"}}},
	} {
		got, ok := read("flowschemas", version, obj).(*flowcontrolv1.FlowSchema)
		if !ok || got.UID != "u" || got.Spec.MatchingPrecedence != 5 || got.Spec.DistinguisherMethod == nil || got.Spec.DistinguisherMethod.Type != "ByUser" {
			t.Errorf("a schema of %s is read as %+v", version, got)
		}
	}
}
