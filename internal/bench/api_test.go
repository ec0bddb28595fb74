package bench

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"proa/internal/apis/builtin"
	"proa/internal/apiserver"
	"proa/internal/apiserver/registry"
	"proa/internal/store"
	"proa/internal/store/memory"
)

// serve runs an API server over memory that trusts everybody.
func serve(t *testing.T) (*rest.Config, *store.Store) {
	t.Helper()
	catalogue := builtin.Catalogue()
	st, err := store.Open(t.Context(), store.Config{Engine: memory.New(), Codec: registry.NewCodec(catalogue)})
	if err != nil {
		t.Fatal(err)
	}
	r, err := registry.New(registry.Config{Store: st, Catalogue: catalogue})
	if err != nil {
		t.Fatal(err)
	}
	certified := httptest.NewTLSServer(nil)
	certified.Close()
	s, err := apiserver.New(apiserver.Config{
		Registry: r, Store: st, Insecure: true, TLS: &tls.Config{Certificates: certified.TLS.Certificates}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		st.Close()
	})
	return &rest.Config{Host: "https://" + l.Addr().String(), TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, st
}

func TestEverythingIsMeasuredAndNothingIsLeft(t *testing.T) {
	config, st := serve(t)
	var tasks []string
	api := API{
		Config: config, Clients: []int{2}, Duration: time.Nanosecond, Pods: 1100, Repeat: 1, Watchers: []int{3}, Streams: 2, Events: 96,
	}
	err := api.Run(t.Context(), func(f Figure) {
		if f.Count == 0 || f.Failed > 0 || f.Seconds <= 0 || f.P50 <= 0 || f.P99 < f.P50 {
			t.Errorf("%+v", f)
		}
		if !slices.Contains(tasks, f.Task) {
			tasks = append(tasks, f.Task)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"create", "get", "update", "merge patch", "apply", "delete", "fan-out", "list", "list in pages of 500", "watch-list", "list, ten at once"}
	if !slices.Equal(tasks, want) {
		t.Errorf("measured %q, want %q", tasks, want)
	}
	if n := st.Snapshot().Len(schema.GroupResource{Resource: "pods"}, ""); n != 0 {
		t.Errorf("%d pods are left", n)
	}
}
