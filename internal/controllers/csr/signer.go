package csr

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers"
)

const (
	longestLife  = 365 * 24 * time.Hour
	shortestLife = 10 * time.Minute
)

// signers are those that the cluster's CA signs for, with what each one checks.
var signers = map[string]func(*x509.CertificateRequest, []certificatesv1.KeyUsage) error{
	certificatesv1.KubeletServingSignerName:             validateKubeletServing,
	certificatesv1.KubeAPIServerClientKubeletSignerName: validateKubeletClient,
	certificatesv1.KubeAPIServerClientSignerName:        validateClient,
}

var keyUsages = map[certificatesv1.KeyUsage]x509.KeyUsage{
	certificatesv1.UsageSigning:           x509.KeyUsageDigitalSignature,
	certificatesv1.UsageDigitalSignature:  x509.KeyUsageDigitalSignature,
	certificatesv1.UsageContentCommitment: x509.KeyUsageContentCommitment,
	certificatesv1.UsageKeyEncipherment:   x509.KeyUsageKeyEncipherment,
	certificatesv1.UsageKeyAgreement:      x509.KeyUsageKeyAgreement,
	certificatesv1.UsageDataEncipherment:  x509.KeyUsageDataEncipherment,
}

var extendedUsages = map[certificatesv1.KeyUsage]x509.ExtKeyUsage{
	certificatesv1.UsageClientAuth: x509.ExtKeyUsageClientAuth,
	certificatesv1.UsageServerAuth: x509.ExtKeyUsageServerAuth,
}

// issue signs an approved request.
func (c *Controller) issue(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	csr, ok := c.requests.Cached("", key.Name)
	if !ok || len(csr.Status.Certificate) > 0 || !has(csr, certificatesv1.CertificateApproved) ||
		has(csr, certificatesv1.CertificateDenied) || has(csr, certificatesv1.CertificateFailed) {
		return controllers.Result{}, nil
	}
	validate, ours := signers[csr.Spec.SignerName]
	if !ours {
		return controllers.Result{}, nil
	}
	request, err := parse(csr)
	if err != nil {
		return controllers.Result{}, fmt.Errorf("parse request %s: %w", csr.Name, err)
	}
	if err := validate(request, csr.Spec.Usages); err != nil {
		return controllers.Result{}, ignoreStale(c.fail(ctx, csr, "SignerValidationFailure", err))
	}
	cert, err := c.sign(template(request, csr.Spec.Usages), request.PublicKey, life(csr.Spec.ExpirationSeconds))
	if err != nil {
		return controllers.Result{}, err
	}
	updated := csr.DeepCopy()
	updated.Status.Certificate = cert
	_, err = c.requests.UpdateStatus(ctx, updated)
	return controllers.Result{}, ignoreStale(err)
}

// template takes over what the request says about its subject, nothing else.
func template(request *x509.CertificateRequest, usages []certificatesv1.KeyUsage) *x509.Certificate {
	t := &x509.Certificate{
		Subject: request.Subject, DNSNames: request.DNSNames, IPAddresses: request.IPAddresses,
		EmailAddresses: request.EmailAddresses, URIs: request.URIs,
	}
	for _, u := range usages {
		t.KeyUsage |= keyUsages[u]
		if e, ok := extendedUsages[u]; ok {
			t.ExtKeyUsage = append(t.ExtKeyUsage, e)
		}
	}
	return t
}

func life(seconds *int32) time.Duration {
	if seconds == nil {
		return longestLife
	}
	return min(max(time.Duration(*seconds)*time.Second, shortestLife), longestLife)
}

func preconditions(obj metav1.Object) metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(obj.GetUID()))}
}
