package csr

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"net/netip"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/auth/pki"
	"proa/internal/client"
	"proa/internal/controllers/controllertest"
)

var serving = Serving{
	Names: []string{"kubernetes", "localhost"}, IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
	Ranges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("10.244.0.0/16")},
}

func registerNode(w *controllertest.World, name string, addresses ...string) {
	w.T.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.Create(n.DeepCopy())
	report(w, name, addresses...)
}

func report(w *controllertest.World, name string, addresses ...string) {
	w.T.Helper()
	nodes := client.Of[*corev1.Node](w.API)
	n, err := nodes.Get(w.T.Context(), "", name)
	if err != nil {
		w.T.Fatal(err)
	}
	n = n.DeepCopy()
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	if _, err := nodes.UpdateStatus(w.T.Context(), n); err != nil {
		w.T.Fatal(err)
	}
	w.Settle()
}

// askServing asks as user, a node, for a serving certificate of node.
func askServing(w *controllertest.World, user, node string, dns []string, ips ...string) {
	w.T.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.T.Fatal(err)
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}, DNSNames: dns}
	for _, ip := range ips {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(ip))
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		w.T.Fatal(err)
	}
	_, err = client.Of[*certificatesv1.CertificateSigningRequest](w.As("system:node:"+user, "system:nodes", "system:authenticated")).Create(w.T.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "csr"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: certificatesv1.KubeletServingSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		},
	})
	if err != nil {
		w.T.Fatal(err)
	}
	w.Settle()
}

func TestANodeServesWithItsOwnNameAndAddressesAlone(t *testing.T) {
	tests := []struct {
		name       string
		user, node string
		dns, ips   []string
		approved   bool
	}{
		{"its name and address", "n", "n", []string{"n"}, []string{"10.0.0.7"}, true},
		{"not for another node", "other", "n", []string{"n"}, []string{"10.0.0.7"}, false},
		{"not as a node that has not registered", "new", "new", []string{"new"}, nil, false},
		{"not another name", "n", "n", []string{"n", "kubernetes.default.svc"}, nil, false},
		{"not a name of the API server, even if the node has it", "kubernetes", "kubernetes", []string{"kubernetes"}, nil, false},
		{"not an address it does not report", "n", "n", []string{"n"}, []string{"10.0.0.8"}, false},
		{"not another node's address, even if it reports it", "thief", "thief", nil, []string{"10.0.0.7"}, false},
		{"not the API server's address", "thief", "thief", nil, []string{"10.0.0.1"}, false},
		{"not a Service's address", "thief", "thief", nil, []string{"10.96.0.1"}, false},
		{"not a pod's address", "thief", "thief", nil, []string{"10.244.3.4"}, false},
		{"not a loopback address", "thief", "thief", nil, []string{"127.0.0.1"}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			run(t, nil, func(w *controllertest.World, _ *pki.Authority) {
				registerNode(w, "n", "10.0.0.7")
				registerNode(w, "kubernetes", "10.0.0.9")
				registerNode(w, "thief", "10.0.0.6", "10.0.0.7", "10.0.0.1", "10.96.0.1", "10.244.3.4", "127.0.0.1")
				if test.approved {
					report(w, "thief", "10.0.0.6")
				}
				askServing(w, test.user, test.node, test.dns, test.ips...)
				csr := get(w)
				if got := has(csr, certificatesv1.CertificateApproved); got != test.approved || test.approved && len(csr.Status.Certificate) == 0 {
					t.Errorf("approved: %v, %+v", got, csr.Status)
				}
			})
		})
	}
}

func TestARequestThatComesBeforeTheNodeWaitsForIt(t *testing.T) {
	run(t, nil, func(w *controllertest.World, _ *pki.Authority) {
		askServing(w, "n", "n", []string{"n"}, "10.0.0.7")
		if has(get(w), certificatesv1.CertificateApproved) {
			t.Fatal("approved for a node that nobody knows")
		}
		registerNode(w, "n", "10.0.0.7")
		if !has(get(w), certificatesv1.CertificateApproved) {
			t.Error("not approved when the node has come")
		}
	})
}
