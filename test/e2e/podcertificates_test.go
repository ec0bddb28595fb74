package e2e

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/x509"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The node makes a key for each source, has it certified by the signer and writes
// both as the source says.
func TestPodCertificates(t *testing.T) {
	l := newLab(t)
	s := startSigner(l)
	l.apply(podManifest("p", `
  containers: [`+mounted(busybox("c", "sleep 3600"), "v")+`]
  volumes:
  - name: v
    projected:
      sources:
      - podCertificate: {signerName: `+s.name+`, keyType: ECDSAP256, credentialBundlePath: day.pem}
      - podCertificate: {signerName: `+s.name+`, keyType: ED25519, maxExpirationSeconds: 3600, keyPath: hour/key.pem, certificateChainPath: hour/cert.pem, userAnnotations: {`+pathAnnotation+`: ns/other/sa/chosen}}
`))
	pod := l.ready("p")
	key, cert, err := credential(l.exec("p", "cat", "/v/day.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if k, ok := key.(*ecdsa.PrivateKey); !ok || k.Params().BitSize != 256 {
		t.Errorf("the first key is %T", key)
	}
	l.is("the default life", cert.NotAfter.Sub(cert.NotBefore).String(), "24h0m0s")
	l.is("the default identity", cert.URIs[0].String(), "spiffe://"+l.ns+"/sa/default")

	key, cert, err = credential(l.exec("p", "cat", "/v/hour/key.pem") + l.exec("p", "cat", "/v/hour/cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := key.(ed25519.PrivateKey); !ok {
		t.Errorf("the second key is %T", key)
	}
	l.is("the life that was asked for", cert.NotAfter.Sub(cert.NotBefore).String(), "1h0m0s")
	l.is("the identity that was asked for", cert.URIs[0].String(), "spiffe://"+l.ns+"/ns/other/sa/chosen")
	if chain := l.exec("p", "cat", "/v/hour/cert.pem"); !strings.HasPrefix(chain, "-----BEGIN") {
		t.Errorf("what is no certificate is in the chain:\n%s", chain)
	}

	requests := s.requests("p")
	if len(requests) != 2 {
		t.Fatalf("%d requests", len(requests))
	}
	for _, r := range requests {
		node, account := pod.Spec.NodeName, pod.Spec.ServiceAccountName
		if r.Spec.PodUID != pod.UID || string(r.Spec.NodeName) != node || r.Spec.ServiceAccountName != account || r.Spec.NodeUID == "" || r.Spec.ServiceAccountUID == "" {
			t.Errorf("the request is for %+v", r.Spec)
		}
		if len(r.OwnerReferences) != 1 || r.OwnerReferences[0].UID != pod.UID {
			t.Errorf("the request is owned by %v", r.OwnerReferences)
		}
	}
	metrics := shared.kubectl(t, "get", "--raw", "/api/v1/nodes/"+pod.Spec.NodeName+"/proxy/metrics")
	l.contains(metrics, `kubelet_podcertificate_states{signer_name="`+s.name+`",state="fresh"} 2`)
}

// A certificate whose renewal is due is replaced, with a new key, while the pod runs.
func TestPodCertificatesAreRenewed(t *testing.T) {
	l := newLab(t)
	s := startSigner(l)
	s.backdated = 1
	l.apply(podManifest("p", `
  containers: [`+mounted(busybox("c", "sleep 3600"), "v")+`]
  volumes: [{name: v, projected: {sources: [{podCertificate: {signerName: `+s.name+`, keyType: ECDSAP384, maxExpirationSeconds: 3600, credentialBundlePath: all.pem}}]}}]
`))
	l.ready("p")
	var cert *x509.Certificate
	eventually(t, settle, func() (err error) {
		if _, cert, err = credential(l.exec("p", "cat", "/v/all.pem")); err != nil {
			t.Fatal(err)
		}
		if age := time.Since(cert.NotBefore); age > 20*time.Minute {
			return fmt.Errorf("the certificate is still that of %s ago", age)
		}
		return nil
	})
	if n := len(s.requests("p")); n != 2 {
		t.Errorf("%d requests", n)
	}
	if n := status(l.pod("p"), "c").RestartCount; n != 0 {
		t.Errorf("restarted %d times", n)
	}
}

// mounted adds the mount of a volume at /<name> to a container written on one line.
func mounted(container, volume string) string {
	return strings.TrimSuffix(container, "}") + ", volumeMounts: [{name: " + volume + ", mountPath: /" + volume + "}]}"
}

// Two pods know each other by certificates of the same signer, whose trust bundle
// both mount; one without a certificate is turned away.
func TestPodCertificatesForMutualTLS(t *testing.T) {
	l := newLab(t)
	s := startSigner(l)
	l.bundle(s.name, strings.ReplaceAll(s.name, "/", ":")+":ca", map[string]string{"live": "yes"}, s.pem)
	volumes := `
  volumes:
  - name: tls
    projected:
      sources:
      - podCertificate: {signerName: ` + s.name + `, keyType: ECDSAP256, credentialBundlePath: own.pem}
      - clusterTrustBundle: {signerName: ` + s.name + `, labelSelector: {matchLabels: {live: "yes"}}, path: ca.pem}
`
	const files = "--tls-cert-file', /tls/own.pem, '--tls-key-file', /tls/own.pem, '--tls-ca-cert-file', /tls/ca.pem"
	l.apply(podManifest("server", `
  containers: [{name: c, image: 'redis:7.0', args: ['--port', '0', '--tls-port', '6379', '`+files+`], volumeMounts: [{name: tls, mountPath: /tls}], readinessProbe: {tcpSocket: {port: 6379}, periodSeconds: 1}}]`+volumes) +
		podManifest("client", "  containers: [{name: c, image: 'redis:7.0', command: [sleep, '3600'], volumeMounts: [{name: tls, mountPath: /tls}]}]"+volumes))
	l.ready("client")
	ask := []string{"redis-cli", "-h", l.ready("server").Status.PodIP, "--tls", "--cacert", "/tls/ca.pem"}
	l.is("the answer", strings.TrimSpace(l.exec("client", append(ask, "--cert", "/tls/own.pem", "--key", "/tls/own.pem", "PING")...)), "PONG")
	if out, _ := l.tryKubectl("exec", append([]string{"client", "--"}, append(ask, "PING")...)...); strings.Contains(out, "PONG") {
		t.Error("a client without a certificate is served")
	}
}

// A pod whose request is denied waits, and says why. Lives out of bounds are
// refused with the pod.
func TestPodCertificatesThatAreRefused(t *testing.T) {
	l := newLab(t)
	s := startSigner(l)
	s.denies = true
	pod := func(name, life string) string {
		return podManifest(name, `
  containers: [`+mounted(busybox("c", "sleep 3600"), "v")+`]
  volumes: [{name: v, projected: {sources: [{podCertificate: {signerName: `+s.name+`, keyType: ED25519, `+life+`credentialBundlePath: all.pem}}]}}]`)
	}
	l.apply(pod("denied", ""))
	l.event("denied", "Denied", `was denied, reason="Reason", message="message"`)
	l.event("denied", "FailedMount", `PodCertificateRequest was permanently denied: reason="Reason" message="message"`)
	if p := l.pod("denied"); p.Status.Phase != corev1.PodPending {
		t.Errorf("the pod is %s", p.Status.Phase)
	}
	for life, want := range map[string]string{
		"maxExpirationSeconds: 3599, ":    "maxExpirationSeconds must be >= 3600",
		"maxExpirationSeconds: 7862401, ": "maxExpirationSeconds must be <= 7862400",
	} {
		if out, stderr, err := shared.tryKubectl(pod("wrong", life), "create", "-n", l.ns, "-f", "-"); err == nil || !strings.Contains(stderr, want) {
			t.Errorf("%s: %s%s", life, out, stderr)
		}
	}
}
