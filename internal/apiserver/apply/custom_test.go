package apply

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/managedfields"
	clocktesting "k8s.io/utils/clock/testing"

	"proa/internal/apis"
)

func randomCustom(rng *rand.Rand) *unstructured.Unstructured {
	word := func() string { return string(rune('a' + rng.IntN(4))) }
	tree := func() map[string]any {
		m := map[string]any{}
		for range rng.IntN(4) {
			switch rng.IntN(3) {
			case 0:
				m[word()] = word()
			case 1:
				m[word()] = map[string]any{word(): int64(rng.IntN(3))}
			default:
				m[word()] = []any{word(), word()}
			}
		}
		return m
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": "a", "uid": "u", "labels": map[string]any{word(): word()}},
		"spec":     tree(),
	}}
	if rng.IntN(2) == 0 {
		u.Object["status"] = tree()
	}
	return u
}

func TestCustomResourcesAreTrackedAsStructuredMergeDiffDoes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	res := &apis.Resource{
		Group: "example.com", Version: "v1", Kind: "Widget", Plural: "widgets",
		New:          func() apis.Object { return &unstructured.Unstructured{Object: map[string]any{}} },
		Subresources: []apis.Subresource{{Name: "status"}},
		Custom: &apis.Custom{
			Lifetime: ctx, Merge: managedfields.NewDeducedTypeConverter,
			Convert: func(obj apis.Object, _ string) (apis.Object, error) { return obj, nil },
		},
	}
	clock := clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
	managers := New(clock)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		var old *unstructured.Unstructured
		for range 5 {
			m := managers.mustFor(t, res, []string{"", "status"}[rng.IntN(2)])
			fast := randomCustom(rng)
			slow := fast.DeepCopy()
			who := []string{"one", "two"}[rng.IntN(2)]
			if old == nil {
				m = managers.mustFor(t, res, "")
				if !m.created(fast, who) {
					t.Fatal("not covered")
				}
				m.updated(slow, m.empty(), who)
			} else {
				if !m.track(fast, old, who) {
					t.Fatal("not covered")
				}
				m.updated(slow, old, who)
			}
			got, _ := json.Marshal(fast.GetManagedFields())
			want, _ := json.Marshal(slow.GetManagedFields())
			if string(got) != string(want) {
				t.Fatalf("got  %s\nwant %s", got, want)
			}
			old = fast
			clock.SetTime(clock.Now().Add(time.Minute))
		}
	}
}
