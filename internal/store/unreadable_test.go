package store_test

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"

	"proa/internal/store"
	"proa/internal/store/memory"
	"proa/internal/store/storetest"
)

// lossy is a cipher whose key for some values can be lost.
type lossy struct{ lost atomic.Bool }

var errNoKey = errors.New("no key")

func (l *lossy) Generation() int32 { return 1 }

func (l *lossy) Seal(_ store.Key, plain []byte) ([]byte, int32, error) {
	return append([]byte("!"), plain...), 1, nil
}

func (l *lossy) Open(_ store.Key, sealed []byte) ([]byte, int32, error) {
	if l.lost.Load() && bytes.Contains(sealed, []byte("secret")) {
		return nil, 0, errNoKey
	}
	return sealed[1:], 1, nil
}

// kept is an engine that outlives its stores.
type kept struct{ store.Engine }

func (kept) Close() error { return nil }

func TestWhatCannotBeReadIsSetApart(t *testing.T) {
	ctx, engine, cipher := t.Context(), kept{memory.New()}, &lossy{}
	open := func() *store.Store { return storetest.Open(t, store.Config{Engine: engine, Cipher: cipher}) }
	s := open()
	apply(t, s, "a", "secret")
	apply(t, s, "b", "secret")
	old := apply(t, s, "c", "open")
	key, _ := storetest.ConfigMap("ns", "a", "")
	b, _ := storetest.ConfigMap("ns", "b", "")
	c, _ := storetest.ConfigMap("ns", "c", "")

	cipher.lost.Store(true)
	s = open()
	var u *store.Unreadable
	if _, err := s.Get(key); !errors.As(err, &u) || u.Key != key || !errors.Is(err, errNoKey) || errors.Is(err, store.ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	if list := s.Snapshot().Unreadable(key.Resource, "ns", key); len(list) != 1 || list[0].Key != b {
		t.Errorf("after the first: %v", list)
	}
	if n := s.Snapshot().Len(key.Resource, "ns"); n != 1 {
		t.Errorf("%d can be read", n)
	}
	in := func(fn func(tx *store.Tx) error) error { _, err := s.Update(ctx, fn); return err }
	for name, tt := range map[string]struct {
		do   func(tx *store.Tx) error
		want error
	}{
		"creates nothing in its place": {func(tx *store.Tx) error { _, err := tx.Create(storetest.ConfigMap("ns", "a", "x")); return err }, store.ErrExists},
		"does not replace it":          {func(tx *store.Tx) error { _, err := tx.Put(storetest.ConfigMap("ns", "a", "x")); return err }, errNoKey},
		"does not delete it":           {func(tx *store.Tx) error { return tx.Delete(key) }, errNoKey},
		"deletes nothing healthy":      {func(tx *store.Tx) error { return tx.DeleteUnreadable(c) }, store.ErrReadable},
		"deletes nothing at all":       {func(tx *store.Tx) error { d, _ := storetest.ConfigMap("ns", "d", ""); return tx.DeleteUnreadable(d) }, store.ErrNotFound},
	} {
		if err := in(tt.do); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}

	w, err := s.Watch(key.Resource, "ns", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := in(func(tx *store.Tx) error { return tx.DeleteUnreadable(key) }); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Next(ctx); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("a watch goes on: %v", err)
	}
	if _, err := s.Watch(key.Resource, "ns", old); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("a watch from before: %v", err)
	}
	if _, err := s.Get(key); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("after its deletion: %v", err)
	}
	if s.Reread(key.Resource) {
		t.Error("something can be read that could not")
	}
	later, err := s.Watch(key.Resource, "ns", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer later.Stop()
	cipher.lost.Store(false)
	if !s.Reread(key.Resource) || storetest.Text(get(t, s, "b")) != "secret" {
		t.Error("what can be read again is not there")
	}
	if _, err := later.Next(ctx); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("a watch does not learn of it: %v", err)
	}
	apply(t, s, "b", "more")
	s = open()
	if _, err := s.Get(key); !errors.Is(err, store.ErrNotFound) || storetest.Text(get(t, s, "b")) != "more" {
		t.Errorf("after opening again: %v", err)
	}
}
