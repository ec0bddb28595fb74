package certificates

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/validate"
)

// maxTrustBundle is the size of a bundle in bytes.
const maxTrustBundle = 1 << 20

// ClusterTrustBundles is the certificates.k8s.io/v1 clustertrustbundles resource
// (KEP-3257), also served as v1beta1.
var ClusterTrustBundles = apis.Resource{
	Group: "certificates.k8s.io", Version: "v1", Kind: "ClusterTrustBundle", Plural: "clustertrustbundles", Scope: apis.Cluster,
	New: apis.New[certificatesv1.ClusterTrustBundle], NewList: apis.NewList[certificatesv1.ClusterTrustBundleList],
	Also: []apis.Served{
		apis.ServedAs[certificatesv1.ClusterTrustBundle, certificatesv1beta1.ClusterTrustBundle, certificatesv1beta1.ClusterTrustBundleList]("certificates.k8s.io", "v1beta1", "ClusterTrustBundle"),
	},
	Storage:           "v1beta1",
	NoGeneration:      true,
	ConditionalUpdate: true,
	Validate:          apis.Check(validateBundle),
	ValidateUpdate: apis.CheckUpdate(func(b, old *certificatesv1.ClusterTrustBundle) field.ErrorList {
		errs := validateBundleNames(b)
		if b.Spec.TrustBundle != old.Spec.TrustBundle {
			errs = validateBundle(b)
		}
		return append(errs, validate.Immutable(field.NewPath("spec", "signerName"), b.Spec.SignerName, old.Spec.SignerName)...)
	}),
	ValidateName: anyName,
	Fields: apis.Selectable(map[string]func(*certificatesv1.ClusterTrustBundle) string{
		"spec.signerName": func(b *certificatesv1.ClusterTrustBundle) string { return b.Spec.SignerName },
	}),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("SignerName", "string", certificatesv1.ClusterTrustBundleSpec{}.SwaggerDoc()["signerName"]),
	},
	Row: apis.Cells(func(b *certificatesv1.ClusterTrustBundle, _ time.Time) []any {
		return []any{b.Name, apis.Or(b.Spec.SignerName, "<none>")}
	}),
}

func validateBundle(b *certificatesv1.ClusterTrustBundle) field.ErrorList {
	return append(validateBundleNames(b), validateTrustAnchors(field.NewPath("spec", "trustBundle"), b.Spec.TrustBundle)...)
}

func validateBundleNames(b *certificatesv1.ClusterTrustBundle) field.ErrorList {
	var errs field.ErrorList
	signer, meta := b.Spec.SignerName, field.NewPath("metadata")
	if b.GenerateName != "" {
		errs = append(errs, validateBundleName(meta.Child("generateName"), b.GenerateName, signer, true)...)
	}
	if b.Name != "" { // metadata says so already
		errs = append(errs, validateBundleName(meta.Child("name"), b.Name, signer, false)...)
	}
	if signer != "" {
		errs = append(errs, validate.SignerName(field.NewPath("spec", "signerName"), signer)...)
	}
	return errs
}

// validateBundleName: a signer's bundles have its name before theirs, slashes
// written as colons; nobody else's do.
func validateBundleName(path *field.Path, name, signer string, generated bool) field.ErrorList {
	if signer == "" {
		if strings.Contains(name, ":") {
			return field.ErrorList{field.Invalid(path, name, "ClusterTrustBundle without signer name must not have \":\" in its name")}
		}
		return validate.Invalid(path, name, apivalidation.NameIsDNSSubdomain(name, generated))
	}
	prefix := strings.ReplaceAll(signer, "/", ":") + ":"
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return field.ErrorList{field.Invalid(path, name, fmt.Sprintf("ClusterTrustBundle for signerName %s must be named with prefix %s", signer, prefix))}
	}
	return validate.Invalid(path, name, apivalidation.NameIsDNSSubdomain(rest, generated))
}

func validateTrustAnchors(path *field.Path, bundle string) field.ErrorList {
	if len(bundle) > maxTrustBundle {
		return field.ErrorList{field.TooLong(path, "", maxTrustBundle)}
	}
	const hidden = "<value omitted>"
	var errs field.ErrorList
	refuse := func(format string, args ...any) {
		errs = append(errs, field.Invalid(path, hidden, fmt.Sprintf(format, args...)))
	}
	indices := map[string][]int{}
	var order []string
	rest := []byte(bundle)
	for i := 0; ; i++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		switch {
		case block.Type != "CERTIFICATE":
			refuse("entry %d has bad block type: %v", i, block.Type)
			continue
		case len(block.Headers) != 0:
			refuse("entry %d has PEM block headers", i)
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil:
			refuse("entry %d does not parse as X.509", i)
			continue
		case !cert.BasicConstraintsValid:
			refuse("entry %d does not have basic constraints extension", i)
		case !cert.IsCA:
			refuse("entry %d does not have the CA bit set", i)
		}
		key := string(block.Bytes)
		if indices[key] == nil {
			order = append(order, key)
		}
		indices[key] = append(indices[key], i)
	}
	for _, key := range order {
		if n := indices[key]; len(n) > 1 {
			refuse("duplicate trust anchor (indices %v)", n)
		}
	}
	if len(order) == 0 && len(errs) == 0 {
		refuse("at least one trust anchor must be provided")
	}
	return slices.Clip(errs)
}
