// Package certificates declares the kinds of the certificates.k8s.io group, v1.
package certificates

import (
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/apis"
)

// Resources returns every kind of the group.
func Resources() []*apis.Resource {
	return []*apis.Resource{&CertificateSigningRequests, &ClusterTrustBundles, &PodCertificateRequests}
}

// CertificateSigningRequests is the certificates.k8s.io/v1
// certificatesigningrequests resource. Who asks (spec.username, uid, groups,
// extra) is what the server knows of the user, whatever the request says.
var CertificateSigningRequests = apis.Resource{
	Group: "certificates.k8s.io", Version: "v1", Kind: "CertificateSigningRequest", Plural: "certificatesigningrequests", Short: []string{"csr"}, Scope: apis.Cluster,
	New: apis.New[certificatesv1.CertificateSigningRequest], NewList: apis.NewList[certificatesv1.CertificateSigningRequestList],
	NoGeneration: true,
	Subresources: []apis.Subresource{
		apis.Resetting(apis.Writable("approval", prepareApproval, validateApprovalUpdate), "spec", "status.certificate"),
		apis.Resetting(apis.Writable("status", prepareStatus, validateStatusUpdate), "spec", "status.conditions"),
	},
	Resets: []string{"spec", "status"},
	PrepareCreate: apis.On(func(r *certificatesv1.CertificateSigningRequest) {
		r.Status = certificatesv1.CertificateSigningRequestStatus{}
	}),
	Requestor: func(obj apis.Object, by user.Info) {
		spec := &obj.(*certificatesv1.CertificateSigningRequest).Spec
		spec.Username, spec.UID, spec.Groups, spec.Extra = by.GetName(), by.GetUID(), by.GetGroups(), nil
		for key, values := range by.GetExtra() {
			if spec.Extra == nil {
				spec.Extra = map[string]certificatesv1.ExtraValue{}
			}
			spec.Extra[key] = values
		}
	},
	PrepareUpdate: apis.OnUpdate(func(r, old *certificatesv1.CertificateSigningRequest) {
		r.Spec, r.Status = old.Spec, old.Status
	}),
	Stamp:          apis.Stamped(stampConditions),
	Validate:       apis.Check(validateRequest),
	ValidateUpdate: apis.CheckUpdate(validateRequestUpdate),
	ValidateName:   pathvalidation.ValidatePathSegmentName,
	Fields: apis.Selectable(map[string]func(*certificatesv1.CertificateSigningRequest) string{
		"spec.signerName": func(r *certificatesv1.CertificateSigningRequest) string { return r.Spec.SignerName },
	}),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.AgeColumn,
		apis.Column("SignerName", "string", certificatesv1beta1.CertificateSigningRequestSpec{}.SwaggerDoc()["signerName"]),
		apis.Column("Requestor", "string", certificatesv1beta1.CertificateSigningRequestSpec{}.SwaggerDoc()["request"]),
		apis.Column("RequestedDuration", "string", certificatesv1.CertificateSigningRequestSpec{}.SwaggerDoc()["expirationSeconds"]),
		apis.Column("Condition", "string", certificatesv1beta1.CertificateSigningRequestStatus{}.SwaggerDoc()["conditions"]),
	},
	Row: apis.Cells(func(r *certificatesv1.CertificateSigningRequest, now time.Time) []any {
		requested := "<none>"
		if s := r.Spec.ExpirationSeconds; s != nil {
			requested = duration.HumanDuration(time.Duration(*s) * time.Second)
		}
		return []any{r.Name, apis.AgeOf(r, now), apis.Or(r.Spec.SignerName, "<none>"), r.Spec.Username, requested, printStatus(r)}
	}),
}

// anyName: validateBundle checks it, for it depends on the signer.
func anyName(string, bool) []string { return nil }

func printStatus(r *certificatesv1.CertificateSigningRequest) string {
	var shown []string
	has := map[certificatesv1.RequestConditionType]bool{}
	for _, c := range r.Status.Conditions {
		has[c.Type] = true
	}
	switch {
	case has[certificatesv1.CertificateDenied]:
		shown = append(shown, "Denied")
	case has[certificatesv1.CertificateApproved]:
		shown = append(shown, "Approved")
	default:
		shown = append(shown, "Pending")
	}
	if has[certificatesv1.CertificateFailed] {
		shown = append(shown, "Failed")
	}
	if len(r.Status.Certificate) > 0 {
		shown = append(shown, "Issued")
	}
	return strings.Join(shown, ",")
}

// prepareApproval lets nothing but conditions change.
func prepareApproval(r, old *certificatesv1.CertificateSigningRequest) {
	conditions := r.Status.Conditions
	r.Spec, r.Status = old.Spec, old.Status
	r.Status.Conditions = conditions
}

func prepareStatus(r, old *certificatesv1.CertificateSigningRequest) { r.Spec = old.Spec }

// stampConditions notes when conditions were written and when they changed.
func stampConditions(r, old *certificatesv1.CertificateSigningRequest, now metav1.Time) {
	for i := range r.Status.Conditions {
		c := &r.Status.Conditions[i]
		if c.LastUpdateTime.IsZero() {
			c.LastUpdateTime = now
		}
		if !c.LastTransitionTime.IsZero() {
			continue
		}
		c.LastTransitionTime = now
		if old == nil {
			continue
		}
		for _, was := range old.Status.Conditions {
			if was.Type == c.Type && was.Status == c.Status && !was.LastTransitionTime.IsZero() {
				c.LastTransitionTime = was.LastTransitionTime
			}
		}
	}
}
