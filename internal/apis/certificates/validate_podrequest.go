package certificates

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

// Bounds of a pod certificate's life, in seconds, and of what is sent with its request.
const (
	minMaxExpiration = int32(60 * 60)
	maxMaxExpiration = int32(91 * 24 * 60 * 60)
	maxOwnExpiration = int32(24 * 60 * 60) // of kubernetes.io signers
	maxStubRequest   = 10 * 1024
	maxUID           = 128
)

var stubPath = field.NewPath("spec", "stubPKCS10Request")

// shownSpec is a spec as upstream's messages show it, which know two fields that
// v1 has no more.
type shownSpec struct {
	SignerName, PodName  string
	PodUID               types.UID
	ServiceAccountName   string
	ServiceAccountUID    types.UID
	NodeName             types.NodeName
	NodeUID              types.UID
	MaxExpirationSeconds *int32
	PKIXPublicKey        []byte
	ProofOfPossession    []byte
	StubPKCS10Request    []byte

	UnverifiedUserAnnotations map[string]string
}

func shown(s *certificatesv1.PodCertificateRequestSpec) shownSpec {
	return shownSpec{
		SignerName: s.SignerName, PodName: s.PodName, PodUID: s.PodUID,
		ServiceAccountName: s.ServiceAccountName, ServiceAccountUID: s.ServiceAccountUID,
		NodeName: s.NodeName, NodeUID: s.NodeUID, MaxExpirationSeconds: s.MaxExpirationSeconds,
		StubPKCS10Request: s.StubPKCS10Request, UnverifiedUserAnnotations: s.UnverifiedUserAnnotations,
	}
}

func validatePodRequest(r *certificatesv1.PodCertificateRequest) field.ErrorList {
	path, s := field.NewPath("spec"), &r.Spec
	errs := validate.SignerName(path.Child("signerName"), s.SignerName)
	if s.UnverifiedUserAnnotations != nil {
		errs = append(errs, validateUserAnnotations(s.UnverifiedUserAnnotations, path.Child("unverifiedUserAnnotations"))...)
	}
	identity := func(of, name string, uid types.UID, check func(string, bool) []string) {
		errs = append(errs, validate.Invalid(path.Child(of+"Name"), name, check(name, false))...)
		at := path.Child(of + "UID")
		if uid == "" {
			errs = append(errs, field.Invalid(at, uid, "must not be empty"))
		}
		if len(uid) > maxUID {
			errs = append(errs, field.TooLong(at, uid, maxUID))
		}
	}
	identity("pod", s.PodName, s.PodUID, apivalidation.NameIsDNSSubdomain)
	identity("serviceAccount", s.ServiceAccountName, s.ServiceAccountUID, apivalidation.ValidateServiceAccountName)
	identity("node", string(s.NodeName), s.NodeUID, apivalidation.NameIsDNSSubdomain)
	if s.MaxExpirationSeconds == nil {
		return append(errs, field.Required(path.Child("maxExpirationSeconds"), "must be set"))
	}
	errs = append(errs, validateExpiration(s, path.Child("maxExpirationSeconds"))...)
	if len(s.StubPKCS10Request) == 0 {
		return append(errs, field.Invalid(path, field.OmitValueType{}, "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set"))
	}
	return append(errs, validateStub(s.StubPKCS10Request)...)
}

func validateUserAnnotations(annotations map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for key := range validate.Sorted(annotations) {
		errs = append(errs, validation.IsDomainPrefixedKey(path, strings.ToLower(key))...)
	}
	if apivalidation.ValidateAnnotationsSize(annotations) != nil {
		errs = append(errs, field.TooLong(path, "", apivalidation.TotalAnnotationSizeLimitB))
	}
	return errs
}

func validateExpiration(s *certificatesv1.PodCertificateRequestSpec, path *field.Path) field.ErrorList {
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
func validateStub(der []byte) field.ErrorList {
	if len(der) > maxStubRequest {
		return field.ErrorList{field.TooLong(stubPath, "", maxStubRequest)}
	}
	request, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return field.ErrorList{field.Invalid(stubPath, field.OmitValueType{}, "must be a valid PKCS#10 CSR")}
	}
	if e := validateKey(request); e != nil {
		return field.ErrorList{e}
	}
	if err := request.CheckSignature(); err != nil {
		return field.ErrorList{field.Invalid(stubPath, field.OmitValueType{}, "invalid signature")}
	}
	return nil
}

func validateKey(request *x509.CertificateRequest) *field.Error {
	switch key := request.PublicKey.(type) {
	case ed25519.PublicKey:
		return nil
	case *ecdsa.PublicKey:
		if bits := key.Curve.Params().BitSize; bits == 256 || bits == 384 || bits == 521 {
			return nil
		}
		return field.Invalid(stubPath, "curve "+key.Curve.Params().Name, "elliptic public keys must use curve P256, P384, or P521")
	case *rsa.PublicKey:
		if bits := key.Size() * 8; bits != 3072 && bits != 4096 {
			return field.Invalid(stubPath, fmt.Sprintf("%d-bit modulus", bits), "RSA keys must have modulus size 3072 or 4096")
		}
		return nil
	}
	return field.Invalid(stubPath, field.OmitValueType{}, "unknown public key type; supported types are Ed25519, ECDSA, and RSA")
}
