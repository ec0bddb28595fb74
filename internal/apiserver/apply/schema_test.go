package apply

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"proa/internal/apis"
	"proa/internal/apis/builtin"
)

func TestEveryBuiltInKindHasAMergeSchema(t *testing.T) {
	try := func(obj apis.Object, gvk schema.GroupVersionKind) {
		obj.GetObjectKind().SetGroupVersionKind(gvk)
		if _, err := Types().ObjectToTyped(obj); err != nil {
			t.Errorf("%s: %v", gvk, err)
		}
	}
	for _, r := range builtin.Catalogue().All() {
		if apis.Scheme().Recognizes(r.GroupVersionKind()) && r.Subresources != nil {
			try(r.New(), r.GroupVersionKind())
		}
	}
	try(&autoscalingv1.Scale{}, autoscalingv1.SchemeGroupVersion.WithKind("Scale"))
	try(&authenticationv1.TokenRequest{}, authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"))
	try(&authenticationv1.TokenReview{}, authenticationv1.SchemeGroupVersion.WithKind("TokenReview"))
	try(&authorizationv1.SubjectAccessReview{}, authorizationv1.SchemeGroupVersion.WithKind("SubjectAccessReview"))
	try(&authorizationv1.LocalSubjectAccessReview{}, authorizationv1.SchemeGroupVersion.WithKind("LocalSubjectAccessReview"))
	try(&authorizationv1.SelfSubjectAccessReview{}, authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"))
	try(&apiregistrationv1.APIService{}, apiregistrationv1.SchemeGroupVersion.WithKind("APIService"))
}

func TestConditionsOfDefinitionsMergeByType(t *testing.T) {
	crd := &apiextensionsv1.CustomResourceDefinition{Status: apiextensionsv1.CustomResourceDefinitionStatus{
		Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{{Type: "Established", Status: "True"}},
	}}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	value, err := Types().ObjectToTyped(crd)
	if err != nil {
		t.Fatal(err)
	}
	set, err := value.ToFieldSet()
	if err != nil {
		t.Fatal(err)
	}
	const want = `.status.conditions[type="Established"].status`
	found := false
	set.Iterate(func(p fieldpath.Path) { found = found || p.String() == want })
	if !found {
		t.Errorf("%s is no field of its own among %s", want, set)
	}
}
