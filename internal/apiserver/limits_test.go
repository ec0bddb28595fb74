package apiserver

import (
	"net/http"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func TestLimitsOfARequest(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxBody = 1000 })
	tests := []struct {
		name, method, target, body string
		code                       int
		want                       string
	}{
		{"a body that is too large", "POST", "/api/v1/namespaces", `{"metadata":{"name":"` + strings.Repeat("x", 2000) + `"}}`, 413, "Request entity too large: limit is 1000"},
		{"a time that is none", "GET", "/api/v1/pods?timeout=soon", "", 400, "invalid timeout specified in the request URL"},
		{"a watch has a limit of its own", "GET", "/api/v1/pods?watch=1&timeoutSeconds=1&timeout=soon", "", 200, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp, body := w.do(tt.method, tt.target, tt.body, "Content-Type", "application/json")
			if resp.StatusCode != tt.code || !strings.Contains(body, tt.want) {
				t.Errorf("%d %.300s", resp.StatusCode, body)
			}
		})
	}
}

func TestARequestWaitsForItsTurnAQuarterOfItsTime(t *testing.T) {
	g := gate{make(chan struct{}, 1), make(chan struct{})}
	w := newWorld(t, func(c *Config) {
		c.NoFairness, c.Authorizer = false, authorizer.AuthorizerFunc(g.authorize)
	})
	w.own("jane", "one-at-a-time")
	first := make(chan int)
	go func() {
		resp, _ := w.doAs("jane", "GET", "/version")
		first <- resp.StatusCode
	}()
	<-g.entered
	resp, body := w.doAs("jane", "GET", "/api/v1/namespaces?timeout=40ms")
	if resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	_, metrics := w.do("GET", "/metrics", "")
	if lineWith(metrics, `apiserver_flowcontrol_rejected_requests_total{flow_schema="jane",priority_level="one-at-a-time",reason="time-out"} 1`) == "" {
		t.Error("the wait did not end with its time")
	}
	g.leave <- struct{}{}
	<-first
}
