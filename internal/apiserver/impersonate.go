package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/apiserver/audit"
	"proa/internal/apiserver/request"
	"proa/internal/latency"
)

// withImpersonation lets a user act as the one that the Impersonate headers name.
func (s *Server) withImpersonation(next http.Handler) http.Handler {
	modes := []impersonationMode{legacyImpersonation}
	if s.config.Features.Enabled("ConstrainedImpersonation") {
		modes = append(constrainedImpersonation, modes...)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !impersonates(r.Header) {
			next.ServeHTTP(w, r)
			return
		}
		wanted, err := impersonated(r.Header)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		found := latency.Of(r.Context()).Track(latency.Impersonation)
		as, constraint, err := s.impersonate(r.Context(), modes, wanted, attributes(r))
		found()
		if err != nil {
			s.fail(w, r, err)
			return
		}
		for name := range r.Header {
			if strings.HasPrefix(name, "Impersonate-") {
				delete(r.Header, name)
			}
		}
		if s.audit != nil {
			audit.From(r.Context()).As(as, constraint)
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

// impersonated reads from the headers who to become.
func impersonated(h http.Header) (*user.DefaultInfo, error) {
	wanted := &user.DefaultInfo{
		Name: h.Get(authenticationv1.ImpersonateUserHeader), UID: h.Get(authenticationv1.ImpersonateUIDHeader),
		Groups: h[authenticationv1.ImpersonateGroupHeader],
	}
	if wanted.Name == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("requested %#v without impersonating a user name", wanted))
	}
	for name, values := range h {
		key, ok := strings.CutPrefix(name, authenticationv1.ImpersonateUserExtraHeaderPrefix)
		if !ok || len(values) == 0 {
			continue
		}
		if wanted.Extra == nil {
			wanted.Extra = map[string][]string{}
		}
		key = unescapeKey(strings.ToLower(key))
		wanted.Extra[key] = append(wanted.Extra[key], values...)
	}
	return wanted, nil
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
