package builtin

import (
	"slices"
	"testing"
)

func TestWhoCreatesAnInertObjectIsWarned(t *testing.T) {
	catalogue := Catalogue()
	for name, text := range inert {
		r, found := catalogue.Stored(name)
		if !found {
			t.Errorf("%s is not served", name)
			continue
		}
		obj := r.New()
		if got := r.Warnings(obj, nil); !slices.Contains(got, text) {
			t.Errorf("%s: create warns %q, want %q among them", name, got, text)
		}
		if got := r.Warnings(obj, obj); slices.Contains(got, text) {
			t.Errorf("%s: an update warns again: %q", name, got)
		}
	}
}
