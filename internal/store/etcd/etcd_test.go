package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/store"
	"proa/internal/store/storetest"
)

// server is a real etcd of one member in this process, on unix sockets.
type server struct {
	t        testing.TB
	dir      string
	etcd     *embed.Etcd
	endpoint string
}

func startServer(t testing.TB) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "etcd") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, dir: dir}
	s.start()
	t.Cleanup(func() {
		s.stop()
		os.RemoveAll(dir)
	})
	return s
}

func (s *server) start(change ...func(*embed.Config)) {
	s.t.Helper()
	c := embed.NewConfig()
	c.Dir = filepath.Join(s.dir, "data")
	c.LogLevel, c.LogOutputs = "panic", []string{filepath.Join(s.dir, "log")}
	_, measured := s.t.(*testing.B)
	c.UnsafeNoFsync = !measured
	c.TickMs, c.ElectionMs = 10, 50
	client := url.URL{Scheme: "unix", Path: filepath.Join(s.dir, "client")}
	peer := url.URL{Scheme: "unix", Path: filepath.Join(s.dir, "peer")}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	s.endpoint = client.String()
	for _, f := range change {
		f(c)
	}
	e, err := embed.StartEtcd(c)
	if err != nil {
		s.t.Fatal(err)
	}
	<-e.Server.ReadyNotify()
	s.etcd = e
}

func (s *server) stop() {
	if s.etcd != nil {
		s.etcd.Close()
		s.etcd = nil
	}
}

func (s *server) client() *clientv3.Client {
	s.t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.endpoint}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

var resources = []schema.GroupResource{storetest.ConfigMaps, storetest.Pods}

func openEngine(t testing.TB, endpoint string) *Engine {
	t.Helper()
	e, err := Open(Config{Endpoints: []string{endpoint}, Resources: resources, Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func openStore(t testing.TB, endpoint string) (*store.Store, *Engine) {
	t.Helper()
	e := openEngine(t, endpoint)
	return storetest.Open(t, store.Config{Engine: e}), e
}

func apply(t testing.TB, s *store.Store, name, text string) int64 {
	t.Helper()
	revision, err := storetest.Apply(t.Context(), s, "ns", name, text)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func synced(t testing.TB, s *store.Store, e *Engine) map[string]string {
	t.Helper()
	revision, err := e.Sync(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.Revision() < revision {
		t.Fatalf("the store is at %d after a sync to %d", s.Revision(), revision)
	}
	return storetest.Dump(s.Snapshot())
}

func TestEngine(t *testing.T) {
	storetest.Run(t, func(t testing.TB) func() store.Engine {
		s := startServer(t)
		return func() store.Engine { return openEngine(t, s.endpoint) }
	})
}

func TestObjectsLieWhereUpstreamKeepsThem(t *testing.T) {
	builtin := []schema.GroupResource{
		{Resource: "pods"}, {Resource: "nodes"}, {Resource: "services"}, {Resource: "endpoints"},
		{Resource: "replicationcontrollers"}, {Resource: "namespaces"},
		{Group: "apps", Resource: "deployments"}, {Group: "networking.k8s.io", Resource: "ingresses"},
		{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}, {Group: "coordination.k8s.io", Resource: "leases"},
	}
	l := newLayout("registry", builtin)
	tests := []struct {
		key  store.Key
		path string
	}{
		{store.Key{Resource: schema.GroupResource{Resource: "pods"}, Namespace: "ns", Name: "a"}, "/registry/pods/ns/a"},
		{store.Key{Resource: schema.GroupResource{Resource: "namespaces"}, Name: "ns"}, "/registry/namespaces/ns"},
		{store.Key{Resource: schema.GroupResource{Resource: "nodes"}, Name: "a"}, "/registry/minions/a"},
		{store.Key{Resource: schema.GroupResource{Resource: "services"}, Namespace: "ns", Name: "a"}, "/registry/services/specs/ns/a"},
		{store.Key{Resource: schema.GroupResource{Resource: "endpoints"}, Namespace: "ns", Name: "a"}, "/registry/services/endpoints/ns/a"},
		{store.Key{Resource: schema.GroupResource{Resource: "replicationcontrollers"}, Namespace: "ns", Name: "a"}, "/registry/controllers/ns/a"},
		{store.Key{Resource: schema.GroupResource{Group: "apps", Resource: "deployments"}, Namespace: "ns", Name: "a"}, "/registry/deployments/ns/a"},
		{store.Key{Resource: schema.GroupResource{Group: "networking.k8s.io", Resource: "ingresses"}, Namespace: "ns", Name: "a"}, "/registry/ingress/ns/a"},
		{store.Key{Resource: schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}, Name: "system:a"}, "/registry/clusterroles/system:a"},
		{store.Key{Resource: schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, Namespace: "ns", Name: "a"}, "/registry/leases/ns/a"},
		{store.Key{Resource: schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, Name: "foos.example.com"}, "/registry/apiextensions.k8s.io/customresourcedefinitions/foos.example.com"},
		{store.Key{Resource: schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"}, Name: "v1.apps"}, "/registry/apiregistration.k8s.io/apiservices/v1.apps"},
		{store.Key{Resource: schema.GroupResource{Group: "example.com", Resource: "foos"}, Namespace: "ns", Name: "a"}, "/registry/example.com/foos/ns/a"},
		{store.Key{Resource: schema.GroupResource{Group: "example.com", Resource: "bars"}, Name: "a"}, "/registry/example.com/bars/a"},
	}
	for _, tt := range tests {
		if got := l.path(tt.key); got != tt.path {
			t.Errorf("%v lies at %s, want %s", tt.key, got, tt.path)
		}
		if got, ok := l.key([]byte(tt.path)); !ok || got != tt.key {
			t.Errorf("%s is %v, %t, want %v", tt.path, got, ok, tt.key)
		}
	}
	for _, other := range []string{
		"/registry/masterleases/10.0.0.1", "/registry/ranges/serviceips", "/registry/health", "/registry/pods/",
		"/registry/pods/a/b/c", "/registry/example.com/foos", "/registry/services/x/ns/a", "/elsewhere/pods/ns/a", "compact_rev_key",
	} {
		if key, ok := l.key([]byte(other)); ok {
			t.Errorf("%s is taken for %v", other, key)
		}
	}
}

func TestWhatOthersWriteIsSeenAndTheirKeysAreLeftAlone(t *testing.T) {
	server := startServer(t)
	raw := server.client()
	if _, err := raw.Put(t.Context(), "/registry/masterleases/10.0.0.1", "lease"); err != nil {
		t.Fatal(err)
	}
	s, e := openStore(t, server.endpoint)
	created := apply(t, s, "a", "1")
	got, err := raw.Get(t.Context(), "/registry/configmaps/ns/a")
	if err != nil || len(got.Kvs) != 1 || got.Kvs[0].ModRevision != created {
		t.Fatalf("etcd holds %v, %v, want one at %d", got, err, created)
	}
	value := string(got.Kvs[0].Value)
	put, err := raw.Txn(t.Context()).Then(
		clientv3.OpPut("/registry/configmaps/ns/b", value),
		clientv3.OpPut("/registry/ranges/serviceips", "bits"),
		clientv3.OpDelete("/registry/configmaps/ns/a")).Commit()
	if err != nil {
		t.Fatal(err)
	}
	if got := synced(t, s, e); !maps.Equal(got, map[string]string{"ns/b": "1"}) {
		t.Errorf("the store shows %v", got)
	}
	key, _ := storetest.ConfigMap("ns", "b", "")
	if item, err := s.Get(key); err != nil || item.Revision != put.Header.Revision {
		t.Errorf("b is %v, %v, want revision %d", item, err, put.Header.Revision)
	}
	other, err := raw.Put(t.Context(), "elsewhere", "x")
	if err != nil {
		t.Fatal(err)
	}
	if synced(t, s, e); s.Revision() < other.Header.Revision {
		t.Errorf("a write outside the prefix leaves the store at %d of %d", s.Revision(), other.Header.Revision)
	}
}

func TestServersOnOneEtcdLoseNoUpdate(t *testing.T) {
	const stores, writers, each = 3, 3, 15
	server := startServer(t)
	first, e := openStore(t, server.endpoint)
	apply(t, first, "counter", "0")
	var wg sync.WaitGroup
	for range stores {
		s, _ := openStore(t, server.endpoint)
		for range writers {
			wg.Go(func() {
				for range each {
					if _, err := s.Update(t.Context(), increment); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	if got := synced(t, first, e)["ns/counter"]; got != strconv.Itoa(stores*writers*each) {
		t.Errorf("counted to %s, want %d", got, stores*writers*each)
	}
}

func increment(tx *store.Tx) error {
	key, _ := storetest.ConfigMap("ns", "counter", "")
	item, err := tx.Get(key)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(storetest.Text(item))
	if err != nil {
		return err
	}
	return storetest.ApplyIn(tx, "ns", "counter", strconv.Itoa(n+1))
}

// TestNothingAcknowledgedIsLostWhenEtcdDies restarts etcd under writers that
// count up, each its own object. What was acknowledged must be there, and no more
// than the one write that was in doubt.
func TestNothingAcknowledgedIsLostWhenEtcdDies(t *testing.T) {
	const writers, restarts = 8, 3
	server := startServer(t)
	g := newGate(t, filepath.Join(server.dir, "client"))
	s, e := openStore(t, g.endpoint())
	ctx, stop := context.WithCancel(t.Context())
	var acknowledged, tried [writers]atomic.Int64
	var failures atomic.Int64
	progress := make(chan struct{}, 1)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for n := int64(1); ctx.Err() == nil; n++ {
				tried[w].Store(n)
				_, err := storetest.Apply(t.Context(), s, "ns", strconv.Itoa(w), strconv.FormatInt(n, 10))
				if err != nil {
					failures.Add(1)
					continue
				}
				acknowledged[w].Store(n)
				select {
				case progress <- struct{}{}:
				default:
				}
			}
		})
	}
	for range restarts {
		for range 20 {
			<-progress
		}
		g.set(false) // no answer gets out any more
		server.etcd.Server.HardStop()
		server.stop()
		server.start()
		g.set(true)
	}
	for range 20 {
		<-progress
	}
	stop()
	wg.Wait()
	shown := synced(t, s, e)
	fresh, _ := openStore(t, server.endpoint)
	if truth := storetest.Dump(fresh.Snapshot()); !maps.Equal(shown, truth) {
		t.Errorf("the store shows %v, etcd holds %v", shown, truth)
	}
	for w := range writers {
		n, err := strconv.ParseInt(shown["ns/"+strconv.Itoa(w)], 10, 64)
		if low, high := acknowledged[w].Load(), tried[w].Load(); err != nil || n < low || n > high {
			t.Errorf("writer %d: %d is stored, %d was acknowledged, %d tried (%v)", w, n, low, high, err)
		}
	}
	t.Logf("%d writes failed", failures.Load())
}

// gate forwards connections to etcd until it is closed.
type gate struct {
	listener net.Listener
	target   string

	mu    sync.Mutex // guards the rest
	open  bool
	conns map[net.Conn]struct{}
}

func newGate(t testing.TB, target string) *gate {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{listener: listener, target: target, open: true, conns: map[net.Conn]struct{}{}}
	go g.serve()
	t.Cleanup(func() {
		listener.Close()
		g.set(false)
	})
	return g
}

func (g *gate) endpoint() string { return "http://" + g.listener.Addr().String() }

func (g *gate) serve() {
	for {
		in, err := g.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("unix", g.target)
		if err != nil || !g.add(in, out) {
			in.Close()
			continue
		}
		for from, to := range map[net.Conn]net.Conn{in: out, out: in} {
			go func() {
				_, _ = io.Copy(to, from)
				to.Close()
			}()
		}
	}
}

func (g *gate) add(conns ...net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range conns {
		if !g.open {
			c.Close()
		}
		g.conns[c] = struct{}{}
	}
	return g.open
}

// set opens or closes the gate; closing breaks what is connected.
func (g *gate) set(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = open
	if !open {
		for c := range g.conns {
			c.Close()
		}
		clear(g.conns)
	}
}

func TestAServerThatMissedACompactionCatchesUp(t *testing.T) {
	for _, compact := range []bool{false, true} {
		t.Run(fmt.Sprintf("compacted=%t", compact), func(t *testing.T) {
			t.Parallel()
			server := startServer(t)
			g := newGate(t, filepath.Join(server.dir, "client"))
			cut, e := openStore(t, g.endpoint())
			for _, name := range []string{"kept", "changed", "deleted", "recreated"} {
				apply(t, cut, name, "old")
			}
			before := cut.Revision()
			w, err := cut.Watch(storetest.ConfigMaps, "ns", before)
			if err != nil {
				t.Fatal(err)
			}
			g.set(false)
			if _, err := storetest.Apply(t.Context(), cut, "ns", "kept", "new"); err == nil {
				t.Error("a write without etcd is acknowledged")
			}
			other, _ := openStore(t, server.endpoint)
			apply(t, other, "changed", "between")
			apply(t, other, "changed", "new")
			apply(t, other, "created", "new")
			for _, name := range []string{"deleted", "recreated"} {
				if _, err := storetest.Remove(t.Context(), other, "ns", name); err != nil {
					t.Fatal(err)
				}
			}
			newest := apply(t, other, "recreated", "new")
			if compact {
				if _, err := server.client().Compact(t.Context(), newest); err != nil {
					t.Fatal(err)
				}
			}
			g.set(true)
			got := synced(t, cut, e)
			if want := storetest.Dump(other.Snapshot()); !maps.Equal(got, want) {
				t.Fatalf("after the partition it shows %v, want %v", got, want)
			}
			checkEvents(t, w, cut)
			for _, name := range []string{"kept", "changed", "created", "recreated"} {
				key, _ := storetest.ConfigMap("ns", name, "")
				mine, _ := cut.Get(key)
				theirs, _ := other.Get(key)
				if mine.Revision != theirs.Revision {
					t.Errorf("%s is at revision %d, want %d", name, mine.Revision, theirs.Revision)
				}
			}
			apply(t, cut, "recreated", "again")
		})
	}
}

// checkEvents replays what a watch saw across the partition.
func checkEvents(t *testing.T, w *store.Watch, s *store.Store) {
	t.Helper()
	state := map[string]string{"ns/kept": "old", "ns/changed": "old", "ns/deleted": "old", "ns/recreated": "old"}
	revision, deletions := int64(0), map[string]int{}
	for !maps.Equal(state, storetest.Dump(s.Snapshot())) {
		events, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			name := "ns/" + e.Item.Key.Name
			if e.Item.Revision < revision {
				t.Errorf("%s at %d comes after %d", name, e.Item.Revision, revision)
			}
			revision = e.Item.Revision
			if _, existed := state[name]; existed != (e.Type != store.Created) {
				t.Errorf("event %d of %s, which existed: %t", e.Type, name, existed)
			}
			state[name] = storetest.Text(e.Item)
			if e.Type == store.Deleted {
				delete(state, name)
				deletions[name]++
			}
		}
	}
	if deletions["ns/deleted"] != 1 || deletions["ns/recreated"] != 1 {
		t.Errorf("deletions seen: %v", deletions)
	}
}

func TestOneServerCompactsAtATime(t *testing.T) {
	server := startServer(t)
	s, e := openStore(t, server.endpoint)
	_, other := openStore(t, server.endpoint)
	a, b := &Compactor{Engine: e}, &Compactor{Engine: other}
	apply(t, s, "a", "1")
	round := func(c *Compactor) int64 {
		t.Helper()
		revision, err := c.Compact(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}
	if first, second := round(a), round(b); first != 0 || second != 0 {
		t.Fatalf("the first rounds compacted to %d and %d", first, second)
	}
	at := a.revision
	old := apply(t, s, "a", "2")
	apply(t, s, "a", "3")
	if got := round(a); got != at {
		t.Fatalf("compacted to %d, want %d", got, at)
	}
	if got := round(b); got != 0 {
		t.Fatalf("a second server compacted to %d in the same interval", got)
	}
	if got := round(b); got <= old {
		t.Errorf("taking over compacted to %d, want above %d", got, old)
	}
	if _, err := s.LoadAt(t.Context(), old); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("reading revision %d gives %v", old, err)
	}
	if _, err := s.LoadAt(t.Context(), s.Revision()+100); !errors.Is(err, store.ErrFuture) {
		t.Errorf("reading the future gives %v", err)
	}
	apply(t, s, "a", "4")
}

func BenchmarkCreate(b *testing.B) {
	for _, writers := range []int{1, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			s, _ := openStore(b, startServer(b).endpoint)
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for range writers {
				wg.Go(func() {
					for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
						if _, err := storetest.Apply(b.Context(), s, "ns", strconv.FormatInt(i, 10), "text"); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "creates/s")
		})
	}
}

func TestAServerCutOffFromEtcdDoesNotPassOldStateForNew(t *testing.T) {
	server := startServer(t)
	g := newGate(t, filepath.Join(server.dir, "client"))
	cut, e := openStore(t, g.endpoint())
	other, _ := openStore(t, server.endpoint)
	apply(t, other, "a", "1")
	if got := synced(t, cut, e)["ns/a"]; got != "1" {
		t.Fatalf("the store shows %q, want 1", got)
	}
	g.set(false)
	apply(t, other, "a", "2")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := cut.Sync(ctx); err == nil {
		t.Error("a sync succeeds without etcd")
	}
	if _, err := cut.Update(ctx, func(tx *store.Tx) error { return storetest.ApplyIn(tx, "ns", "a", "1") }); err == nil {
		t.Error("a write that changes nothing of old state succeeds without etcd")
	}
	if err := e.Health(ctx); err == nil {
		t.Error("etcd is healthy behind a closed gate")
	}
	g.set(true)
	var shared sync.WaitGroup
	for range 50 { // they share questions
		shared.Go(func() {
			if err := cut.Sync(t.Context()); err != nil {
				t.Error(err)
			} else if got := storetest.Dump(cut.Snapshot())["ns/a"]; got != "2" {
				t.Errorf("after a sync the store shows %q, want 2", got)
			}
		})
	}
	shared.Wait()
	if err := e.Health(t.Context()); err != nil {
		t.Error(err)
	}
	if err := other.Sync(t.Context()); err != nil {
		t.Error(err)
	}
}
