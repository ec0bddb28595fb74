package registry

import (
	"crypto/x509"
	"encoding/pem"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/component-base/metrics/legacyregistry"

	"proa/internal/apis"
)

// issued counts certificates whose requests say how long they shall live.
type issued struct{ requested, honored *prometheus.CounterVec }

var certificates = sync.OnceValue(func() issued {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_certificates_registry_" + name, Help: help}, []string{"signerName"})
	}
	i := issued{
		counter("csr_requested_duration_total", "Certificates issued for requests with a duration, by signer."),
		counter("csr_honored_duration_total", "Certificates that live as long as was asked for, by signer."),
	}
	legacyregistry.RawMustRegister(i.requested, i.honored)
	return i
})

// count looks at a write that has been committed.
func (i issued) count(obj, old apis.Object) {
	before, _ := old.(*certificatesv1.CertificateSigningRequest)
	now, _ := obj.(*certificatesv1.CertificateSigningRequest)
	if before == nil || now == nil || len(before.Status.Certificate) > 0 || len(now.Status.Certificate) == 0 || before.Spec.ExpirationSeconds == nil {
		return
	}
	signer := before.Spec.SignerName
	if !strings.HasPrefix(signer, "kubernetes.io/") {
		signer = "other"
	}
	i.requested.WithLabelValues(signer).Inc()
	block, _ := pem.Decode(now.Status.Certificate)
	if block == nil {
		return
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return
	}
	want, got := time.Duration(*before.Spec.ExpirationSeconds)*time.Second, cert.NotAfter.Sub(cert.NotBefore)
	if honored(want, got) {
		i.honored.WithLabelValues(signer).Inc()
	}
}

// honored allows for the time by which signers date certificates back, and for a
// little of the life.
func honored(want, got time.Duration) bool {
	return (want - got).Abs() < 5*time.Minute+want/20
}
