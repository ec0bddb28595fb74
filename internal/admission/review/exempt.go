package review

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
)

// exempt are the questions about access: judging them would ask them again.
var exempt = map[schema.GroupResource]bool{
	{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"}:       true,
	{Group: "authentication.k8s.io", Resource: "tokenreviews"}:             true,
	{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}: true,
	{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"}:  true,
	{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"}:   true,
	{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}:      true,
}

// Exempt says whether no webhook and no policy is asked about a kind.
func Exempt(r *apis.Resource) bool { return exempt[r.GroupResource()] }

// judging are the kinds that say who judges.
var judging = map[string]bool{
	"mutatingwebhookconfigurations": true, "validatingwebhookconfigurations": true,
	"validatingadmissionpolicies": true, "validatingadmissionpolicybindings": true,
	"mutatingadmissionpolicies": true, "mutatingadmissionpolicybindings": true,
}

// SaysWhoJudges says whether only webhooks and policies of files are asked about a
// kind: those of objects are not, so that a mistake in one can be mended.
func SaysWhoJudges(r *apis.Resource) bool {
	return r.Group == admissionregistrationv1.GroupName && judging[r.Plural]
}
