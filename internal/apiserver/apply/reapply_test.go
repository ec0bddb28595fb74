package apply

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clocktesting "k8s.io/utils/clock/testing"

	kjson "sigs.k8s.io/json"

	"proa/internal/apis"
)

// configuration is what a person would apply to get obj.
func configuration(t *testing.T, obj apis.Object, apiVersion, kind string) *unstructured.Unstructured {
	t.Helper()
	data, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &u.Object); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"creationTimestamp", "uid", "managedFields", "resourceVersion"} {
		unstructured.RemoveNestedField(u.Object, "metadata", name)
	}
	u.Object["status"] = map[string]any{}
	unstructured.RemoveNestedField(u.Object, "spec", "template", "metadata", "creationTimestamp")
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	return u
}

// edit changes some values of a configuration, rarely its shape.
func edit(rng *rand.Rand, v any) any {
	switch v := v.(type) {
	case map[string]any:
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			switch name {
			case "apiVersion", "kind", "name", "metadata":
				continue
			}
			if rng.IntN(200) == 0 {
				delete(v, name)
				continue
			}
			v[name] = edit(rng, v[name])
		}
		return v
	case []any:
		for i := range v {
			v[i] = edit(rng, v[i])
		}
		if rng.IntN(40) == 0 {
			slices.Reverse(v)
		}
		return v
	case string:
		switch {
		case rng.IntN(4) > 0:
			return v
		case v == "1Gi" || v == "2Gi" || v == "1":
			return []string{"1Gi", "2Gi", "3"}[rng.IntN(3)]
		case v == "TCP" || v == "UDP":
			return v
		}
		return v + "x"
	case int64:
		return v + int64(rng.IntN(2))
	}
	return v
}

func TestReapplyingIsWhatStructuredMergeDiffDoes(t *testing.T) {
	kinds := []struct {
		res  *apis.Resource
		make func(*rand.Rand) apis.Object
	}{
		{&apis.Resource{Version: "v1", Kind: "Pod", Plural: "pods", New: apis.New[corev1.Pod],
			Subresources: []apis.Subresource{{Name: "status"}}}, randomPod},
		{&apis.Resource{Group: "apps", Version: "v1", Kind: "Deployment", Plural: "deployments",
			New: apis.New[appsv1.Deployment], Subresources: []apis.Subresource{{Name: "status"}}}, randomDeployment},
	}
	for _, k := range kinds {
		t.Run(k.res.Plural, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
			m := New(clock).mustFor(t, k.res, "")
			rng := rand.New(rand.NewPCG(5, 6))
			version := k.res.GroupVersionKind().GroupVersion().String()
			covered := 0
			for round := range 900 {
				config := configuration(t, k.make(rng), version, k.res.Kind)
				live, err := m.apply(m.empty(), nil, config.DeepCopy(), "one", true)
				if err != nil {
					continue // a random object that has no well-formed merge
				}
				live.SetUID("u")
				switch rng.IntN(4) {
				case 0:
					other := live.DeepCopyObject().(apis.Object)
					other.SetLabels(map[string]string{"a": "other"})
					m.Updated(other, live, "two")
					live = other
				case 1:
					theirs := configuration(t, k.make(rng), version, k.res.Kind)
					if merged, err := m.apply(live, live.GetManagedFields(), theirs, "two", true); err == nil {
						live = merged
					}
				}
				clock.SetTime(clock.Now().Add(time.Minute))
				before, _ := json.Marshal(live)
				edit(rng, config.Object)
				fast, ok := m.reapply(live, config.DeepCopy(), "one")
				if after, _ := json.Marshal(live); string(before) != string(after) {
					t.Fatalf("round %d: the object was changed:\n%s\n%s", round, before, after)
				}
				if !ok {
					continue
				}
				covered++
				slow, err := m.apply(live, live.GetManagedFields(), config.DeepCopy(), "one", false)
				if err != nil {
					t.Fatalf("round %d: covered, but %v", round, err)
				}
				m.sameTimes(t, fast, slow, live)
				got, _ := json.Marshal(fast)
				want, _ := json.Marshal(slow)
				if string(got) != string(want) {
					t.Fatalf("round %d\nconfig %v\nlive %s\ngot  %s\nwant %s", round, config.Object, before, got, want)
				}
			}
			if covered < 40 {
				t.Errorf("only %d rounds were covered", covered)
			}
		})
	}
}

// sameTimes checks that an apply which changed nothing kept the times, which the
// general way leaves to the write, and brings them together.
func (m *Manager) sameTimes(t *testing.T, fast, slow, live apis.Object) {
	t.Helper()
	strip := func(obj apis.Object) string {
		o := obj.DeepCopyObject().(apis.Object)
		o.SetManagedFields(nil)
		data, _ := json.Marshal(o)
		return string(data)
	}
	if strip(live) == strip(slow) {
		if !sameEntries(fast.GetManagedFields(), live.GetManagedFields()) {
			t.Errorf("times of an apply that changed nothing: %v", fast.GetManagedFields())
		}
		slow.SetManagedFields(fast.GetManagedFields())
	}
}

func TestOnlyAnApplyOfTheSameFieldsIsReapplied(t *testing.T) {
	m := New(clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))).mustFor(t,
		&apis.Resource{Version: "v1", Kind: "Pod", Plural: "pods", New: apis.New[corev1.Pod],
			Subresources: []apis.Subresource{{Name: "status"}}}, "")
	config := func(change ...func(map[string]any)) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Pod",
			"metadata": map[string]any{"name": "p", "labels": map[string]any{"a": "b"}},
			"spec": map[string]any{"nodeName": "n", "containers": []any{map[string]any{
				"name": "c", "image": "i", "ports": []any{map[string]any{"containerPort": int64(80)}},
				"resources": map[string]any{"limits": map[string]any{"cpu": "1"}},
			}}},
		}}
		for _, f := range change {
			f(u.Object)
		}
		return u
	}
	set := func(value any, path ...string) func(map[string]any) {
		return func(o map[string]any) { _ = unstructured.SetNestedField(o, value, path...) }
	}
	live, err := m.apply(m.empty(), nil, config(), "one", false)
	if err != nil {
		t.Fatal(err)
	}
	kubectl, err := m.apply(m.empty(), nil, config(set(map[string]any{corev1.LastAppliedConfigAnnotation: "{}"}, "metadata", "annotations")), "kubectl", false)
	if err != nil {
		t.Fatal(err)
	}
	contested := live.DeepCopyObject().(apis.Object)
	contested.(*corev1.Pod).Spec.Containers[0].Image = "theirs"
	contested.SetUID("u")
	m.Updated(contested, live, "two")
	for name, c := range map[string]struct {
		live    apis.Object
		config  *unstructured.Unstructured
		manager string
		covered bool
	}{
		"the same":                     {live, config(), "one", true},
		"an empty status":              {live, config(set(map[string]any{}, "status")), "one", true},
		"another value":                {live, config(set("m", "spec", "nodeName")), "one", true},
		"another quantity":             {live, config(set([]any{map[string]any{"name": "c", "image": "i", "ports": []any{map[string]any{"containerPort": int64(80)}}, "resources": map[string]any{"limits": map[string]any{"cpu": "2"}}}}, "spec", "containers")), "one", true},
		"another manager":              {live, config(), "two", false},
		"a further field":              {live, config(set("v", "metadata", "labels", "b")), "one", false},
		"a field less":                 {live, config(func(o map[string]any) { unstructured.RemoveNestedField(o, "metadata", "labels") }), "one", false},
		"an unknown field":             {live, config(set("v", "spec", "unknown")), "one", false},
		"a wrong type":                 {live, config(set(int64(1), "spec", "nodeName")), "one", false},
		"a null":                       {live, config(set(nil, "spec", "nodeName")), "one", false},
		"another name":                 {live, config(set("q", "metadata", "name")), "one", false},
		"an identity":                  {live, config(set("u", "metadata", "uid")), "one", false},
		"another version":              {live, config(set("v2", "apiVersion")), "one", false},
		"another kind":                 {live, config(set("Node", "kind")), "one", false},
		"a field that another took":    {contested, config(), "one", false},
		"kubectl's annotation to keep": {kubectl, config(set(map[string]any{corev1.LastAppliedConfigAnnotation: "{}"}, "metadata", "annotations")), "kubectl", false},
	} {
		t.Run(name, func(t *testing.T) {
			if _, covered := m.reapply(c.live, c.config, c.manager); covered != c.covered {
				t.Errorf("covered: %v", covered)
			}
		})
	}
}
