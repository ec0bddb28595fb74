package nettest

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/apis/builtin"
	"proa/internal/apiserver/registry"
	"proa/internal/client"
	"proa/internal/store"
	"proa/internal/store/memory"
)

// API is an API server without HTTP, over a store in memory, as its administrator.
func API(t testing.TB) client.API {
	t.Helper()
	catalogue := builtin.Catalogue()
	s, err := store.Open(t.Context(), store.Config{Engine: memory.New(), Codec: registry.NewCodec(catalogue)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	r, err := registry.New(registry.Config{Store: s, Catalogue: catalogue})
	if err != nil {
		t.Fatal(err)
	}
	return r.As(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})
}

// Run runs f until the test ends, and fails the test with f's error.
func Run(t testing.TB, f func(context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Create makes objects.
func Create[T client.Object](t testing.TB, api client.API, objects ...T) {
	t.Helper()
	for _, obj := range objects {
		if _, err := client.Of[T](api).Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
}

// Namespaces makes those of the namespaces that are not there.
func Namespaces(t testing.TB, api client.API, names ...string) {
	t.Helper()
	for _, name := range names {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := client.Of[*corev1.Namespace](api).Create(t.Context(), ns); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
}
