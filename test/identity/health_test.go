package identity

import (
	"fmt"
	"strings"
	"testing"
)

// Installers and monitoring ask for the parts of a server's health by upstream's names.
func TestHealthIsToldByUpstreamsNames(t *testing.T) {
	t.Parallel()
	s := start(t)
	raw := func(path string) string {
		data, err := s.admin(t).Discovery().RESTClient().Get().RequestURI(path).DoRaw(t.Context())
		if err != nil {
			return fmt.Sprintf("%v: %s", err, data)
		}
		return string(data)
	}
	hooks := []string{
		"rbac/bootstrap-roles", "scheduling/bootstrap-system-priority-classes", "priority-and-fairness-config-producer",
		"priority-and-fairness-config-consumer", "start-apiextensions-informers", "start-apiextensions-controllers", "crd-informer-synced",
		"start-kube-aggregator-informers", "apiservice-registration-controller", "kube-apiserver-autoregistration", "bootstrap-controller",
		"start-system-namespaces-controller", "start-cluster-authentication-info-controller", "generic-apiserver-start-informers", "storage-readiness",
	}
	for _, endpoint := range []string{"readyz", "livez", "healthz"} {
		verbose := raw("/" + endpoint + "?verbose")
		for _, hook := range hooks {
			if !strings.Contains(verbose, "[+]poststarthook/"+hook+" ok\n") {
				t.Errorf("/%s does not tell of %s:\n%s", endpoint, hook, verbose)
			}
			if got := raw("/" + endpoint + "/poststarthook/" + hook); got != "ok" {
				t.Errorf("/%s/poststarthook/%s: %s", endpoint, hook, got)
			}
		}
		if has := strings.Contains(verbose, "[+]informer-sync ok\n"); has != (endpoint == "readyz") {
			t.Errorf("/%s: informer-sync %v", endpoint, has)
		}
	}
	excluded := raw("/readyz?verbose&exclude=poststarthook/rbac/bootstrap-roles")
	if !strings.Contains(excluded, "[+]poststarthook/rbac/bootstrap-roles excluded: ok\n") || strings.Contains(excluded, "warn") {
		t.Errorf("without the roles: %s", excluded)
	}
	if got := s.status(t, "/readyz/poststarthook/nothing", ""); got == 200 {
		t.Errorf("a step that there is not: %d", got)
	}
}
