package memory_test

import (
	"testing"

	"proa/internal/store"
	"proa/internal/store/memory"
	"proa/internal/store/storetest"
)

func TestEngine(t *testing.T) {
	storetest.Run(t, func(testing.TB) func() store.Engine {
		e := memory.New()
		return func() store.Engine { return e }
	})
}

func TestForgetfulKeepsTheRevisionOnly(t *testing.T) {
	e := memory.Forgetful()
	s := storetest.Open(t, store.Config{Engine: e})
	for _, name := range []string{"a", "b"} {
		if _, err := storetest.Apply(t.Context(), s, "ns", name, "x"); err != nil {
			t.Fatal(err)
		}
	}
	again := storetest.Open(t, store.Config{Engine: e})
	if again.Revision() != 2 || len(storetest.Dump(again.Snapshot())) != 0 {
		t.Errorf("reopened at %d with %v", again.Revision(), storetest.Dump(again.Snapshot()))
	}
}
