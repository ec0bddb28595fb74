package scheduler

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/events"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/clock"

	"proa/internal/apis/builtin"
	"proa/internal/apiserver/registry"
	"proa/internal/client"
	"proa/internal/store"
	"proa/internal/store/memory"
)

// world is a server in memory with the scheduler running.
type world struct {
	t      testing.TB
	ctx    context.Context
	api    client.API
	pods   *client.Informer[*corev1.Pod]
	nodes  *client.Informer[*corev1.Node]
	claims *client.Informer[*corev1.PersistentVolumeClaim]
	s      *Scheduler
	cache  *client.Cache
	stop   func()

	mu      sync.Mutex // guards what follows
	changed chan struct{}
	notes   []string
}

func newServer(t testing.TB, engine store.Engine) client.API {
	t.Helper()
	catalogue := builtin.Catalogue()
	s, err := store.Open(t.Context(), store.Config{Engine: engine, Codec: registry.NewCodec(catalogue)})
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

// start runs a scheduler over what the API holds already.
func start(t testing.TB, api client.API, change ...func(*Config)) *world {
	t.Helper()
	cache := client.NewCache(api)
	w := &world{
		t: t, api: api, cache: cache, changed: make(chan struct{}),
		pods:   client.Shared[*corev1.Pod](cache),
		nodes:  client.Shared[*corev1.Node](cache),
		claims: client.Shared[*corev1.PersistentVolumeClaim](cache),
	}
	c := Config{Cache: cache, Clock: clock.RealClock{}, Recorder: func(string) events.EventRecorder { return &notebook{w: w} }}
	for _, f := range change {
		f(&c)
	}
	var err error
	if w.s, err = New(c); err != nil {
		t.Fatal(err)
	}
	w.pods.OnChange(func(_, _ *corev1.Pod) { w.wake() })
	w.nodes.OnChange(func(_, _ *corev1.Node) { w.wake() })
	w.claims.OnChange(func(_, _ *corev1.PersistentVolumeClaim) { w.wake() })
	ctx, cancel := context.WithCancel(context.Background())
	w.ctx = ctx
	var wg sync.WaitGroup
	wg.Go(func() { cache.Run(ctx) })
	if err := cache.WaitForSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Go(func() {
		if err := w.s.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	w.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(w.stop)
	return w
}

// notebook is a recorder that the tests read.
type notebook struct{ w *world }

func (n *notebook) Eventf(regarding, _ runtime.Object, kind, reason, action, note string, args ...any) {
	name := ""
	if o, ok := regarding.(metav1.Object); ok {
		name = o.GetName()
	}
	n.w.mu.Lock()
	n.w.notes = append(n.w.notes, strings.Join([]string{name, kind, reason, action, fmt.Sprintf(note, args...)}, " "))
	n.w.mu.Unlock()
	n.w.wake()
}

func (w *world) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.changed = make(chan struct{})
}

// until waits for a state that changes lead to.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for {
		w.mu.Lock()
		changed := w.changed
		w.mu.Unlock()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-w.t.Context().Done():
			w.t.Fatal("waiting for " + what)
		}
	}
}

// noted waits for an event that contains text.
func (w *world) noted(text string) {
	w.t.Helper()
	w.until("event "+text, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, n := range w.notes {
			if strings.Contains(n, text) {
				return true
			}
		}
		return false
	})
}

// on waits until a pod is bound and returns its node.
func (w *world) on(pod string) (node string) {
	w.t.Helper()
	w.until(pod+" bound", func() bool {
		p, ok := w.pods.Cached("default", pod)
		if ok {
			node = p.Spec.NodeName
		}
		return node != ""
	})
	return node
}

// decision waits for a pod's node, or for the message that says why it has none.
func (w *world) decision(pod string) (said string) {
	w.t.Helper()
	w.until("a decision about "+pod, func() bool {
		p, ok := w.pods.Cached("default", pod)
		if !ok {
			return false
		}
		if said = p.Spec.NodeName; said != "" {
			return true
		}
		for _, v := range p.Spec.Volumes { // whose provisioning the binding waits for
			if c := v.PersistentVolumeClaim; c != nil {
				if claim, ok := w.claims.Cached("default", c.ClaimName); ok && claim.Annotations[storagehelpers.AnnSelectedNode] != "" {
					said = "selected " + claim.Annotations[storagehelpers.AnnSelectedNode]
					return true
				}
			}
		}
		for _, condition := range p.Status.Conditions {
			if condition.Type == corev1.PodScheduled {
				said = condition.Message
			}
		}
		return said != ""
	})
	return said
}

// pending waits until a pod's condition says why it has no node.
func (w *world) pending(pod string) (condition corev1.PodCondition) {
	w.t.Helper()
	w.until(pod+" pending", func() bool {
		p, ok := w.pods.Cached("default", pod)
		if !ok {
			return false
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason != corev1.PodReasonSchedulingGated {
				condition = c
			}
		}
		return condition.Reason != ""
	})
	return condition
}

func create[T client.Object](w *world, obj T) T {
	w.t.Helper()
	return mustCreate(w.t, w.api, obj)
}

func mustCreate[T client.Object](t testing.TB, api client.API, obj T) T {
	t.Helper()
	made, err := client.Of[T](api).Create(t.Context(), obj)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func node(name, cpu, memory string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory), corev1.ResourcePods: resource.MustParse("110"),
		}},
	}
	n.Status.Capacity = n.Status.Allocatable
	for _, f := range change {
		f(n)
	}
	return n
}

func label(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

func pod(name, cpu string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "busybox", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		}}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func newWorld(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	return start(t, newServer(t, memory.New()), change...)
}
