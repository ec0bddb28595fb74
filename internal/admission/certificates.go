package admission

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

var (
	signingRequests = schema.GroupResource{Group: certificatesv1.GroupName, Resource: "certificatesigningrequests"}
	trustBundles    = schema.GroupResource{Group: certificatesv1.GroupName, Resource: "clustertrustbundles"}
)

// mayUseSigner reports whether the user has a verb on a signer, by its name or
// by its whole domain.
func mayUseSigner(ctx context.Context, a authorizer.Authorizer, u user.Info, verb, signer string) bool {
	names := []string{signer}
	if domain, _, ok := strings.Cut(signer, "/"); ok {
		names = append(names, domain+"/*")
	}
	return slices.ContainsFunc(names, func(name string) bool {
		decision, _, err := a.Authorize(ctx, authorizer.AttributesRecord{
			User: u, Verb: verb, APIGroup: certificatesv1.GroupName, APIVersion: "*", Resource: "signers", Name: name, ResourceRequest: true,
		})
		return err == nil && decision == authorizer.DecisionAllow
	})
}

// CertificateApproval lets only those approve a request who may do so for its signer.
type CertificateApproval struct{ Authorizer authorizer.Authorizer }

func (CertificateApproval) Name() string { return "CertificateApproval" }

func (p CertificateApproval) Validate(ctx context.Context, a *Attributes) error {
	if a.Operation != admissionv1.Update || !a.of(signingRequests) || a.Subresource != "approval" {
		return nil
	}
	csr, ok := a.OldObject.(*certificatesv1.CertificateSigningRequest)
	if ok && !mayUseSigner(ctx, p.Authorizer, a.User, "approve", csr.Spec.SignerName) {
		return a.forbidden(fmt.Errorf("user not permitted to approve requests with signerName %q", csr.Spec.SignerName))
	}
	return nil
}

// CertificateSigning lets only those issue a certificate who may sign for the signer.
type CertificateSigning struct{ Authorizer authorizer.Authorizer }

func (CertificateSigning) Name() string { return "CertificateSigning" }

func (p CertificateSigning) Validate(ctx context.Context, a *Attributes) error {
	if a.Operation != admissionv1.Update || !a.of(signingRequests) || a.Subresource != "status" {
		return nil
	}
	csr, ok := a.Object.(*certificatesv1.CertificateSigningRequest)
	old, okOld := a.OldObject.(*certificatesv1.CertificateSigningRequest)
	if !ok || !okOld {
		return nil
	}
	if bytes.Equal(csr.Status.Certificate, old.Status.Certificate) && equality.Semantic.DeepEqual(csr.Status.Conditions, old.Status.Conditions) {
		return nil
	}
	if !mayUseSigner(ctx, p.Authorizer, a.User, "sign", old.Spec.SignerName) {
		return a.forbidden(fmt.Errorf("user not permitted to sign requests with signerName %q", old.Spec.SignerName))
	}
	return nil
}

// CertificateSubjectRestriction keeps requests for client certificates out of
// the group that may do everything.
type CertificateSubjectRestriction struct{}

func (CertificateSubjectRestriction) Name() string { return "CertificateSubjectRestriction" }

func (CertificateSubjectRestriction) Validate(_ context.Context, a *Attributes) error {
	if !a.is(admissionv1.Create, signingRequests) {
		return nil
	}
	csr, ok := a.Object.(*certificatesv1.CertificateSigningRequest)
	if !ok || csr.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName {
		return nil
	}
	request, err := parseRequest(csr.Spec.Request)
	if err != nil {
		return a.forbidden(fmt.Errorf("failed to parse CSR: %v", err))
	}
	if slices.Contains(request.Subject.Organization, user.SystemPrivilegedGroup) {
		return a.forbidden(fmt.Errorf("use of %s signer with %s group is not allowed", csr.Spec.SignerName, user.SystemPrivilegedGroup))
	}
	return nil
}

func parseRequest(data []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}

// ClusterTrustBundleAttest lets only those write a signer's trust anchors who
// may attest for it.
type ClusterTrustBundleAttest struct{ Authorizer authorizer.Authorizer }

func (ClusterTrustBundleAttest) Name() string { return "ClusterTrustBundleAttest" }

func (p ClusterTrustBundleAttest) Validate(ctx context.Context, a *Attributes) error {
	if !a.is(admissionv1.Create, trustBundles) && !a.is(admissionv1.Update, trustBundles) {
		return nil
	}
	signer := signerOf(a.Object)
	if a.Operation == admissionv1.Update && signer == signerOf(a.OldObject) && trustOf(a.Object) == trustOf(a.OldObject) {
		return nil // finalizers and labels are anyone's who may update
	}
	if signer != "" && !mayUseSigner(ctx, p.Authorizer, a.User, "attest", signer) {
		return a.forbidden(fmt.Errorf("user not permitted to attest for signerName %q", signer))
	}
	return nil
}

func signerOf(obj any) string {
	if b, ok := obj.(*certificatesv1.ClusterTrustBundle); ok {
		return b.Spec.SignerName
	}
	return ""
}

func trustOf(obj any) string {
	if b, ok := obj.(*certificatesv1.ClusterTrustBundle); ok {
		return b.Spec.TrustBundle
	}
	return ""
}
