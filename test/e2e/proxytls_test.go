package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// A target that speaks TLS is reached by the prefix https, by port and by name.
func TestProxyOverTLS(t *testing.T) {
	l := newLab(t)
	startWebhooks(t, l.ns)
	l.apply("{apiVersion: v1, kind: Service, metadata: {name: named}, spec: {selector: {app: hooks}, ports: [{name: tls, port: 443, targetPort: 8443}]}}")
	post := func(target string) (string, error) {
		body, err := clients().CoreV1().RESTClient().Post().AbsPath("/api/v1/namespaces/" + l.ns + target + "/proxy/judge").
			Body([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1"}}`)).DoRaw(t.Context())
		return string(body), err
	}
	for _, target := range []string{"/pods/https:hooks:8443", "/services/https:hooks:443", "/services/https:named:tls", "/services/https:named:443"} {
		eventually(t, settle, func() error {
			if out, err := post(target); err != nil || !strings.Contains(out, `"allowed":true`) {
				return fmt.Errorf("%s: %q, %v", target, out, err)
			}
			return nil
		})
	}
	if out, err := post("/pods/hooks:8443"); err == nil {
		t.Errorf("without the prefix: %q", out)
	}
}
