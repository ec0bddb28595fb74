package apiserver

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"proa/internal/apiserver/request"
)

// withImpersonation lets a user act as another if they may "impersonate" each
// part of the identity that the Impersonate headers name.
func (s *Server) withImpersonation(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !impersonates(r.Header) {
			next.ServeHTTP(w, r)
			return
		}
		as, checks, err := impersonated(r.Header)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		for _, a := range checks {
			a.User, a.Verb, a.ResourceRequest = userFrom(r.Context()), "impersonate", true
			if err := s.authorize(r.Context(), a); err != nil {
				s.fail(w, r, err)
				return
			}
		}
		for name := range r.Header {
			if strings.HasPrefix(name, "Impersonate-") {
				delete(r.Header, name)
			}
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, as)))
	})
}

func impersonates(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "Impersonate-") {
			return true
		}
	}
	return false
}

// impersonated reads the headers: who to become, and what that needs leave for.
func impersonated(h http.Header) (user.Info, []*authorizer.AttributesRecord, error) {
	as := &user.DefaultInfo{Name: h.Get(authenticationv1.ImpersonateUserHeader), Extra: map[string][]string{}}
	if as.Name == "" {
		return nil, nil, apierrors.NewBadRequest("requested groups, UID or extra without impersonating a user")
	}
	checks := []*authorizer.AttributesRecord{{APIVersion: "v1", Resource: "users", Name: as.Name}}
	groups := h[authenticationv1.ImpersonateGroupHeader]
	if namespace, name, err := serviceaccount.SplitUsername(as.Name); err == nil {
		checks[0] = &authorizer.AttributesRecord{APIVersion: "v1", Resource: "serviceaccounts", Namespace: namespace, Name: name}
		if len(groups) == 0 {
			as.Groups = serviceaccount.MakeGroupNames(namespace)
		}
	}
	for _, g := range groups {
		as.Groups = append(as.Groups, g)
		checks = append(checks, &authorizer.AttributesRecord{APIVersion: "v1", Resource: "groups", Name: g})
	}
	for name, values := range h {
		key, ok := strings.CutPrefix(name, authenticationv1.ImpersonateUserExtraHeaderPrefix)
		if !ok {
			continue
		}
		key = unescapeKey(strings.ToLower(key))
		for _, v := range values {
			as.Extra[key] = append(as.Extra[key], v)
			checks = append(checks, &authorizer.AttributesRecord{APIGroup: "authentication.k8s.io", APIVersion: "v1", Resource: "userextras", Subresource: key, Name: v})
		}
	}
	if as.UID = h.Get(authenticationv1.ImpersonateUIDHeader); as.UID != "" {
		checks = append(checks, &authorizer.AttributesRecord{APIGroup: "authentication.k8s.io", APIVersion: "v1", Resource: "uids", Name: as.UID})
	}
	addImplied(as)
	return as, checks, nil
}

// addImplied adds the group that being known, or unknown, implies.
func addImplied(as *user.DefaultInfo) {
	if slices.Contains(as.Groups, user.AllAuthenticated) || slices.Contains(as.Groups, user.AllUnauthenticated) {
		return
	}
	if as.Name == user.Anonymous {
		as.Groups = append(as.Groups, user.AllUnauthenticated)
		return
	}
	as.Groups = append(as.Groups, user.AllAuthenticated)
}

func unescapeKey(key string) string {
	plain, err := url.PathUnescape(key)
	if err != nil {
		return key
	}
	return plain
}

// mayUpgrade asks for the create verb too when a GET opens a WebSocket into a
// pod: a stream changes things, whatever its method.
func (s *Server) mayUpgrade(r *http.Request, info *request.Info) error {
	switch info.Resource + "/" + info.Subresource {
	case "pods/exec", "pods/attach", "pods/portforward":
	default:
		return nil
	}
	if r.Method != http.MethodGet {
		return nil
	}
	a := attributes(r)
	a.Verb = "create"
	return s.authorize(r.Context(), a)
}
