// Package objects holds the API objects to what upstream's conformance tests
// demand of them: over HTTP with upstream's client, against a server in memory.
// No test here needs a container; those that do are in test/e2e.
package objects

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"proa/pkg/proatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come: far longer than it
// takes, so that only a server that never does it fails.
const patience = time.Minute

// space is the namespace of the objects of a test.
const space = "space"

// server is one API server with a namespace for the test.
type server struct {
	access *rest.Config
	kubernetes.Interface
}

func newServer(t *testing.T, o proatest.Options) *server {
	t.Helper()
	access := proatest.Start(t, o)
	access.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{access: access, Interface: client}
	s.namespace(t, space)
	return s
}

func (s *server) namespace(t *testing.T, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := s.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// within is the context of requests that a test waits for.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// next is the next event of a watch.
func next(ctx context.Context, t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case e, open := <-w.ResultChan():
		if !open {
			t.Fatal("the watch has ended")
		}
		return e
	case <-ctx.Done():
		t.Fatal("no event has come")
	}
	return watch.Event{}
}

// must is for calls that have to succeed: must(api.Get(...))(t).
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
