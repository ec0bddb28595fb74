package registry

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/apis/builtin"
	"proa/internal/client"
	"proa/internal/store"
	"proa/internal/store/pebble"
)

// server is a registry over a store on a disk.
type server struct {
	client.API
	store *store.Store
}

func startServer(t *testing.T, fs vfs.FS) *server {
	t.Helper()
	engine, err := pebble.Open(pebble.Config{Dir: "store", FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	catalogue := builtin.Catalogue()
	s, err := store.Open(t.Context(), store.Config{Engine: engine, Codec: NewCodec(catalogue), Indexes: Indexes(catalogue)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	r, err := New(Config{Store: s, Catalogue: catalogue})
	if err != nil {
		t.Fatal(err)
	}
	return &server{r.As(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}), s}
}

// address is where clients find the server that runs at the moment. It notes
// from which resourceVersion they watch.
type address struct {
	client.API
	mu      sync.Mutex
	current *server
	watches []string // "": with the initial list
	refused int
}

func (a *address) Watch(ctx context.Context, ref client.Ref, opts metav1.ListOptions) (client.Watch, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watches = append(a.watches, opts.ResourceVersion)
	w, err := a.current.Watch(ctx, ref, opts)
	if err != nil {
		a.refused++
	}
	return w, err
}

func TestAnInformerResumesAfterACrashOfTheServer(t *testing.T) {
	fs := vfs.NewCrashableMem()
	first := startServer(t, fs)
	put := func(s *server, i int) string {
		t.Helper()
		ref := in(podsV1, "")
		p := pod("p" + strconv.Itoa(i))
		p.Spec.NodeName = "n" + strconv.Itoa(i%2)
		obj, err := s.Create(t.Context(), ref, p, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return obj.GetResourceVersion()
	}
	put(first, 0)
	at := &address{API: first, current: first}
	cache := client.NewCache(at)
	pods := client.Shared[*corev1.Pod](cache)
	mine := client.Filtered[*corev1.Pod](cache, metav1.ListOptions{FieldSelector: "spec.nodeName=n1"})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- cache.Run(ctx) }()
	if err := cache.WaitForSync(ctx); err != nil {
		t.Fatal(err)
	}
	seen := put(first, 1)
	for _, informer := range []*client.Informer[*corev1.Pod]{pods, mine} {
		if err := informer.WaitFor(ctx, seen); err != nil {
			t.Fatal(err)
		}
	}

	at.mu.Lock() // nobody reaches the server while it is away
	put(first, 2)
	put(first, 3)
	if _, err := first.Delete(ctx, in(podsV1, "p0"), metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	second := startServer(t, fs.CrashClone(vfs.CrashCloneCfg{}))
	at.current = second
	first.store.Close()
	at.mu.Unlock()

	seen = put(second, 5)
	for _, informer := range []*client.Informer[*corev1.Pod]{pods, mine} {
		if err := informer.WaitFor(ctx, seen); err != nil {
			t.Fatal(err)
		}
	}
	_, kept := pods.Cached("default", "p3")
	if _, removed := pods.Cached("default", "p0"); !kept || removed {
		t.Errorf("has the pod made meanwhile: %v, the one removed meanwhile: %v", kept, removed)
	}
	if _, ok := mine.Cached("default", "p2"); ok {
		t.Error("the informer of one node has a pod of the other")
	}
	cancel()
	<-done
	if at.refused > 0 {
		t.Errorf("%d watches were refused", at.refused)
	}
	for _, rv := range at.watches[2:] {
		if rv == "" {
			t.Errorf("listed again: watches from %q", at.watches)
		}
	}
	if len(at.watches) != 4 {
		t.Errorf("watches from %q, want two before and two after", at.watches)
	}
}

func TestPodsAreFoundByNode(t *testing.T) {
	w := newWorld(t)
	for i := range 20 {
		p := pod("p" + strconv.Itoa(i))
		if i%4 > 0 {
			p.Spec.NodeName = "n" + strconv.Itoa(i%4)
		}
		w.create(podsV1, p)
	}
	tests := []struct {
		name     string
		selector string
		want     int
	}{
		{"of one node", "spec.nodeName=n1", 5},
		{"by the older name", "spec.host=n1", 5},
		{"not yet assigned", "spec.nodeName=", 5},
		{"of all other nodes", "spec.nodeName!=n1", 15},
		{"of a node and in a phase", "status.phase=Pending,spec.nodeName=n2", 5},
		{"of a node and in no such phase", "status.phase!=Pending,spec.nodeName=n2", 0},
		{"of two nodes at once", "spec.nodeName=n2,spec.nodeName=n1", 0},
		{"of one node and with a name", "spec.nodeName=n1,metadata.name=p1", 1},
		{"of one node without a name", "spec.nodeName=n1,metadata.name!=p1", 4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var names []string
			for opts := (metav1.ListOptions{FieldSelector: tt.selector, Limit: 2}); ; {
				list, err := w.admin.List(w.ctx, in(podsV1, ""), opts)
				if err != nil {
					t.Fatal(err)
				}
				for _, obj := range list.Items {
					names = append(names, obj.GetName())
				}
				if opts.Continue = list.Continue; opts.Continue == "" {
					break
				}
			}
			if len(names) != tt.want {
				t.Errorf("found %v, want %d", names, tt.want)
			}
		})
	}
}

func TestAWatchOfANodesPodsSeesThemComeAndGo(t *testing.T) {
	w := newWorld(t)
	w.create(podsV1, pod("other"))
	changes, err := w.admin.Watch(w.ctx, in(podsV1, ""), metav1.ListOptions{FieldSelector: "spec.nodeName=n1", ResourceVersion: "1"})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()
	w.create(podsV1, pod("a"))
	_, err = w.admin.Create(w.ctx, in(podsV1, "a", "binding"), &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: "a"}, Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.patch(podsV1, "a", "application/merge-patch+json", `{"metadata":{"labels":{"x":"y"}}}`); err != nil {
		t.Fatal(err)
	}
	if _, err := w.admin.Delete(w.ctx, in(podsV1, "a"), metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	var got []watch.EventType
	for len(got) < 3 {
		events, err := changes.Next(w.ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			got = append(got, e.Type)
			if e.Object.GetName() != "a" {
				t.Errorf("%s %s", e.Type, e.Object.GetName())
			}
		}
	}
	if want := []watch.EventType{watch.Added, watch.Modified, watch.Deleted}; !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
}

func TestWritesInTheProcessAreRecordedAsUpstreamsPrograms(t *testing.T) {
	w := newWorld(t)
	tests := []struct{ user, want string }{
		{"system:kube-scheduler", "kube-scheduler"},
		{"system:kube-controller-manager", "kube-controller-manager"},
		{"system:serviceaccount:kube-system:replicaset-controller", "kube-controller-manager"},
		{"system:serviceaccount:default:operator", "operator"},
		{"system:node:n1", "kubelet"},
		{"system:apiserver", "kube-apiserver"},
		{"admin", "admin"},
	}
	for i, tt := range tests {
		t.Run(tt.user, func(t *testing.T) {
			obj, err := w.As(&user.DefaultInfo{Name: tt.user}).Create(w.ctx, in(configMaps, ""), configMap("c"+strconv.Itoa(i), map[string]string{"k": "v"}), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := obj.GetManagedFields()[0].Manager; got != tt.want {
				t.Errorf("manager %q, want %q", got, tt.want)
			}
		})
	}
	obj, err := w.As(&user.DefaultInfo{Name: "admin"}, "tool/v1 (linux)").Create(w.ctx, in(configMaps, ""), configMap("agent", map[string]string{"k": "v"}), metav1.CreateOptions{})
	if err != nil || obj.GetManagedFields()[0].Manager != "tool" {
		t.Errorf("manager %v, error %v, want tool", obj.GetManagedFields(), err)
	}
}
