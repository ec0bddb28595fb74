package e2e

import (
	"strings"
	"testing"
)

// Names are resolved over TCP too, by every form that the search path completes.
func TestDNSOverTCP(t *testing.T) {
	l := newLab(t)
	l.apply(podManifest("tcp", "  dnsConfig: {options: [{name: use-vc}]}\n  containers: [{name: c, "+testserver+"}]"))
	l.ready("tcp")
	l.contains(l.exec("tcp", "/testserver", "read", "/etc/resolv.conf"), "use-vc")
	kubernetes := strings.TrimSpace(shared.kubectl(t, "get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"))
	for _, name := range []string{"kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "kubernetes.default.svc.cluster.local."} {
		l.resolves("tcp", "A", name, kubernetes)
	}
}
