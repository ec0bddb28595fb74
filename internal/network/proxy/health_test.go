package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/network/nettest"
)

// freePort is a port that was free a moment ago.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// get asks until someone answers with the wanted status: listeners follow Services by themselves.
func get(t *testing.T, url string, status int) *http.Response {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil && resp.StatusCode == status {
			t.Cleanup(func() { resp.Body.Close() })
			return resp
		}
		if err == nil {
			resp.Body.Close()
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("%s: %v, %v; want status %d", url, resp, err, status)
		}
	}
}

func TestHealthCheckNodePort(t *testing.T) {
	h := newHealthServer("")
	nettest.Run(t, h.run)
	port := freePort(t)
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	state := func(local int, port uint16) {
		h.set(map[string]*fragment{"a": {health: &health{Service: healthService{"default", "web"}, LocalEndpoints: local, port: port}}}, []string{"a"})
	}
	state(2, port)
	resp := get(t, url, http.StatusOK)
	var got health
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if want := (health{Service: healthService{"default", "web"}, LocalEndpoints: 2, ServiceProxyHealthy: true}); got != want {
		t.Errorf("answer %+v, want %+v", got, want)
	}
	if w := resp.Header.Get("X-Load-Balancing-Endpoint-Weight"); w != "2" {
		t.Errorf("weight %q", w)
	}
	state(0, port)
	get(t, url, http.StatusServiceUnavailable)
	moved := freePort(t)
	state(1, moved)
	get(t, fmt.Sprintf("http://127.0.0.1:%d/", moved), http.StatusOK)
}

func TestHealthzFailsWhileTheNodeDrains(t *testing.T) {
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	h := newHealthServer(address)
	nettest.Run(t, h.run)
	get(t, "http://"+address+"/healthz", http.StatusOK)
	draining := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: drainTaint}}}}
	h.observe(draining)
	get(t, "http://"+address+"/healthz", http.StatusServiceUnavailable)
	get(t, "http://"+address+"/livez", http.StatusOK)
	h.observe(&corev1.Node{})
	get(t, "http://"+address+"/healthz", http.StatusOK)
}
