package csr

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
)

// recognizer is a kind of request that is approved without a human, if its
// requestor may create the named subresource of certificatesigningrequests.
type recognizer struct {
	recognize   func(*certificatesv1.CertificateSigningRequest, *x509.CertificateRequest) bool
	subresource string
	message     string
}

var recognizers = []recognizer{
	{isOwnNodeClient, "selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."},
	{isNodeClient, "nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."},
}

func isNodeClient(csr *certificatesv1.CertificateSigningRequest, request *x509.CertificateRequest) bool {
	return csr.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName && validateKubeletClient(request, csr.Spec.Usages) == nil
}

func isOwnNodeClient(csr *certificatesv1.CertificateSigningRequest, request *x509.CertificateRequest) bool {
	return isNodeClient(csr, request) && csr.Spec.Username == request.Subject.CommonName
}

func (c *Controller) approve(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	csr, ok := c.requests.Cached("", key.Name)
	if !ok || len(csr.Status.Certificate) > 0 || has(csr, certificatesv1.CertificateApproved) || has(csr, certificatesv1.CertificateDenied) {
		return controllers.Result{}, nil
	}
	request, err := parse(csr)
	if err != nil {
		return controllers.Result{}, nil // admission lets none in
	}
	if csr.Spec.SignerName == certificatesv1.KubeletServingSignerName {
		if why := c.refusal(csr, request); why != "" {
			slog.InfoContext(ctx, "certificate request of a node is left to a person", "csr", csr.Name, "why", why)
			return controllers.Result{}, nil
		}
		return controllers.Result{}, ignoreStale(c.setApproved(ctx, csr, "Auto approving kubelet serving certificate of addresses that are the node's alone."))
	}
	again := controllers.Result{}
	for _, r := range recognizers {
		if !r.recognize(csr, request) {
			continue
		}
		again.After = reviewAgain
		allowed, err := c.allowed(ctx, csr, r.subresource)
		if err != nil {
			return controllers.Result{}, fmt.Errorf("review access of %s: %w", csr.Spec.Username, err)
		}
		if allowed {
			return controllers.Result{}, ignoreStale(c.setApproved(ctx, csr, r.message))
		}
	}
	return again, nil
}

// reviewAgain is after how long a requestor who may not have a certificate is asked
// about again: the role that lets them may be bound later than they ask.
const reviewAgain = time.Minute

func (c *Controller) allowed(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, subresource string) (bool, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range csr.Spec.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	review, err := client.Of[*authorizationv1.SubjectAccessReview](c.api).Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: csr.Spec.Username, UID: csr.Spec.UID, Groups: csr.Spec.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group: certificatesv1.GroupName, Version: "*", Resource: "certificatesigningrequests", Verb: "create", Subresource: subresource,
			},
		},
	})
	return err == nil && review.Status.Allowed, err
}

func (c *Controller) setApproved(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, message string) error {
	updated := csr.DeepCopy()
	updated.Status.Conditions = append(updated.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved", Message: message,
	})
	ref := client.Ref{Resource: certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests"), Name: csr.Name, Subresource: "approval"}
	_, err := c.api.Update(ctx, ref, updated, metav1.UpdateOptions{})
	return err
}

// validateKubeletClient checks a request for the certificate that a kubelet
// presents to the API server.
func validateKubeletClient(request *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	if err := validateKubeletName(request); err != nil {
		return err
	}
	if len(request.DNSNames)+len(request.IPAddresses)+len(request.EmailAddresses)+len(request.URIs) > 0 {
		return fmt.Errorf("DNS, IP, email and URI subjectAltNames are not allowed")
	}
	return validateUsages(usages, certificatesv1.UsageClientAuth)
}

// validateKubeletServing checks a request for the certificate that a kubelet serves with.
func validateKubeletServing(request *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	if err := validateKubeletName(request); err != nil {
		return err
	}
	if len(request.EmailAddresses)+len(request.URIs) > 0 {
		return fmt.Errorf("email and URI subjectAltNames are not allowed")
	}
	if len(request.DNSNames)+len(request.IPAddresses) == 0 {
		return fmt.Errorf("DNS or IP subjectAltName is required")
	}
	return validateUsages(usages, certificatesv1.UsageServerAuth)
}

func validateKubeletName(request *x509.CertificateRequest) error {
	if !slices.Equal(request.Subject.Organization, []string{"system:nodes"}) {
		return fmt.Errorf("subject organization is not system:nodes")
	}
	if !strings.HasPrefix(request.Subject.CommonName, "system:node:") {
		return fmt.Errorf("subject common name does not begin with system:node: ")
	}
	return nil
}

// validateUsages wants purpose and digital signature, and takes key encipherment, which RSA needs.
func validateUsages(usages []certificatesv1.KeyUsage, purpose certificatesv1.KeyUsage) error {
	rest := slices.DeleteFunc(slices.Clone(usages), func(u certificatesv1.KeyUsage) bool { return u == certificatesv1.UsageKeyEncipherment })
	slices.Sort(rest)
	want := []certificatesv1.KeyUsage{purpose, certificatesv1.UsageDigitalSignature}
	slices.Sort(want)
	if !slices.Equal(slices.Compact(rest), want) {
		return fmt.Errorf("usages did not match [%s, %s, %s]", certificatesv1.UsageKeyEncipherment, certificatesv1.UsageDigitalSignature, purpose)
	}
	return nil
}

// validateClient checks a request for a client certificate of the API server.
func validateClient(_ *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	for _, u := range usages {
		switch u {
		case certificatesv1.UsageSigning, certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageClientAuth:
		default:
			return fmt.Errorf("invalid usage for client certificate: %s", u)
		}
	}
	if !slices.Contains(usages, certificatesv1.UsageClientAuth) {
		return fmt.Errorf("missing required usage for client certificate: %s", certificatesv1.UsageClientAuth)
	}
	return nil
}
