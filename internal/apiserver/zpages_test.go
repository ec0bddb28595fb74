package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"proa/internal/apis/feature"
)

func TestStatuszAndFlagz(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Flags = map[string]string{"v": "4", "audit-log-path": "/x"} })
	tests := []struct {
		name, path, accept string
		code               int
		contentType        string
		want               []string
	}{
		{"text", "/statusz", "", 200, "text/plain; charset=utf-8", []string{"\napiserver statusz\nWarning: ", "Started: ", "Up: 0 hr 00 min ", "Binary version: 1.37.", "Emulation version: 1.37\n", "Paths: /flagz /healthz /livez /metrics /readyz /statusz /version\n"}},
		{"text for a browser", "/statusz", "text/html,*/*;q=0.8", 200, "text/plain; charset=utf-8", []string{"apiserver statusz"}},
		{"an object", "/statusz", "application/json;as=Statusz;v=v1beta1;g=config.k8s.io", 200, "application/json", []string{`"kind":"Statusz"`, `"apiVersion":"config.k8s.io/v1beta1"`, `"metadata":{"name":"apiserver"}`, `"uptimeSeconds":`, `"emulationVersion":"1.37"`, `"/livez"`}},
		{"an object in YAML", "/statusz", "application/yaml;as=Statusz;v=v1alpha1;g=config.k8s.io", 200, "application/yaml", []string{"kind: Statusz", "apiVersion: config.k8s.io/v1alpha1"}},
		{"no kind", "/statusz", "application/json", 406, "", nil},
		{"another kind", "/statusz", "application/json;as=Flagz;v=v1beta1;g=config.k8s.io", 406, "", nil},
		{"flags as text", "/flagz", "", 200, "text/plain; charset=utf-8", []string{"\napiserver flagz\nWarning: ", "\naudit-log-path=/x\nv=4\n"}},
		{"flags as an object", "/flagz", "application/json;as=Flagz;v=v1beta1;g=config.k8s.io", 200, "application/json", []string{`"kind":"Flagz"`, `"flags":{"audit-log-path":"/x","v":"4"}`}},
		{"flags without a kind", "/flagz", "application/yaml", 406, "", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp, body := w.do("GET", tt.path, "", "Accept", tt.accept)
			if resp.StatusCode != tt.code || tt.contentType != "" && resp.Header.Get("Content-Type") != tt.contentType {
				t.Fatalf("%d %v\n%s", resp.StatusCode, resp.Header, body)
			}
			for _, text := range tt.want {
				if !strings.Contains(body, text) {
					t.Errorf("no %q in\n%s", text, body)
				}
			}
			if strings.HasPrefix(tt.contentType, "application/json") && !json.Valid([]byte(body)) {
				t.Error("no JSON")
			}
			if deprecated := strings.Contains(tt.accept, "v1alpha1"); deprecated != (resp.Header.Get("Warning") != "") {
				t.Error(resp.Header)
			}
		})
	}
	if resp, _ := w.doAs("nobody", "GET", "/statusz"); resp.StatusCode != http.StatusForbidden {
		t.Errorf("nobody gets %d", resp.StatusCode)
	}
	gates, err := feature.ParseGates("ComponentStatusz=false,ComponentFlagz=false")
	if err != nil {
		t.Fatal(err)
	}
	off := newWorld(t, func(c *Config) { c.Features = gates })
	for _, path := range []string{"/statusz", "/flagz"} {
		if resp, _ := off.do("GET", path, ""); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s with its gate off: %d", path, resp.StatusCode)
		}
	}
}

func TestHealthSLIs(t *testing.T) {
	var broken error
	w := newWorld(t, func(c *Config) {
		c.Checks = []Check{{Name: "etcd", Check: func(context.Context) error { return broken }}}
	})
	sees := func(lines ...string) {
		t.Helper()
		_, text := w.do("GET", "/metrics/slis", "")
		for _, line := range lines {
			if lineWith(text, line) == "" {
				t.Errorf("no %s in\n%s", line, text)
			}
		}
	}
	w.do("GET", "/livez", "")
	w.do("GET", "/readyz/etcd", "")
	sees(`kubernetes_healthcheck{name="etcd",type="livez"} 1`, `kubernetes_healthcheck{name="etcd",type="readyz"} 1`,
		`kubernetes_healthchecks_total{name="ping",status="success",type="livez"} 1`)
	broken = errors.New("gone")
	w.do("GET", "/livez", "")
	w.do("GET", "/healthz", "")
	sees(`kubernetes_healthcheck{name="etcd",type="livez"} 0`, `kubernetes_healthchecks_total{name="etcd",status="error",type="livez"} 1`,
		`kubernetes_healthchecks_total{name="etcd",status="success",type="livez"} 1`, `kubernetes_healthcheck{name="etcd",type="healthz"} 0`,
		`kubernetes_healthcheck{name="ping",type="livez"} 1`)
}
