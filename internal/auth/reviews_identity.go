package auth

import (
	"context"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/apis"
)

// TokenReview says who a bearer token is.
func (a *Auth) TokenReview(ctx context.Context, _ user.Info, _, _ string, obj apis.Object) (apis.Object, error) {
	review, ok := obj.(*authenticationv1.TokenReview)
	if !ok {
		return nil, wrongKind("TokenReview", obj)
	}
	if review.Namespace != "" {
		return nil, apierrors.NewBadRequest("namespace is not allowed on this type: " + review.Namespace)
	}
	if review.Spec.Token == "" {
		return nil, apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	audiences := authenticator.Audiences(review.Spec.Audiences)
	if len(audiences) == 0 {
		audiences = a.Tokens.Audiences()
	}
	r, ok, err := a.tokens.AuthenticateToken(authenticator.WithAudiences(ctx, audiences), review.Spec.Token)
	review.Status = authenticationv1.TokenReviewStatus{Authenticated: ok}
	switch {
	case err != nil:
		review.Status.Error = err.Error()
	case !ok:
		review.Status.Error = "invalid bearer token"
	}
	if !ok {
		return review, nil
	}
	if r.User != nil {
		review.Status.User = userInfo(r.User)
	}
	review.Status.Audiences = r.Audiences
	return review, nil
}

// SelfSubjectReview says who the caller is.
func (a *Auth) SelfSubjectReview(_ context.Context, u user.Info, _, _ string, obj apis.Object) (apis.Object, error) {
	if _, ok := obj.(*authenticationv1.SelfSubjectReview); !ok {
		return nil, wrongKind("SelfSubjectReview", obj)
	}
	if u == nil {
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusUnauthorized, Reason: metav1.StatusReasonUnauthorized, Message: "no user present on request",
		}}
	}
	return &authenticationv1.SelfSubjectReview{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(a.config.Clock.Now())},
		Status:     authenticationv1.SelfSubjectReviewStatus{UserInfo: userInfo(u)},
	}, nil
}

func userInfo(u user.Info) authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	for k, v := range u.GetExtra() {
		if info.Extra == nil {
			info.Extra = map[string]authenticationv1.ExtraValue{}
		}
		info.Extra[k] = v
	}
	return info
}

// TokenRequest issues a token for the service account of the path.
func (a *Auth) TokenRequest(ctx context.Context, _ user.Info, namespace, name string, obj apis.Object) (apis.Object, error) {
	req, ok := obj.(*authenticationv1.TokenRequest)
	if !ok {
		return nil, wrongKind("TokenRequest", obj)
	}
	return a.Tokens.Request(ctx, namespace, name, req)
}

// Endpoint names what a Handler serves.
type Endpoint struct {
	schema.GroupResource
	Subresource string
}

// Handlers returns what this package answers, for the registry to serve.
func (a *Auth) Handlers() map[Endpoint]Handler {
	review := func(group, plural string) Endpoint {
		return Endpoint{GroupResource: schema.GroupResource{Group: group, Resource: plural}}
	}
	return map[Endpoint]Handler{
		review(authenticationv1.GroupName, "tokenreviews"):             a.TokenReview,
		review(authenticationv1.GroupName, "selfsubjectreviews"):       a.SelfSubjectReview,
		review(authorizationv1.GroupName, "subjectaccessreviews"):      a.SubjectAccessReview,
		review(authorizationv1.GroupName, "selfsubjectaccessreviews"):  a.SelfSubjectAccessReview,
		review(authorizationv1.GroupName, "localsubjectaccessreviews"): a.LocalSubjectAccessReview,
		review(authorizationv1.GroupName, "selfsubjectrulesreviews"):   a.SelfSubjectRulesReview,
		{schema.GroupResource{Resource: "serviceaccounts"}, "token"}:   a.TokenRequest,
	}
}
