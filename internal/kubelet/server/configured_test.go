package server

import (
	"crypto/tls"
	"crypto/x509"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"proa/internal/kubelet/config"
)

func TestTheConfigurationSaysWhoMayAskWhat(t *testing.T) {
	none := &tls.Config{InsecureSkipVerify: true}
	for _, tt := range []struct {
		name   string
		change func(*config.Configuration)
		token  string
		path   string
		code   int
	}{
		{"nobody is served who is not known", func(*config.Configuration) {}, "", "/healthz", 401},
		{"tokens can be switched off", func(c *config.Configuration) { c.Authentication.Webhook.Enabled = ptr.To(false) }, "good", "/healthz", 401},
		{"anonymous callers have no rights by that", func(c *config.Configuration) { c.Authentication.Anonymous.Enabled = ptr.To(true) }, "", "/pods", 403},
		{"anonymous callers where everything is allowed", func(c *config.Configuration) {
			c.Authentication.Anonymous.Enabled, c.Authorization.Mode = ptr.To(true), kubeletv1beta1.KubeletAuthorizationModeAlwaysAllow
		}, "", "/pods", 200},
		{"a bad token is not anonymous", func(c *config.Configuration) { c.Authentication.Anonymous.Enabled = ptr.To(true) }, "bad", "/pods", 401},
		{"debugging can be switched off", func(c *config.Configuration) {
			c.EnableDebuggingHandlers, c.Authorization.Mode = ptr.To(false), kubeletv1beta1.KubeletAuthorizationModeAlwaysAllow
		}, "good", "/containerLogs/ns/p/c", 405},
		{"system logs can be switched off", func(c *config.Configuration) {
			c.EnableSystemLogHandler, c.Authorization.Mode = ptr.To(false), kubeletv1beta1.KubeletAuthorizationModeAlwaysAllow
		}, "good", "/logs/syslog", 405},
		{"profiles can be switched off", func(c *config.Configuration) {
			c.EnableProfilingHandler, c.Authorization.Mode = ptr.To(false), kubeletv1beta1.KubeletAuthorizationModeAlwaysAllow
		}, "good", "/debug/pprof/", 405},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			c := config.New()
			tt.change(c)
			pool := x509.NewCertPool()
			pool.AddCert(f.ca)
			s := New(Config{API: f.api, Runtime: f.runtime, NodeName: "n1", ClientCAs: pool, Pods: func() []*corev1.Pod { return f.pods }, Configuration: c})
			served := httptest.NewUnstartedServer(s.Handler())
			served.TLS = s.tlsConfig()
			served.TLS.GetCertificate = nil
			served.StartTLS()
			defer served.Close()
			f.URL = served.URL
			if code, body := f.get(t, none, tt.token, tt.path); code != tt.code {
				t.Errorf("got %d %s, want %d", code, body, tt.code)
			}
		})
	}
}
