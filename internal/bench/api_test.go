package bench

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"proa/internal/apiextensions"
	"proa/internal/apis/builtin"
	"proa/internal/apiserver"
	"proa/internal/apiserver/registry"
	apiclient "proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/customresource"
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
	defined, err := apiextensions.New(apiextensions.Config{Store: st, Catalogue: catalogue})
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
	cache := apiclient.NewCache(r.As(&user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}))
	establish := customresource.New(controllers.Config{Cache: cache, Clock: clock.RealClock{}}, defined, catalogue)
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{defined.Run, cache.Run, establish.Run} {
		running.Go(func() { _ = run(ctx) })
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		running.Wait()
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
	want := []string{"create", "get", "update", "merge patch", "apply", "delete",
		"custom resource create", "custom resource get", "custom resource update", "custom resource merge patch", "custom resource apply", "custom resource delete", "fan-out", "list", "list in pages of 500", "watch-list", "list, ten at once"}
	if !slices.Equal(tasks, want) {
		t.Errorf("measured %q, want %q", tasks, want)
	}
	if n := st.Snapshot().Len(schema.GroupResource{Resource: "pods"}, ""); n != 0 {
		t.Errorf("%d pods are left", n)
	}
}
