package e2e

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// front is a proxy between a client and the shared cluster, as companies have them:
// it has the cluster's credentials, and lets some of what it is asked for not pass.
type front struct {
	*httptest.Server
	mu   sync.Mutex
	seen map[string]int
}

// saw counts requests by a word of the front's rule.
func (f *front) saw(word string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[word]
}

func (f *front) note(word string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen[word]++
}

// newFront starts a front. Its rule may answer a request itself, saying so by true, or
// change it; before it passes a request on it may note what it is.
func newFront(t *testing.T, rule func(f *front, w http.ResponseWriter, r *http.Request) bool) *front {
	t.Helper()
	config := rest.CopyConfig(clusterConfig())
	config.NextProtos = []string{"http/1.1"} // in which alone a connection can be upgraded
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
	}
	f := &front{seen: map[string]int{}}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !rule(f, w, r) {
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

// cluster is the shared cluster by way of the front.
func (f *front) cluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{dir: t.TempDir()}
	config := api.NewConfig()
	config.Clusters["front"] = &api.Cluster{Server: f.URL}
	config.Contexts["front"] = &api.Context{Cluster: "front"}
	config.CurrentContext = "front"
	if err := clientcmd.WriteToFile(*config, filepath.Join(c.dir, "kubeconfig")); err != nil {
		t.Fatal(err)
	}
	return c
}

// upgrades is a rule that knows only one protocol that connections are upgraded to. Of
// others it drops the headers, which are of one hop, as proxies do.
func upgrades(known string) func(*front, http.ResponseWriter, *http.Request) bool {
	return func(f *front, _ http.ResponseWriter, r *http.Request) bool {
		protocol := strings.ToLower(r.Header.Get("Upgrade"))
		if protocol == "" {
			return false
		}
		f.note(protocol)
		if protocol != known {
			r.Header.Del("Upgrade")
			r.Header.Del("Connection")
		}
		return false
	}
}

const (
	webSocket = "websocket"
	spdy      = "spdy/3.1"
)

// A person's streams go through a proxy that knows WebSocket and not SPDY, and through
// one that knows SPDY and not WebSocket.
func TestStreamsThroughProxies(t *testing.T) {
	for _, test := range []struct {
		name, known string
		seen        func(webSockets, spdies int) bool
	}{
		{"WebSocket alone", webSocket, func(webSockets, spdies int) bool { return webSockets > 0 && spdies == 0 }},
		{"SPDY alone, to which kubectl falls back", spdy, func(webSockets, spdies int) bool { return webSockets > 0 && spdies == webSockets }},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLab(t)
			f := newFront(t, upgrades(test.known))
			newShell(l.T, f.cluster(l.T), l.ns, stockKubectl(l.T)).play(l.T, "testdata/streams.txt")
			if w, s := f.saw(webSocket), f.saw(spdy); !test.seen(w, s) {
				t.Errorf("kubectl asked %d times for WebSocket and %d times for SPDY", w, s)
			}
		})
	}
}

// Servers of old have no OpenAPI v3: kubectl explains and validates by v2.
func TestKubectlWithoutOpenAPIV3(t *testing.T) {
	t.Parallel()
	link := filepath.Join(t.TempDir(), "kubectl")
	symlink(t, binary, link)
	for name, kubectl := range map[string]string{"stock kubectl": stockKubectl(t), "proa kubectl": link} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			f := newFront(t, func(f *front, w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasPrefix(r.URL.Path, "/openapi/v3") {
					return false
				}
				f.note("v3")
				http.NotFound(w, r)
				return true
			})
			newShell(l.T, f.cluster(l.T), l.ns, kubectl).play(l.T, "testdata/openapiv2.txt")
			if f.saw("v3") == 0 {
				t.Error("kubectl did not ask for v3")
			}
		})
	}
}
