package patch

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/apis"
	"proa/internal/apiserver/wire"
)

// No patch panics, changes the object that it is applied to, or fails with
// anything but the client's fault.
func FuzzApply(f *testing.F) {
	kinds := []types.PatchType{types.JSONPatchType, types.MergePatchType, types.StrategicMergePatchType}
	for _, seed := range []struct {
		kind int
		data string
	}{
		{0, `[{"op":"replace","path":"/spec/containers/0/image","value":"b"},{"op":"move","from":"/metadata/labels","path":"/metadata/annotations"}]`},
		{0, `[{"op":"copy","from":"","path":"/a"},{"op":"remove","path":"/spec/containers/-1"},{"op":"test","path":"~2"}]`},
		{1, `{"metadata":{"labels":null},"spec":{"containers":[{"name":"x"}]}}`},
		{2, `{"spec":{"containers":[{"name":"c","$patch":"delete"}],"$setElementOrder/containers":[{"name":"d"}]}}`},
		{2, `{"spec":{"$retainKeys":["a"],"volumes":[{"$patch":"replace"}],"$deleteFromPrimitiveList/x":[1]}}`},
		{2, `{"$patch":"explode"}`},
	} {
		f.Add(seed.kind, []byte(seed.data))
	}
	form := wire.Form{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, New: func() apis.Object { return new(corev1.Pod) }}
	f.Fuzz(func(t *testing.T, kind int, data []byte) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns", Labels: map[string]string{"app": "a"}, Finalizers: []string{"x/y"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "a", Env: []corev1.EnvVar{{Name: "A", Value: "1"}}}}},
		}
		before, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		p := &Patch{Type: kinds[uint(kind)%3], Data: data, Form: form}
		_, err = p.Apply(t.Context(), pod)
		if err != nil && apierrors.IsInternalError(err) {
			t.Errorf("%s %q: %v", p.Type, data, err)
		}
		after, err := json.Marshal(pod)
		if err != nil || string(after) != string(before) {
			t.Errorf("%s %q changed what it was applied to, %v", p.Type, data, err)
		}
	})
}

// FuzzMerge: a merge is the library's, whatever document and patch are.
func FuzzMerge(f *testing.F) {
	f.Add([]byte(`{"a":{"b":1,"c":[{"d":null}]},"e":null}`), []byte(`{"a":{"b":null,"c":{"x":null}},"e":[{"f":null}]}`))
	f.Add([]byte(`{"a":1,"a":{"b":2}}`), []byte(`{"a":{"b":{"c":null}},"\u0061":1e400}`))
	f.Add([]byte(`{}`), []byte(` [null,{"a":null}] `))
	f.Add([]byte(`{"a":"\ud800"}`), []byte(`{"b":"\ud800","<":null}`))
	f.Fuzz(func(t *testing.T, doc, patch []byte) {
		// A document is what the server wrote: valid, without a name twice.
		var object map[string]any
		if json.Unmarshal(doc, &object) != nil || object == nil {
			return
		}
		written, err := json.Marshal(object)
		if err != nil || depth(patch) > 100 || depth(written) > 100 {
			return
		}
		agree(t, written, patch)
	})
}
