// Package authentication declares the review kinds of authentication.k8s.io, v1.
// They are answered, never stored.
package authentication

import (
	authenticationv1 "k8s.io/api/authentication/v1"

	"proa/internal/apis"
)

// Resources returns every kind of the group.
func Resources() []*apis.Resource { return []*apis.Resource{&SelfSubjectReviews, &TokenReviews} }

// TokenReviews is the authentication.k8s.io/v1 tokenreviews resource.
var TokenReviews = apis.Resource{
	Group: "authentication.k8s.io", Version: "v1", Kind: "TokenReview", Plural: "tokenreviews", Scope: apis.Cluster,
	New: apis.New[authenticationv1.TokenReview], Verbs: []string{"create"}, NoGeneration: true,
}

// SelfSubjectReviews is the authentication.k8s.io/v1 selfsubjectreviews resource.
var SelfSubjectReviews = apis.Resource{
	Group: "authentication.k8s.io", Version: "v1", Kind: "SelfSubjectReview", Plural: "selfsubjectreviews", Scope: apis.Cluster,
	New: apis.New[authenticationv1.SelfSubjectReview], Verbs: []string{"create"}, NoGeneration: true,
}
