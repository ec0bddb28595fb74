package apiserver

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"proa/internal/apis"
	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/garbagecollector"
	"proa/internal/controllers/namespace"
)

// twoServers are a server with the controllers that look after objects, and another
// that keeps its widgets and has no controllers.
type twoServers struct {
	*aggregatedWorld
	other *world
}

func newTwoServers(t *testing.T) *twoServers {
	t.Helper()
	w := &twoServers{aggregatedWorld: newAggregatedWorld(t), other: newWorld(t)}
	if err := w.other.server.catalogue.Add(&apis.Resource{
		Group: "ext.example.com", Version: "v1", Kind: "Widget", Plural: "widgets",
		New:     func() apis.Object { return &unstructured.Unstructured{Object: map[string]any{}} },
		NewList: func() runtime.Object { return &unstructured.UnstructuredList{} },
	}); err != nil {
		t.Fatal(err)
	}
	port := w.front()
	w.run() // it ends before the door closes
	w.service()
	w.register(port)
	w.waitForReason("Passed")
	return w
}

// front is the other server's door for this one: it believes the certificate's headers.
func (w *twoServers) front() (port int32) {
	to, err := url.Parse(w.other.config.Host)
	if err != nil {
		w.t.Fatal(err)
	}
	transport, err := rest.TransportFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: w.other.config.CAData, ServerName: w.other.config.ServerName}})
	if err != nil {
		w.t.Fatal(err)
	}
	door := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			if len(r.In.TLS.PeerCertificates) > 0 {
				r.Out.Header.Set("Authorization", "Bearer "+r.In.Header.Get("X-Remote-User"))
			}
		},
	})
	certPEM, keyPEM, err := w.authority.Server([]string{"ext.default.svc"}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		w.t.Fatal(err)
	}
	door.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequestClientCert}
	door.Config.ErrorLog = log.New(io.Discard, "", 0)
	door.StartTLS()
	w.t.Cleanup(door.Close)
	at, err := url.Parse(door.URL)
	if err != nil {
		w.t.Fatal(err)
	}
	n, err := strconv.Atoi(at.Port())
	if err != nil {
		w.t.Fatal(err)
	}
	return int32(n)
}

// run has the controllers work until the test ends.
func (w *twoServers) run() {
	aggregator := w.server.config.Aggregator
	everywhere, err := aggregator.Everywhere(w.api, &user.DefaultInfo{Name: "collector"})
	if err != nil {
		w.t.Fatal(err)
	}
	cache := client.NewCache(w.api)
	config := controllers.Config{Cache: cache, Clock: clock.RealClock{}}
	runs := []func(context.Context) error{
		garbagecollector.New(config, w.server.catalogue).With(aggregator.Kinds(), everywhere).Run,
		namespace.New(config, w.server.catalogue).With(aggregator, everywhere).Run,
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = cache.Run(ctx) })
	for _, run := range runs {
		running.Go(func() {
			if cache.WaitForSync(ctx) == nil {
				_ = run(ctx)
			}
		})
	}
	w.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// widgets is a path that the first server passes on.
func widgets(ns, name string) string {
	return strings.TrimSuffix(extVersion+"/namespaces/"+ns+"/widgets/"+name, "/")
}

// made creates an object by a path and returns its UID.
func (w *twoServers) made(path, body string) string {
	w.t.Helper()
	resp, answer := w.do("POST", path, body)
	var obj metav1.PartialObjectMetadata
	if err := json.Unmarshal([]byte(answer), &obj); err != nil || resp.StatusCode != http.StatusCreated {
		w.t.Fatalf("%s: %d %s", path, resp.StatusCode, answer)
	}
	return string(obj.UID)
}

func (w *twoServers) widget(ns, name, owners string) string {
	w.t.Helper()
	return w.made(widgets(ns, ""), fmt.Sprintf(`{"apiVersion":"ext.example.com/v1","kind":"Widget","metadata":{"name":%q,"ownerReferences":[%s]}}`, name, owners))
}

func (w *twoServers) ownedMap(name, owners string) string {
	w.t.Helper()
	return w.made("/api/v1/namespaces/default/configmaps", fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"ownerReferences":[%s]}}`, name, owners))
}

func ownedBy(apiVersion, kind, name, uid string) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"name":%q,"uid":%q,"blockOwnerDeletion":true}`, apiVersion, kind, name, uid)
}

// gone waits until nothing is found at a path.
func (w *twoServers) gone(path string) {
	w.t.Helper()
	w.until(path, func(code int, _ string) bool { return code == http.StatusNotFound })
}

// until reads a path until the answer is as it should be.
func (w *twoServers) until(path string, met func(code int, body string) bool) {
	w.t.Helper()
	late, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	for {
		resp, body := w.do("GET", path, "")
		if met(resp.StatusCode, body) {
			return
		}
		select {
		case <-late.Done():
			w.t.Fatalf("%s: %d %s", path, resp.StatusCode, body)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestObjectsOnAnotherServerGoWithTheirOwnerHere(t *testing.T) {
	w := newTwoServers(t)
	uid := w.ownedMap("owner", "")
	w.widget("default", "dependent", ownedBy("v1", "ConfigMap", "owner", uid))
	w.widget("default", "free", "")
	w.ownedMap("far", ownedBy("ext.example.com/v1", "Widget", "free", "of-one-before"))
	w.gone("/api/v1/namespaces/default/configmaps/far")
	if resp, body := w.do("GET", widgets("default", "dependent"), ""); resp.StatusCode != http.StatusOK {
		t.Fatalf("it went before its owner: %d %s", resp.StatusCode, body)
	}
	w.do("DELETE", "/api/v1/namespaces/default/configmaps/owner", `{"propagationPolicy":"Background"}`)
	w.gone(widgets("default", "dependent"))
	if resp, body := w.do("GET", widgets("default", "free"), ""); resp.StatusCode != http.StatusOK {
		t.Errorf("what nobody owns: %d %s", resp.StatusCode, body)
	}
}

func TestAnOwnerOnAnotherServerIsDeletedAfterItsDependents(t *testing.T) {
	w := newTwoServers(t)
	uid := w.widget("default", "owner", "")
	w.ownedMap("dependent", ownedBy("ext.example.com/v1", "Widget", "owner", uid))
	w.do("PATCH", "/api/v1/namespaces/default/configmaps/dependent", `{"metadata":{"finalizers":["example.com/hold"]}}`, "Content-Type", "application/merge-patch+json")
	w.do("DELETE", widgets("default", "owner"), `{"propagationPolicy":"Foreground"}`)
	w.until("/api/v1/namespaces/default/configmaps/dependent", func(_ int, body string) bool { return strings.Contains(body, "deletionTimestamp") })
	if resp, body := w.do("GET", widgets("default", "owner"), ""); resp.StatusCode != http.StatusOK || !strings.Contains(body, metav1.FinalizerDeleteDependents) {
		t.Errorf("the owner does not wait: %d %s", resp.StatusCode, body)
	}
	w.do("PATCH", "/api/v1/namespaces/default/configmaps/dependent", `{"metadata":{"finalizers":null}}`, "Content-Type", "application/merge-patch+json")
	w.gone("/api/v1/namespaces/default/configmaps/dependent")
	w.gone(widgets("default", "owner"))
}

func TestAnOwnerOnAnotherServerLeavesItsDependentsBehind(t *testing.T) {
	w := newTwoServers(t)
	uid := w.widget("default", "owner", "")
	w.ownedMap("dependent", ownedBy("ext.example.com/v1", "Widget", "owner", uid))
	w.widget("default", "beside", ownedBy("ext.example.com/v1", "Widget", "owner", uid))
	w.do("DELETE", widgets("default", "owner"), `{"propagationPolicy":"Orphan"}`)
	w.gone(widgets("default", "owner"))
	for _, path := range []string{"/api/v1/namespaces/default/configmaps/dependent", widgets("default", "beside")} {
		if resp, body := w.do("GET", path, ""); resp.StatusCode != http.StatusOK || strings.Contains(body, uid) {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
}

func TestANamespaceIsEmptiedOnOtherServers(t *testing.T) {
	w := newTwoServers(t)
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "doomed"}})
	w.widget("doomed", "a", "")
	w.widget("doomed", "b", "")
	w.widget("default", "c", "")
	w.do("DELETE", "/api/v1/namespaces/doomed", "")
	w.gone("/api/v1/namespaces/doomed")
	_, body := w.do("GET", extVersion+"/widgets", "")
	var left metav1.PartialObjectMetadataList
	if err := json.Unmarshal([]byte(body), &left); err != nil || len(left.Items) != 1 || left.Items[0].Name != "c" {
		t.Errorf("left: %s", body)
	}
}
