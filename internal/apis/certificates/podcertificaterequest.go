package certificates

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/validate"
)

// Bounds of a pod certificate's life and of what is sent with its request.
const (
	defaultMaxExpiration = int32(24 * 60 * 60)
	minMaxExpiration     = int32(60 * 60)
	maxMaxExpiration     = int32(91 * 24 * 60 * 60)
	maxOwnExpiration     = int32(24 * 60 * 60) // of kubernetes.io signers
	maxStubRequest       = 10 * 1024
	maxChain             = 10 * 1024
	clockSkew            = 5 * time.Minute
)

// PodCertificateRequests is the certificates.k8s.io/v1 podcertificaterequests
// resource (KEP-4317).
var PodCertificateRequests = apis.Resource{
	Group: "certificates.k8s.io", Version: "v1", Kind: "PodCertificateRequest", Plural: "podcertificaterequests",
	New: apis.New[certificatesv1.PodCertificateRequest], NewList: apis.NewList[certificatesv1.PodCertificateRequestList],
	Readable: []apis.Served{
		apis.ServedAs[certificatesv1.PodCertificateRequest, certificatesv1beta1.PodCertificateRequest, certificatesv1beta1.PodCertificateRequestList]("certificates.k8s.io", "v1beta1", "PodCertificateRequest"),
	},
	Storage:      "v1beta1",
	NoGeneration: true,
	Default: apis.On(func(r *certificatesv1.PodCertificateRequest) {
		if r.Spec.MaxExpirationSeconds == nil {
			r.Spec.MaxExpirationSeconds = new(defaultMaxExpiration)
		}
	}),
	Subresources: []apis.Subresource{
		apis.Writable("status", func(r, old *certificatesv1.PodCertificateRequest) { r.Spec = old.Spec }, validatePodRequestStatus),
	},
	PrepareCreate: apis.On(func(r *certificatesv1.PodCertificateRequest) {
		r.Status = certificatesv1.PodCertificateRequestStatus{}
	}),
	PrepareUpdate: apis.OnUpdate(func(r, old *certificatesv1.PodCertificateRequest) { r.Status = old.Status }),
	Validate:      apis.Check(validatePodRequest),
	ValidateUpdate: apis.CheckUpdate(func(r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
		return validate.Immutable(field.NewPath("spec"), r.Spec, old.Spec)
	}),
	Fields: apis.Selectable(map[string]func(*certificatesv1.PodCertificateRequest) string{
		"spec.signerName": func(r *certificatesv1.PodCertificateRequest) string { return r.Spec.SignerName },
		"spec.podName":    func(r *certificatesv1.PodCertificateRequest) string { return r.Spec.PodName },
		"spec.nodeName":   func(r *certificatesv1.PodCertificateRequest) string { return string(r.Spec.NodeName) },
	}),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("PodName", "string", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["podName"]),
		apis.Column("ServiceAccountName", "string", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["serviceAccountName"]),
		apis.Column("NodeName", "string", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["nodeName"]),
		apis.Column("SignerName", "string", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["signerName"]),
		apis.Column("State", "string", "The state of the request: Pending, Issued, Denied or Failed."),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(r *certificatesv1.PodCertificateRequest, now time.Time) []any {
		state := "Pending"
		for _, c := range r.Status.Conditions {
			if isFinal(c.Type) {
				state = c.Type
			}
		}
		return []any{r.Name, r.Spec.PodName, r.Spec.ServiceAccountName, string(r.Spec.NodeName), r.Spec.SignerName, state, apis.AgeOf(r, now)}
	}),
}

func isFinal(condition string) bool {
	switch condition {
	case certificatesv1.PodCertificateRequestConditionTypeIssued, certificatesv1.PodCertificateRequestConditionTypeDenied, certificatesv1.PodCertificateRequestConditionTypeFailed:
		return true
	}
	return false
}

func validatePodRequest(r *certificatesv1.PodCertificateRequest) field.ErrorList {
	path, s := field.NewPath("spec"), &r.Spec
	errs := validate.SignerName(path.Child("signerName"), s.SignerName)
	name := func(child, value string, check func(string, bool) []string) {
		errs = append(errs, validate.Invalid(path.Child(child), value, check(value, false))...)
	}
	uid := func(child, value string) {
		if value == "" {
			errs = append(errs, field.Required(path.Child(child), "must be set"))
		} else if len(value) > 128 {
			errs = append(errs, field.TooLong(path.Child(child), value, 128))
		}
	}
	name("podName", s.PodName, apivalidation.NameIsDNSSubdomain)
	uid("podUID", string(s.PodUID))
	name("serviceAccountName", s.ServiceAccountName, apivalidation.ValidateServiceAccountName)
	uid("serviceAccountUID", string(s.ServiceAccountUID))
	name("nodeName", string(s.NodeName), apivalidation.NameIsDNSSubdomain)
	uid("nodeUID", string(s.NodeUID))
	errs = append(errs, validateExpiration(s, path.Child("maxExpirationSeconds"))...)
	errs = append(errs, validateStub(s.StubPKCS10Request, path.Child("stubPKCS10Request"))...)
	at := path.Child("unverifiedUserAnnotations")
	for key := range validate.Sorted(s.UnverifiedUserAnnotations) {
		if !strings.Contains(key, "/") {
			errs = append(errs, field.Invalid(at, key, "all keys must be domain-prefixed"))
		}
	}
	return append(errs, validate.Annotations(at, s.UnverifiedUserAnnotations)...)
}

func validateExpiration(s *certificatesv1.PodCertificateRequestSpec, path *field.Path) field.ErrorList {
	if s.MaxExpirationSeconds == nil {
		return field.ErrorList{field.Required(path, "must be set")}
	}
	most := maxMaxExpiration
	if strings.HasPrefix(s.SignerName, "kubernetes.io/") {
		most = maxOwnExpiration
	}
	if n := *s.MaxExpirationSeconds; n < minMaxExpiration || n > most {
		return field.ErrorList{field.Invalid(path, n, fmt.Sprintf("must be in the range [%d, %d]", minMaxExpiration, most))}
	}
	return nil
}

// validateStub wants a request signed with a key of a kind that signers know.
func validateStub(der []byte, path *field.Path) field.ErrorList {
	const hidden = "<value omitted>"
	switch {
	case len(der) == 0:
		return field.ErrorList{field.Required(path, "must be set")}
	case len(der) > maxStubRequest:
		return field.ErrorList{field.TooLong(path, "", maxStubRequest)}
	}
	request, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return field.ErrorList{field.Invalid(path, hidden, "must be a valid PKCS#10 certificate signing request")}
	}
	if err := request.CheckSignature(); err != nil {
		return field.ErrorList{field.Invalid(path, hidden, "must be signed by its own key")}
	}
	switch key := request.PublicKey.(type) {
	case ed25519.PublicKey:
		return nil
	case *ecdsa.PublicKey:
		if bits := key.Curve.Params().BitSize; bits == 256 || bits == 384 || bits == 521 {
			return nil
		}
		return field.ErrorList{field.Invalid(path, "curve "+key.Curve.Params().Name, "elliptic public keys must use curve P256 or P384")}
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits == 3072 || bits == 4096 {
			return nil
		} else {
			return field.ErrorList{field.Invalid(path, fmt.Sprintf("%d-bit modulus", bits), "RSA keys must have modulus size 3072 or 4096")}
		}
	}
	return field.ErrorList{field.Invalid(path, hidden, "unknown public key type; supported types are Ed25519, ECDSA, and RSA")}
}

// validatePodRequestStatus: a request ends once, issued, denied or failed; a
// chain comes with its times and with Issued, and then stays.
func validatePodRequestStatus(r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
	path, s := field.NewPath("status"), &r.Status
	errs := metav1validation.ValidateConditions(s.Conditions, path.Child("conditions"))
	final := ""
	for i, c := range s.Conditions {
		at := path.Child("conditions").Index(i)
		if !isFinal(c.Type) {
			continue
		}
		if c.Status != metav1.ConditionTrue {
			errs = append(errs, field.NotSupported(at.Child("status"), c.Status, []metav1.ConditionStatus{metav1.ConditionTrue}))
		}
		if final != "" {
			errs = append(errs, field.Invalid(path.Child("conditions"), s.Conditions, `There may be at most one condition with type "Issued", "Denied", or "Failed"`))
		}
		final = c.Type
	}
	for _, c := range old.Status.Conditions {
		if isFinal(c.Type) {
			return append(errs, validate.Immutable(path, r.Status, old.Status)...)
		}
	}
	issued := final == certificatesv1.PodCertificateRequestConditionTypeIssued
	return append(errs, validateIssued(r, issued, path)...)
}

func validateIssued(r *certificatesv1.PodCertificateRequest, issued bool, path *field.Path) field.ErrorList {
	s := &r.Status
	fields := []struct {
		name string
		set  bool
	}{
		{"certificateChain", s.CertificateChain != ""}, {"notBefore", s.NotBefore != nil},
		{"beginRefreshAt", s.BeginRefreshAt != nil}, {"notAfter", s.NotAfter != nil},
	}
	var errs field.ErrorList
	for _, f := range fields {
		switch {
		case issued && !f.set:
			errs = append(errs, field.Required(path.Child(f.name), "must be set"))
		case !issued && f.set:
			errs = append(errs, field.Forbidden(path.Child(f.name), `may only be set when there is a condition of type "Issued"`))
		}
	}
	if !issued || len(errs) > 0 {
		return errs
	}
	return validateChain(r, path)
}

func validateChain(r *certificatesv1.PodCertificateRequest, path *field.Path) field.ErrorList {
	s, at := &r.Status, path.Child("certificateChain")
	const hidden = "<value omitted>"
	if len(s.CertificateChain) > maxChain {
		return field.ErrorList{field.TooLong(at, "", maxChain)}
	}
	var leaf *x509.Certificate
	rest := []byte(s.CertificateChain)
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return field.ErrorList{field.Invalid(at, hidden, "issued certificate chain contains non-CERTIFICATE PEM entries")}
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return field.ErrorList{field.Invalid(at, hidden, "issued certificate chain contains entries that do not parse as X.509 certificates")}
		}
		if leaf == nil {
			leaf = cert
		}
	}
	if leaf == nil {
		return field.ErrorList{field.Invalid(at, hidden, "issued certificate chain must contain at least one certificate")}
	}
	var errs field.ErrorList
	if request, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request); err == nil {
		if key, ok := leaf.PublicKey.(interface{ Equal(x crypto.PublicKey) bool }); ok && !key.Equal(request.PublicKey) {
			errs = append(errs, field.Invalid(at, hidden, "leaf certificate was not issued to the requested public key"))
		}
	}
	if !s.NotBefore.Time.Equal(leaf.NotBefore) {
		errs = append(errs, field.Invalid(path.Child("notBefore"), s.NotBefore, "must be set to the NotBefore time encoded in the leaf certificate"))
	}
	if !s.NotAfter.Time.Equal(leaf.NotAfter) {
		errs = append(errs, field.Invalid(path.Child("notAfter"), s.NotAfter, "must be set to the NotAfter time encoded in the leaf certificate"))
	}
	life := leaf.NotAfter.Sub(leaf.NotBefore)
	if life < time.Duration(minMaxExpiration)*time.Second {
		errs = append(errs, field.Invalid(at, life.String(), "leaf certificate lifetime must be >= 1 hour"))
	}
	if m := r.Spec.MaxExpirationSeconds; m != nil && life > time.Duration(*m)*time.Second+clockSkew {
		errs = append(errs, field.Invalid(at, life.String(), fmt.Sprintf("leaf certificate lifetime must be <= spec.maxExpirationSeconds (%v)", *m)))
	}
	if t := s.BeginRefreshAt.Time; t.Before(leaf.NotBefore) || t.After(leaf.NotAfter) {
		errs = append(errs, field.Invalid(path.Child("beginRefreshAt"), s.BeginRefreshAt, "must be between notBefore and notAfter"))
	}
	return errs
}
