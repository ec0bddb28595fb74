package certificates

import (
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
)

// defaultMaxExpiration is a day, in seconds.
const defaultMaxExpiration = int32(24 * 60 * 60)

// PodCertificateRequests is the certificates.k8s.io/v1 podcertificaterequests
// resource (KEP-4317).
var PodCertificateRequests = apis.Resource{
	Group: "certificates.k8s.io", Version: "v1", Kind: "PodCertificateRequest", Plural: "podcertificaterequests",
	New: apis.New[certificatesv1.PodCertificateRequest], NewList: apis.NewList[certificatesv1.PodCertificateRequestList],
	Readable: []apis.Served{ // it has fields that v1 does not
		apis.ServedAs[certificatesv1.PodCertificateRequest, certificatesv1beta1.PodCertificateRequest, certificatesv1beta1.PodCertificateRequestList]("certificates.k8s.io", "v1beta1", "PodCertificateRequest"),
	},
	Storage:           "v1beta1",
	NoGeneration:      true,
	ConditionalUpdate: true,
	Default: apis.On(func(r *certificatesv1.PodCertificateRequest) {
		if r.Spec.MaxExpirationSeconds == nil {
			r.Spec.MaxExpirationSeconds = new(defaultMaxExpiration)
		}
	}),
	Subresources: []apis.Subresource{
		apis.Status(func(r, old *certificatesv1.PodCertificateRequest) { r.Spec = old.Spec }, validatePodRequestStatus),
	},
	PrepareCreate: apis.On(func(r *certificatesv1.PodCertificateRequest) {
		r.Status = certificatesv1.PodCertificateRequestStatus{}
	}),
	PrepareUpdate: apis.OnUpdate(func(r, old *certificatesv1.PodCertificateRequest) { r.Status = old.Status }),
	Validate:      apis.Check(validatePodRequest),
	ValidateUpdate: apis.CheckUpdate(func(r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
		if apiequality.Semantic.DeepEqual(r.Spec, old.Spec) {
			return nil
		}
		return field.ErrorList{field.Invalid(field.NewPath("spec"), shown(&r.Spec), apivalidation.FieldImmutableErrorMsg)}
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
		apis.Column("State", "string", "Is the request Pending, Issued, Denied, or Failed?"),
		apis.Column("UnverifiedUserAnnotations", "string", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["unverifiedUserAnnotations"]),
	},
	Row: apis.Cells(func(r *certificatesv1.PodCertificateRequest, _ time.Time) []any {
		state := "Pending"
		if ended := final(&r.Status); ended != "" {
			state = ended
		}
		return []any{r.Name, r.Spec.PodName, r.Spec.ServiceAccountName, string(r.Spec.NodeName), r.Spec.SignerName, state, labels.FormatLabels(r.Spec.UnverifiedUserAnnotations)}
	}),
}
