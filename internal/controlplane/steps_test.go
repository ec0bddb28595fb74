package controlplane

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"proa/internal/apis"
	"proa/internal/apiserver"
	"proa/internal/auth"
	"proa/internal/auth/pki"
	"proa/internal/store"
	"proa/internal/store/memory"
)

// slowEngine keeps the first write of a kind waiting, or the reading of everything.
type slowEngine struct {
	*memory.Engine
	at            string // a plural; empty: reading
	once          sync.Once
	reached, open chan struct{}
}

func (e *slowEngine) wait() {
	e.once.Do(func() { close(e.reached) })
	<-e.open
}

func (e *slowEngine) Load(ctx context.Context, revision int64, visit func(store.Record) error) (int64, error) {
	if e.at == "" {
		e.wait()
	}
	return e.Engine.Load(ctx, revision, visit)
}

func (e *slowEngine) Commit(batch []*store.Txn) error {
	for _, t := range batch {
		if slices.ContainsFunc(t.Ops, func(op store.Op) bool { return op.Key.Resource.Resource == e.at }) {
			e.wait()
		}
	}
	return e.Engine.Commit(batch)
}

// plain is a control plane over HTTP, in memory.
func plain(t *testing.T, engine store.Engine) Config {
	t.Helper()
	authority, err := pki.InMemory(nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := Config{
		Engine:   func(*apis.Catalogue) (store.Engine, error) { return engine, nil },
		Listener: l,
		Auth:     auth.Config{ClientCA: authority.Cluster.Pool(), ServiceAccountKey: authority.ServiceAccountKey},
		Server:   apiserver.Config{Address: l.Addr().String()},
	}
	c.Registry.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
	c.Registry.AdvertiseAddress = netip.MustParseAddr("192.0.2.1")
	return c
}

// told is what a health endpoint says: by name, whether a part is well.
func told(body string) map[string]bool {
	parts := map[string]bool{}
	for _, line := range strings.Split(body, "\n") {
		name, rest, found := strings.Cut(line, "]")
		if word, _, ok := strings.Cut(rest, " "); found && ok {
			parts[word] = name == "[+"
		}
	}
	return parts
}

// A step is not finished until the part of which it speaks is done; the port tells
// so before there is a server.
func TestAStepIsToldWhenItIsDone(t *testing.T) {
	for _, tt := range []struct {
		at         string
		done, left []string
	}{
		{"", nil, []string{storageReady, definitionsRead, rolesMade}},
		{"clusterroles", []string{storageReady, definitionsRead}, []string{rolesMade, prioritiesMade}},
		{"namespaces", []string{rolesMade}, []string{namespacesMade, prioritiesMade, addressesMade, whereaboutsTold}},
		{"priorityclasses", []string{rolesMade}, []string{prioritiesMade, addressesMade, whereaboutsTold}},
		{"servicecidrs", []string{rolesMade}, []string{addressesMade, whereaboutsTold}},
		{"endpoints", []string{namespacesMade, prioritiesMade, addressesMade}, []string{whereaboutsTold, informersSynced, servicesRegistered}},
	} {
		t.Run("before "+tt.at, func(t *testing.T) {
			engine := &slowEngine{Engine: memory.New(), at: tt.at, reached: make(chan struct{}), open: make(chan struct{})}
			c := plain(t, engine)
			opened := make(chan error, 1)
			go func() {
				cp, err := Open(t.Context(), c)
				if err == nil {
					cp.Close()
				}
				opened <- err
			}()
			<-engine.reached
			code, body := ask(t, "http://"+c.Server.Address+"/readyz")
			parts := told(body)
			if code != http.StatusInternalServerError {
				t.Errorf("/readyz: %d", code)
			}
			for _, name := range tt.done {
				if !parts[name] {
					t.Errorf("%s is not told as done\n%s", name, body)
				}
			}
			for _, name := range tt.left {
				if well, listed := parts[name]; well || !listed {
					t.Errorf("%s is not told as left\n%s", name, body)
				}
				if code, body := ask(t, "http://"+c.Server.Address+"/readyz/"+name); code != http.StatusInternalServerError || body != "internal server error: not finished\n" {
					t.Errorf("%s: %d %s", name, code, body)
				}
			}
			if code, _ := ask(t, "http://"+c.Server.Address+"/livez"); code != http.StatusOK {
				t.Errorf("/livez: %d", code)
			}
			close(engine.open)
			if err := <-opened; err != nil {
				t.Error(err)
			}
		})
	}
}

// What runs beside the server is a step, too: none of it is done before Run.
func TestComponentsAreStepsOfAStart(t *testing.T) {
	cp, err := Open(t.Context(), plain(t, memory.New()))
	if err != nil {
		t.Fatal(err)
	}
	defer cp.Close()
	ready := func(query string) (int, map[string]bool) {
		w := httptest.NewRecorder()
		cp.server.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz?verbose"+query, nil))
		return w.Code, told(w.Body.String())
	}
	running := []string{
		informersSynced, informersStarted, definitionsFollow, definitionsServed, authoritiesTold, identityTold, identitiesRemoved, legacyTokens,
		allocationsMended, aggregatorFollows, localAvailable, remoteAvailable, servicesProxied, servicesDescribed, servicesRegistered,
		hookPrefix + "priority-and-fairness-config-consumer", hookPrefix + "priority-and-fairness-config-producer",
	}
	code, parts := ready("")
	for name, well := range parts {
		if well == slices.Contains(running, name) {
			t.Errorf("before Run %s is well: %v", name, well)
		}
	}
	if code != http.StatusInternalServerError {
		t.Errorf("before Run: %d", code)
	}
	if code, _ := ready("&exclude=" + strings.Join(running, "&exclude=")); code != http.StatusOK {
		t.Errorf("without what runs beside the server: %d", code)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- cp.Run(ctx) }()
	for code, parts = ready(""); code != http.StatusOK && t.Context().Err() == nil; {
		code, parts = ready("")
	}
	for _, name := range running {
		if !parts[name] {
			t.Errorf("%s is not told", name)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func ask(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}
