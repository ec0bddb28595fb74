package certificates

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

const (
	minExpirationSeconds = 600
	// Qualified signer names: 253 of domain, a slash, 317 of path.
)

var usages = []certificatesv1.KeyUsage{
	certificatesv1.UsageAny, certificatesv1.UsageCRLSign, certificatesv1.UsageCertSign, certificatesv1.UsageClientAuth,
	certificatesv1.UsageCodeSigning, certificatesv1.UsageContentCommitment, certificatesv1.UsageDataEncipherment,
	certificatesv1.UsageDecipherOnly, certificatesv1.UsageDigitalSignature, certificatesv1.UsageEmailProtection,
	certificatesv1.UsageEncipherOnly, certificatesv1.UsageIPsecEndSystem, certificatesv1.UsageIPsecTunnel,
	certificatesv1.UsageIPsecUser, certificatesv1.UsageKeyAgreement, certificatesv1.UsageKeyEncipherment,
	certificatesv1.UsageMicrosoftSGC, certificatesv1.UsageNetscapeSGC, certificatesv1.UsageOCSPSigning,
	certificatesv1.UsageSMIME, certificatesv1.UsageServerAuth, certificatesv1.UsageSigning, certificatesv1.UsageTimestamping,
}

func validateRequest(r *certificatesv1.CertificateSigningRequest) field.ErrorList {
	path, s := field.NewPath("spec"), &r.Spec
	var errs field.ErrorList
	if err := parseRequest(s.Request); err != nil {
		errs = append(errs, field.Invalid(path.Child("request"), s.Request, err.Error()))
	}
	errs = append(errs, validateUsages(s.Usages, path.Child("usages"))...)
	if s.SignerName == certificatesv1.GroupName+"/legacy-unknown" || s.SignerName == "kubernetes.io/legacy-unknown" {
		errs = append(errs, field.Invalid(path.Child("signerName"), s.SignerName, "the legacy signerName is not allowed via this API version"))
	} else {
		errs = append(errs, validate.SignerName(path.Child("signerName"), s.SignerName)...)
	}
	if e := s.ExpirationSeconds; e != nil && *e < minExpirationSeconds {
		errs = append(errs, field.Invalid(path.Child("expirationSeconds"), *e, fmt.Sprintf("may not specify a duration less than %d seconds (10 minutes)", minExpirationSeconds)))
	}
	errs = append(errs, validateConditions(r.Status.Conditions, field.NewPath("status", "conditions"))...)
	return append(errs, validateCertificate(r.Status.Certificate, field.NewPath("status", "certificate"))...)
}

func parseRequest(data []byte) error {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return err
	}
	return request.CheckSignature()
}

func validateUsages(list []certificatesv1.KeyUsage, path *field.Path) field.ErrorList {
	if len(list) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	seen := map[certificatesv1.KeyUsage]bool{}
	for i, u := range list {
		if seen[u] {
			errs = append(errs, field.Duplicate(path.Index(i), u))
		}
		seen[u] = true
		errs = append(errs, validate.OneOf(path.Index(i), u, usages...)...)
	}
	return errs
}

func validateConditions(conditions []certificatesv1.CertificateSigningRequestCondition, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[certificatesv1.RequestConditionType]bool{}
	for i, c := range conditions {
		at := path.Index(i)
		if c.Type == "" {
			errs = append(errs, field.Required(at.Child("type"), ""))
		}
		isApproval := c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied
		switch {
		case c.Status == "":
			errs = append(errs, field.Required(at.Child("status"), ""))
		case (isApproval || c.Type == certificatesv1.CertificateFailed) && c.Status != corev1.ConditionTrue:
			errs = append(errs, field.NotSupported(at.Child("status"), c.Status, []string{"True"}))
		default:
			errs = append(errs, validate.OneOf(at.Child("status"), c.Status, corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown)...)
		}
		if seen[c.Type] {
			errs = append(errs, field.Duplicate(at.Child("type"), c.Type))
		}
		seen[c.Type] = true
	}
	return errs
}

// validateVerdict refuses a request that is both approved and denied.
func validateVerdict(r *certificatesv1.CertificateSigningRequest) field.ErrorList {
	if len(ofType(r, certificatesv1.CertificateApproved)) == 0 || len(ofType(r, certificatesv1.CertificateDenied)) == 0 {
		return nil
	}
	const approved, denied = `conditions[{"type": "Approved"}]`, `conditions[{"type": "Denied"}]`
	return field.ErrorList{field.Invalid(field.NewPath("status", "conditions"), "{"+approved+", "+denied+"}",
		"must specify at most one of: `"+approved+"`, `"+denied+"`")}
}

func validateCertificate(data []byte, path *field.Path) field.ErrorList {
	if len(data) == 0 {
		return nil
	}
	found, rest := 0, data
	for {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return field.ErrorList{field.Invalid(path, "<certificate data>", fmt.Sprintf("only CERTIFICATE PEM blocks are allowed, found %q", block.Type))}
		}
		if len(block.Headers) != 0 {
			return field.ErrorList{field.Invalid(path, "<certificate data>", "no PEM block headers are permitted")}
		}
		certs, err := x509.ParseCertificates(block.Bytes)
		if err != nil {
			return field.ErrorList{field.Invalid(path, "<certificate data>", err.Error())}
		}
		found += len(certs)
	}
	if found == 0 {
		return field.ErrorList{field.Invalid(path, "<certificate data>", "must contain at least one CERTIFICATE PEM block")}
	}
	return nil
}

func validateRequestUpdate(r, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	return keepStatus(r, old, false, false)
}

func validateApprovalUpdate(r, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	errs := validateConditions(r.Status.Conditions, field.NewPath("status", "conditions"))
	errs = append(errs, keepStatus(r, old, true, false)...)
	return append(errs, validateVerdict(r)...)
}

func validateStatusUpdate(r, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	errs := validateConditions(r.Status.Conditions, field.NewPath("status", "conditions"))
	errs = append(errs, validateCertificate(r.Status.Certificate, field.NewPath("status", "certificate"))...)
	errs = append(errs, keepStatus(r, old, false, true)...)
	return append(errs, validateVerdict(r)...)
}

// keepStatus holds the rule of who writes what: approvers set approval, once
// and for ever, and signers the certificate, once.
func keepStatus(r, old *certificatesv1.CertificateSigningRequest, mayApprove, maySign bool) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("status", "conditions")
	for _, t := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed} {
		is, was := ofType(r, t), ofType(old, t)
		switch {
		case len(is) < len(was):
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("updates may not remove a condition of type %q", t)))
		case mayApprove || t == certificatesv1.CertificateFailed:
		case len(is) > len(was):
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("updates may not add a condition of type %q", t)))
		case !apiequality.Semantic.DeepEqual(is, was):
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("updates may not modify a condition of type %q", t)))
		}
	}
	if !bytes.Equal(r.Status.Certificate, old.Status.Certificate) {
		switch certificate := field.NewPath("status", "certificate"); {
		case !maySign:
			errs = append(errs, field.Forbidden(certificate, "updates may not set certificate content"))
		case len(old.Status.Certificate) > 0:
			errs = append(errs, field.Forbidden(certificate, "updates may not modify existing certificate content"))
		}
	}
	return errs
}

func ofType(r *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType) []certificatesv1.CertificateSigningRequestCondition {
	return slices.DeleteFunc(slices.Clone(r.Status.Conditions), func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type != t })
}
