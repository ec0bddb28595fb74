package apply

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"

	kjson "sigs.k8s.io/json"

	"proa/internal/apis"
)

// configuration is what a person would apply to get obj.
func configuration(t *testing.T, obj apis.Object, res *apis.Resource) *unstructured.Unstructured {
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
	u.SetGroupVersionKind(res.GroupVersionKind())
	return u
}

// edit changes values of a configuration, leaves fields out and turns lists round.
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
			switch rng.IntN(60) {
			case 0:
				delete(v, name)
				continue
			case 1:
				v[name] = map[string]any{}
				continue
			case 2:
				v[name] = nil
				continue
			}
			v[name] = edit(rng, v[name])
		}
		return v
	case []any:
		for i := range v {
			v[i] = edit(rng, v[i])
		}
		switch rng.IntN(20) {
		case 0:
			slices.Reverse(v)
		case 1:
			return v[:0]
		}
		return v
	case string:
		switch {
		case rng.IntN(4) > 0:
			return v
		case v == "1Gi" || v == "2Gi" || v == "1":
			return []string{"1Gi", "2Gi", "3", "1024Mi"}[rng.IntN(4)]
		case v == "TCP" || v == "UDP":
			return v
		}
		return v + "x"
	case int64:
		return v + int64(rng.IntN(2))
	}
	return v
}

// kind is a kind and random objects of it.
type kind struct {
	res  *apis.Resource
	make func(*rand.Rand) apis.Object
}

func kinds() []kind {
	return []kind{
		{&apis.Resource{Version: "v1", Kind: "Pod", Plural: "pods", New: apis.New[corev1.Pod],
			Subresources: []apis.Subresource{{Name: "status"}}}, randomPod},
		{&apis.Resource{Group: "apps", Version: "v1", Kind: "Deployment", Plural: "deployments",
			New: apis.New[appsv1.Deployment], Subresources: []apis.Subresource{{Name: "status"}}}, randomDeployment},
		{&apis.Resource{Version: "v1", Kind: "Service", Plural: "services", New: apis.New[corev1.Service],
			Subresources: []apis.Subresource{{Name: "status"}}, Default: func(obj apis.Object) {
				if s := obj.(*corev1.Service); s.Spec.Type == "" {
					s.Spec.Type = corev1.ServiceTypeClusterIP
				}
			}}, randomService},
	}
}

func randomService(rng *rand.Rand) apis.Object {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", UID: "u"}}
	random(rng, s, &corev1.PodSpec{})
	for i := range rng.IntN(4) {
		p := corev1.ServicePort{Port: int32(80 + rng.IntN(4)), Name: string(rune('a' + i)), TargetPort: intstr.FromInt(rng.IntN(3))}
		if rng.IntN(2) == 0 {
			p.Protocol = corev1.Protocol([]string{"TCP", "UDP"}[rng.IntN(2)])
		}
		s.Spec.Ports = append(s.Spec.Ports, p)
	}
	if rng.IntN(2) == 0 {
		s.Spec.Selector = map[string]string{"app": string(rune('a' + rng.IntN(3)))}
	}
	if rng.IntN(3) == 0 {
		s.Spec.Type = []corev1.ServiceType{"NodePort", "LoadBalancer"}[rng.IntN(2)]
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{}}
	}
	if rng.IntN(3) == 0 {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.0.0.1"}}
	}
	return s
}

// TestApplyingIsWhatStructuredMergeDiffDoes lets managers apply, by force and
// without, change and drop fields, beside others that update, and holds every step
// to structured-merge-diff.
func TestApplyingIsWhatStructuredMergeDiffDoes(t *testing.T) {
	for _, k := range kinds() {
		t.Run(k.res.Plural, func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(5, 6))
			applies, covered := 0, 0
			for range 40 {
				a, c := k.play(t, rng, false)
				applies, covered = applies+a, covered+c
			}
			if covered*10 < applies*7 {
				t.Errorf("only %d of %d applies were covered", covered, applies)
			}
		})
	}
}

func FuzzApplying(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Add(uint64(231), uint64(0)) // a new struct with a field that is always written
	f.Fuzz(func(t *testing.T, a, b uint64) {
		all := kinds()
		all[a%uint64(len(all))].play(t, rand.New(rand.NewPCG(a, b)), b%3 == 0)
	})
}

// play is some writes to one object. It counts the applies, and those that were
// merged in Go structs. Wild writes change what their owners cannot own.
func (k kind) play(t *testing.T, rng *rand.Rand, wild bool) (applies, covered int) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
	managers := New(clock)
	var live apis.Object
	configs := map[string]*unstructured.Unstructured{}
	for step := range 6 {
		clock.SetTime(clock.Now().Add(time.Minute))
		m := managers.mustFor(t, k.res, "")
		if live != nil && rng.IntN(4) == 0 {
			m = managers.mustFor(t, k.res, "status")
		}
		who := []string{"one", "two", "three"}[rng.IntN(3)]
		if live != nil && rng.IntN(4) == 0 {
			other := k.make(rng)
			other.SetUID("u")
			if !wild {
				isolate(other, live, m.subresource)
			}
			m.Updated(other, live, who)
			live = other
			continue
		}
		config := configs[who]
		if config == nil || rng.IntN(4) == 0 {
			config = configuration(t, k.make(rng), k.res)
		} else {
			config = config.DeepCopy()
			edit(rng, config.Object)
		}
		configs[who] = config
		next, fast := m.compareApply(t, live, config, who, rng.IntN(3) > 0)
		if t.Failed() {
			t.Fatalf("step %d", step)
		}
		if next == nil {
			continue
		}
		applies++
		if fast {
			covered++
		}
		next.SetUID("u")
		live = next
	}
	return applies, covered
}

// isolate gives an object the status of another, or all but the status.
func isolate(obj, from apis.Object, subresource string) {
	to, have := reflect.ValueOf(obj).Elem(), reflect.ValueOf(from).Elem()
	for i := range to.NumField() {
		if (to.Type().Field(i).Name == "Status") != (subresource == "status") {
			to.Field(i).Set(have.Field(i))
		}
	}
}

// compareApply applies both ways and returns the result of structured-merge-diff,
// nil where that refuses, and whether the fast way covered it.
func (m *Manager) compareApply(t *testing.T, live apis.Object, config *unstructured.Unstructured, who string, force bool) (apis.Object, bool) {
	t.Helper()
	before, _ := json.Marshal(live)
	fast, ok := m.merge(live, config.DeepCopy(), who, force)
	if after, _ := json.Marshal(live); string(before) != string(after) {
		t.Fatalf("the object was changed:\n%s\n%s", before, after)
	}
	var entries []metav1.ManagedFieldsEntry
	from := m.empty()
	if live != nil {
		from, entries = live, live.GetManagedFields()
	}
	slow, err := m.apply(from, entries, config.DeepCopy(), who, force)
	if err != nil {
		if ok {
			t.Errorf("covered, but %v\nconfig %v", err, config.Object)
		}
		return nil, false
	}
	if !ok {
		return slow, false
	}
	got, _ := json.Marshal(fast)
	want, _ := json.Marshal(slow)
	if string(got) != string(want) {
		t.Errorf("config %v by %s, %v\nlive %s\ngot  %s\nwant %s", config.Object, who, force, before, got, want)
	}
	return slow, true
}

func TestWhatIsMergedInGoStructs(t *testing.T) {
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
		"another manager":              {live, config(), "two", true},
		"a further field":              {live, config(set("v", "metadata", "labels", "b")), "one", true},
		"a field less":                 {live, config(func(o map[string]any) { unstructured.RemoveNestedField(o, "metadata", "labels") }), "one", true},
		"an unknown field":             {live, config(set("v", "spec", "unknown")), "one", false},
		"a wrong type":                 {live, config(set(int64(1), "spec", "nodeName")), "one", false},
		"a null":                       {live, config(set(nil, "spec", "nodeName")), "one", false},
		"another name":                 {live, config(set("q", "metadata", "name")), "one", true},
		"an identity":                  {live, config(set("u", "metadata", "uid")), "one", true},
		"another version":              {live, config(set("v2", "apiVersion")), "one", false},
		"another kind":                 {live, config(set("Node", "kind")), "one", false},
		"a field that another took":    {contested, config(), "one", false},
		"kubectl's annotation to keep": {kubectl, config(set(map[string]any{corev1.LastAppliedConfigAnnotation: "{}"}, "metadata", "annotations")), "kubectl", false},
	} {
		t.Run(name, func(t *testing.T) {
			if _, covered := m.merge(c.live, c.config, c.manager, false); covered != c.covered {
				t.Errorf("covered: %v", covered)
			}
		})
	}
}
