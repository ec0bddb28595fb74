// Package controllertest runs controllers against the real request path over a
// store in memory, in a testing/synctest bubble: time is virtual, and a test can
// wait until nothing is left to do.
package controllertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"proa/internal/apis"
	"proa/internal/apis/builtin"
	"proa/internal/apiserver/registry"
	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/store"
	"proa/internal/store/memory"
)

// Namespace is where a world's objects live.
const Namespace = "default"

// World is an API with controllers, on virtual time.
type World struct {
	T   *testing.T
	API client.API // as an administrator; its writes are not counted

	Catalogue *apis.Catalogue // what API serves

	controllers client.API
	registry    *registry.Registry

	mu     sync.Mutex // guards what follows
	events []string
	writes map[string]int
	total  int
	fail   func(n int) (before, after error)

	measured *prometheus.Registry // nil: nobody asks
}

// Runner is a controller.
type Runner interface{ Run(context.Context) error }

// Run calls test in a bubble with an empty API.
func Run(t *testing.T, test func(w *World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		catalogue := builtin.Catalogue()
		s, err := store.Open(t.Context(), store.Config{Engine: memory.New(), Codec: registry.NewCodec(catalogue)})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		r, err := registry.New(registry.Config{Store: s, Catalogue: catalogue, Clock: clock.RealClock{}})
		if err != nil {
			t.Fatal(err)
		}
		w := &World{T: t, registry: r, Catalogue: catalogue, writes: map[string]int{},
			API: r.As(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})}
		w.controllers = &counted{API: r.As(&user.DefaultInfo{Name: "controller", Groups: []string{user.SystemPrivilegedGroup}}), world: w}
		w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}})
		test(w)
	})
}

// Start runs the controllers that build makes and the cache that they share
// until the returned stop is called, which waits for their end.
func (w *World) Start(build func(controllers.Config) []Runner) (stop func()) {
	ctx, cancel := context.WithCancel(w.T.Context())
	cache := client.NewCache(w.controllers)
	runners := build(controllers.Config{
		Cache: cache, Clock: clock.RealClock{},
		Recorder: func(string) record.EventRecorder { return recorder{w} },
	})
	var wg sync.WaitGroup
	wg.Go(func() { _ = cache.Run(ctx) })
	if err := cache.WaitForSync(ctx); err != nil {
		w.T.Fatal(err)
	}
	for _, r := range runners {
		wg.Go(func() { _ = r.Run(ctx) })
	}
	w.Settle()
	return func() {
		cancel()
		wg.Wait()
	}
}

// Registry is for Config.Metrics of a controller, for Measured.
func (w *World) Registry() *prometheus.Registry {
	if w.measured == nil {
		w.measured = prometheus.NewPedanticRegistry()
	}
	return w.measured
}

// Measured checks lines of what controllers have measured, as /metrics shows them.
func (w *World) Measured(lines ...string) {
	w.T.Helper()
	families, err := w.Registry().Gather()
	if err != nil {
		w.T.Fatal(err)
	}
	var page strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&page, f); err != nil {
			w.T.Fatal(err)
		}
	}
	for _, line := range lines {
		if strings.Contains("\n"+page.String(), "\n"+line+"\n") {
			continue
		}
		name, _, _ := strings.Cut(line, "{")
		w.T.Errorf("not measured: %s", line)
		for like := range strings.Lines(page.String()) {
			if strings.HasPrefix(like, name) {
				w.T.Log(like)
			}
		}
	}
}

// Serve adds a kind that s computes.
func (w *World) Serve(resource *apis.Resource, s registry.Source) {
	w.T.Helper()
	if err := w.registry.Serve(resource, s); err != nil {
		w.T.Fatal(err)
	}
}

// As is the API as another user.
func (w *World) As(name string, groups ...string) client.API {
	return w.registry.As(&user.DefaultInfo{Name: name, Groups: groups})
}

// Settle waits until nothing happens any more before time passes.
func (w *World) Settle() { synctest.Wait() }

// Create creates an object, in Namespace if it names none and its kind has them.
func (w *World) Create(obj client.Object) {
	w.T.Helper()
	if _, isNamespace := obj.(*corev1.Namespace); !isNamespace && obj.GetNamespace() == "" {
		if _, isNode := obj.(*corev1.Node); !isNode {
			obj.SetNamespace(Namespace)
		}
	}
	r, ok := builtin.Catalogue().Of(obj)
	if !ok {
		w.T.Fatalf("%T is not a built-in kind", obj)
	}
	ref := client.Ref{Resource: r.GroupVersionResource(), Namespace: obj.GetNamespace()}
	if _, err := w.API.Create(w.T.Context(), ref, obj, metav1.CreateOptions{}); err != nil {
		w.T.Fatalf("create %T %s: %v", obj, obj.GetName(), err)
	}
}

// Get reads an object.
func Get[T client.Object](w *World, name string) T {
	w.T.Helper()
	obj, err := client.Of[T](w.API).Get(w.T.Context(), Namespace, name)
	if err != nil {
		w.T.Fatal(err)
	}
	return obj
}

// List reads all objects of a kind, by name.
func List[T client.Object](w *World) []T {
	w.T.Helper()
	objs, err := client.Of[T](w.API).List(w.T.Context(), "", metav1.ListOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	return objs
}

// Change updates an object and settles.
func Change[T client.Object](w *World, name string, change func(T)) {
	w.T.Helper()
	edit(w, name, change, client.Resource[T].Update)
}

// ChangeStatus updates an object's status and settles.
func ChangeStatus[T client.Object](w *World, name string, change func(T)) {
	w.T.Helper()
	edit(w, name, change, client.Resource[T].UpdateStatus)
}

func edit[T client.Object](w *World, name string, change func(T), write func(client.Resource[T], context.Context, T) (T, error)) {
	w.T.Helper()
	obj := Get[T](w, name).DeepCopyObject().(T)
	change(obj)
	if _, err := write(client.Of[T](w.API), w.T.Context(), obj); err != nil {
		w.T.Fatalf("change %T %s: %v", obj, name, err)
	}
	w.Settle()
}

// Delete deletes an object at once, whatever its grace period, and settles.
func Delete[T client.Object](w *World, name string) {
	w.T.Helper()
	_, err := client.Of[T](w.API).Delete(w.T.Context(), Namespace, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	if err != nil {
		w.T.Fatal(err)
	}
	w.Settle()
}

// Pods lists the pods that match a selector such as "app=web", by name.
func (w *World) Pods(selector string) []*corev1.Pod {
	w.T.Helper()
	s, err := labels.Parse(selector)
	if err != nil {
		w.T.Fatal(err)
	}
	return slices.DeleteFunc(List[*corev1.Pod](w), func(p *corev1.Pod) bool { return !s.Matches(labels.Set(p.Labels)) })
}

// Events are those recorded so far, as "Normal Reason message", in order.
func (w *World) Events() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

// Writes are the controllers' successful writes since the last call: counts of
// entries such as "create pods" and "update deployments/status".
func (w *World) Writes() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	counted := w.writes
	w.writes = map[string]int{}
	return counted
}

// FailWrites makes writes of controllers fail: fail is asked with the number of
// each, from 0, what to answer before and after it is carried out. Nil ends it.
func (w *World) FailWrites(fail func(n int) (before, after error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail, w.total = fail, 0
}

// DieAt is for FailWrites: the controllers die at write n, before or after it is
// carried out, and write nothing any more.
func DieAt(n int, carriedOut bool) func(int) (before, after error) {
	dead := errors.New("the controller is dead")
	return func(i int) (before, after error) {
		switch {
		case i < n:
			return nil, nil
		case i == n && carriedOut:
			return nil, dead
		}
		return dead, nil
	}
}

type recorder struct{ w *World }

func (r recorder) Event(_ runtime.Object, kind, reason, message string) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.w.events = append(r.w.events, kind+" "+reason+" "+message)
}

func (r recorder) Eventf(obj runtime.Object, kind, reason, format string, args ...any) {
	r.Event(obj, kind, reason, fmt.Sprintf(format, args...))
}

func (r recorder) AnnotatedEventf(obj runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	r.Eventf(obj, kind, reason, format, args...)
}
