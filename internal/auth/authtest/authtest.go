// Package authtest opens stores over memory for the tests of authentication,
// authorization and admission.
package authtest

import (
	"encoding/json"
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/apis"
	"proa/internal/store"
	"proa/internal/store/memory"
)

type codec struct{}

func (codec) Encode(_ store.Key, obj store.Object) ([]byte, error) { return json.Marshal(obj) }

func (codec) Decode(store.Key, []byte) (store.Object, error) {
	return nil, errors.New("the engine keeps nothing to decode")
}

// Open returns a store that holds objects and ends with the test.
func Open(t testing.TB, objects ...store.Object) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{Engine: memory.Forgetful(), Codec: codec{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	Put(t, s, objects...)
	return s
}

// Key derives the key of an object from its type.
func Key(t testing.TB, obj store.Object) store.Key {
	t.Helper()
	kinds, _, err := apis.Scheme().ObjectKinds(obj)
	if err != nil {
		t.Fatal(err)
	}
	gvr, _ := meta.UnsafeGuessKindToResource(kinds[0])
	return store.Key{Resource: gvr.GroupResource(), Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

// Put creates or replaces objects, giving each without a uid its name for one.
func Put(t testing.TB, s *store.Store, objects ...store.Object) {
	t.Helper()
	_, err := s.Update(t.Context(), func(tx *store.Tx) error {
		for _, obj := range objects {
			obj := obj.DeepCopyObject().(store.Object)
			if obj.GetUID() == "" {
				obj.SetUID(types.UID(obj.GetName()))
			}
			key := Key(t, obj)
			_, err := tx.Create(key, obj)
			if errors.Is(err, store.ErrExists) {
				_, err = tx.Put(key, obj)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Delete removes objects.
func Delete(t testing.TB, s *store.Store, objects ...store.Object) {
	t.Helper()
	_, err := s.Update(t.Context(), func(tx *store.Tx) error {
		for _, obj := range objects {
			if err := tx.Delete(Key(t, obj)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
