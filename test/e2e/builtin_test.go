package e2e

import (
	"slices"
	"strings"
	"testing"
)

// TestObjectsOfANewCluster holds what is there without anybody's doing against
// what upstream's servers and controllers make.
func TestObjectsOfANewCluster(t *testing.T) {
	t.Parallel()
	names := func(args ...string) []string {
		t.Helper()
		return strings.Fields(shared.kubectl(t, append(args, "-o", `jsonpath={range .items[*]}{.metadata.name} {end}`)...))
	}
	for _, tt := range []struct{ what, want string }{
		{"namespaces", "default kube-node-lease kube-public kube-system"},
		{"priorityclasses", "system-cluster-critical system-node-critical"},
		{"servicecidrs", "kubernetes"},
		{"services -n default", "kubernetes"},
		{"endpointslices -n default", "kubernetes"},
		{"endpoints -n default", "kubernetes"},
		{"serviceaccounts -n default", "default"},
		{"configmaps -n default", "kube-root-ca.crt"},
		{"configmaps -n kube-system", "extension-apiserver-authentication kube-root-ca.crt"},
		{"configmaps -n kube-public", "cluster-info kube-root-ca.crt"},
		{"prioritylevelconfigurations", "catch-all exempt"},
		{"flowschemas", "catch-all exempt"},
		{"roles -n kube-system", "extension-apiserver-authentication-reader system::leader-locking-kube-scheduler system:controller:token-cleaner"},
		{"clusterroles", "admin cluster-admin edit system:auth-delegator system:discovery system:node view"},
		{"clusterrolebindings", "cluster-admin system:basic-user system:discovery system:public-info-viewer"},
	} {
		got := names(append([]string{"get"}, strings.Fields(tt.what)...)...)
		for _, name := range strings.Fields(tt.want) {
			if !slices.Contains(got, name) {
				t.Errorf("%s: no %s among %q", tt.what, name, got)
			}
		}
	}
	get := func(args ...string) string { return shared.kubectl(t, append([]string{"get"}, args...)...) }
	if got := get("priorityclass", "system-node-critical", "-o", "jsonpath={.value}"); got != "2000001000" {
		t.Errorf("system-node-critical is %s", got)
	}
	if got := get("service", "kubernetes", "-n", "default", "-o", "jsonpath={.spec.ports[0].name} {.spec.ports[0].port} {.metadata.labels.component}"); got != "https 443 apiserver" {
		t.Errorf("the kubernetes Service: %s", got)
	}
	trust := get("configmap", "extension-apiserver-authentication", "-n", "kube-system", "-o", `jsonpath={.data.requestheader-username-headers} {.data.requestheader-allowed-names} {.data.client-ca-file} {.data.requestheader-client-ca-file}`)
	if !strings.HasPrefix(trust, `["X-Remote-User"] ["front-proxy-client"] -----BEGIN CERTIFICATE-----`) || strings.Count(trust, "BEGIN CERTIFICATE") != 2 {
		t.Errorf("extension-apiserver-authentication: %s", trust)
	}
	for _, name := range []string{"v1.", "v1.apps", "v2.autoscaling", "v1.apiregistration.k8s.io", "v1.rbac.authorization.k8s.io"} {
		if got := get("apiservice", name, "-o", `jsonpath={.status.conditions[0].reason} {.metadata.labels.kube-aggregator\.kubernetes\.io/automanaged}`); got != "Local onstart" {
			t.Errorf("apiservice %s: %s", name, got)
		}
	}
}
