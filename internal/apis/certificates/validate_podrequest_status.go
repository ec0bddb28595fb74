package certificates

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/mail"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxChain = 10 * 1024
	// minRefresh is how far from both ends of a certificate's life its renewal may begin.
	minRefresh = 10 * time.Minute
)

var (
	statusPath = field.NewPath("status")
	chainPath  = statusPath.Child("certificateChain")

	finalConditions = []string{
		certificatesv1.PodCertificateRequestConditionTypeIssued,
		certificatesv1.PodCertificateRequestConditionTypeDenied,
		certificatesv1.PodCertificateRequestConditionTypeFailed,
	}
)

// final returns the condition that ended a request.
func final(s *certificatesv1.PodCertificateRequestStatus) string {
	for _, c := range s.Conditions {
		for _, known := range finalConditions {
			if c.Type == known {
				return known
			}
		}
	}
	return ""
}

// validatePodRequestStatus: a request ends once, issued, denied or failed; what
// comes with the certificate comes with Issued, and nothing else is ever said.
func validatePodRequestStatus(r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
	s := &r.Status
	errs := validateFinal(s.Conditions)
	errs = append(errs, metav1validation.ValidateConditions(s.Conditions, statusPath.Child("conditions"))...)
	if len(errs) > 0 {
		return errs
	}
	only := func(want certificatesv1.PodCertificateRequestStatus, why string) field.ErrorList {
		if apiequality.Semantic.DeepEqual(*s, want) {
			return nil
		}
		return field.ErrorList{field.Invalid(statusPath, field.OmitValueType{}, why)}
	}
	switch {
	case final(&old.Status) != "":
		return only(old.Status, "immutable after PodCertificateRequest is issued, denied, or failed")
	case final(s) == "":
		return only(old.Status, `status is immutable unless transitioning to "Issued", "Denied", or "Failed"`)
	case final(s) != certificatesv1.PodCertificateRequestConditionTypeIssued:
		return only(certificatesv1.PodCertificateRequestStatus{Conditions: s.Conditions}, "non-condition status fields must be empty when denying or failing the PodCertificateRequest")
	}
	return validateIssued(r, old)
}

func validateFinal(conditions []metav1.Condition) field.ErrorList {
	var errs field.ErrorList
	known := 0
	for i, c := range conditions {
		at := statusPath.Child("conditions").Index(i)
		if final(&certificatesv1.PodCertificateRequestStatus{Conditions: conditions[i : i+1]}) == "" {
			errs = append(errs, field.NotSupported(at.Child("type"), c.Type, finalConditions))
			continue
		}
		if known++; known > 1 {
			errs = append(errs, field.Invalid(at.Child("type"), c.Type, `There may be at most one condition with type "Issued", "Denied", or "Failed"`))
		}
		if c.Status != metav1.ConditionTrue {
			errs = append(errs, field.NotSupported(at.Child("status"), c.Status, []metav1.ConditionStatus{metav1.ConditionTrue}))
		}
	}
	return errs
}

// validateIssued checks a chain, its first certificate against the request, and
// the times that are said of it.
func validateIssued(r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
	chain := r.Status.CertificateChain
	if len(chain) > maxChain {
		return field.ErrorList{field.TooLong(chainPath, chain, maxChain)}
	}
	wrong := func(why string) field.ErrorList { return field.ErrorList{field.Invalid(chainPath, chain, why)} }
	block, rest := pem.Decode([]byte(chain))
	switch {
	case block == nil:
		return wrong("issued certificate chain must contain at least one certificate")
	case block.Type != "CERTIFICATE":
		return wrong("issued certificate chain must consist entirely of CERTIFICATE PEM blocks")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return wrong("leaf certificate does not parse as valid X.509")
	}
	errs := validateSubjects(leaf)
	request, err := x509.ParseCertificateRequest(old.Spec.StubPKCS10Request)
	if err != nil {
		return append(errs, field.Invalid(stubPath, field.OmitValueType{}, "must be a valid PKCS#10 CSR"))
	}
	if key, ok := request.PublicKey.(interface{ Equal(x crypto.PublicKey) bool }); ok && !key.Equal(leaf.PublicKey) {
		return append(errs, wrong("leaf certificate was not issued to the requested public key")...)
	}
	if errs = append(errs, validateTimes(r, leaf)...); len(errs) > 0 {
		return errs
	}
	for block, rest = pem.Decode(rest); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return wrong("issued certificate chain must consist entirely of CERTFICATE PEM blocks") // upstream's spelling
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return wrong("intermediate certificate does not parse as valid X.509")
		}
	}
	return nil
}

func validateSubjects(leaf *x509.Certificate) field.ErrorList {
	var errs field.ErrorList
	for _, name := range leaf.DNSNames {
		if name == "" {
			errs = append(errs, field.Invalid(chainPath, name, "leaf certificate should not contain empty DNSName"))
		}
		if strings.Contains(name, "..") {
			errs = append(errs, field.Invalid(chainPath, name, "leaf certificate's DNSName should not contain '..'"))
		}
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") {
			errs = append(errs, field.Invalid(chainPath, name, "leaf certificate's DNSName should not start or end with '.'"))
		}
	}
	for _, address := range leaf.EmailAddresses {
		if _, err := mail.ParseAddress(address); err != nil {
			errs = append(errs, field.Invalid(chainPath, address, "leaf certificate should not contain invalid EmailAddress"))
		}
	}
	return errs
}

func validateTimes(r *certificatesv1.PodCertificateRequest, leaf *x509.Certificate) field.ErrorList {
	s := &r.Status
	start, refresh, end := statusPath.Child("notBefore"), statusPath.Child("beginRefreshAt"), statusPath.Child("notAfter")
	var errs field.ErrorList
	for _, f := range []struct {
		at   *field.Path
		time *metav1.Time
		why  string
	}{
		{start, s.NotBefore, "must be present and consistent with the issued certificate"},
		{end, s.NotAfter, "must be present and consistent with the issued certificate"},
		{refresh, s.BeginRefreshAt, "must be present and in the range [notbefore+10min, notafter-10min]"},
	} {
		if f.time == nil {
			errs = append(errs, field.Required(f.at, f.why))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	one := func(at *field.Path, value any, why string) field.ErrorList {
		return field.ErrorList{field.Invalid(at, value, why)}
	}
	life, most := leaf.NotAfter.Sub(leaf.NotBefore), *r.Spec.MaxExpirationSeconds
	switch {
	case !s.NotBefore.Time.Equal(leaf.NotBefore):
		return one(start, s.NotBefore.Time, "must be set to the NotBefore time encoded in the leaf certificate")
	case !s.NotAfter.Time.Equal(leaf.NotAfter):
		return one(end, s.NotAfter.Time, "must be set to the NotAfter time encoded in the leaf certificate")
	case life < time.Duration(minMaxExpiration)*time.Second:
		return one(chainPath, life, "leaf certificate lifetime must be >= 1 hour")
	case life > time.Duration(most)*time.Second:
		return one(chainPath, life, fmt.Sprintf("leaf certificate lifetime must be <= spec.maxExpirationSeconds (%v)", most))
	case s.BeginRefreshAt.Time.Before(s.NotBefore.Add(minRefresh)):
		return one(refresh, s.BeginRefreshAt.Time, "must be at least 10 minutes after status.notBefore")
	case s.BeginRefreshAt.Time.After(s.NotAfter.Add(-minRefresh)):
		return one(refresh, s.BeginRefreshAt.Time, "must be at least 10 minutes before status.notAfter")
	}
	return nil
}
