package server

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/kubelet/config"
)

const maxRemembered = 4096

// access decides who calls and whether they may. Client certificates are
// verified here; tokens and permissions are asked of the API and remembered.
type access struct {
	api      client.API
	config   *config.Configuration
	certs    *x509request.Authenticator
	nodeName string
	users    *memory[[sha256.Size]byte, user.Info]
	verdicts *memory[question, bool]
}

// question is one access review.
type question struct{ user, groups, extra, uid, verb, subresource string }

func newAccess(api client.API, cas *x509.CertPool, nodeName string, conf *config.Configuration, c clock.PassiveClock) *access {
	opts := x509request.DefaultVerifyOptions()
	opts.Roots = cas
	if opts.Roots == nil {
		opts.Roots = x509.NewCertPool() // nil would mean the machine's own
	}
	return &access{
		api: api, config: conf, nodeName: nodeName,
		certs:    x509request.New(opts, x509request.CommonNameUserConversion),
		users:    newMemory[[sha256.Size]byte, user.Info](c),
		verdicts: newMemory[question, bool](c),
	}
}

func (a *access) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, err := a.authenticate(r)
		if err != nil {
			slog.Debug("authenticate request to the kubelet", "err", err)
		}
		if u == nil && *a.config.Authentication.Anonymous.Enabled && err == nil {
			u = &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}
		}
		if u == nil {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		verb, subresources := attributes(r)
		allowed, err := a.authorize(r.Context(), u, verb, subresources)
		if err != nil {
			http.Error(w, fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", u.GetName(), verb, subresources), http.StatusInternalServerError)
			return
		}
		if !allowed {
			http.Error(w, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", u.GetName(), verb, subresources), http.StatusForbidden)
			return
		}
		r.Header.Del("Authorization") // nobody behind this point needs it
		next.ServeHTTP(w, r)
	})
}

func (a *access) authenticate(r *http.Request) (user.Info, error) {
	resp, ok, err := a.certs.AuthenticateRequest(r)
	if ok {
		return resp.User, nil
	}
	scheme, token, found := strings.Cut(r.Header.Get("Authorization"), " ")
	if !found || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return nil, err
	}
	if !*a.config.Authentication.Webhook.Enabled {
		return nil, errNoTokens
	}
	return a.review(r.Context(), strings.TrimSpace(token))
}

var (
	errNoTokens = errors.New("authentication by token is off")
	errBadToken = errors.New("invalid bearer token")
)

func (a *access) review(ctx context.Context, token string) (user.Info, error) {
	key := sha256.Sum256([]byte(token))
	if u, ok := a.users.get(key); ok {
		return u, nil
	}
	obj, err := a.api.Create(ctx,
		client.Ref{Resource: authenticationv1.SchemeGroupVersion.WithResource("tokenreviews")},
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	review, ok := obj.(*authenticationv1.TokenReview)
	if !ok {
		return nil, fmt.Errorf("token review: unexpected %T", obj)
	}
	if !review.Status.Authenticated || review.Status.User.Username == "" {
		return nil, errBadToken
	}
	u := review.Status.User
	info := &user.DefaultInfo{Name: u.Username, UID: u.UID, Groups: u.Groups, Extra: map[string][]string{}}
	for k, v := range u.Extra {
		info.Extra[k] = v
	}
	a.users.put(key, info, a.config.Authentication.Webhook.CacheTTL.Duration)
	return info, nil
}

// authorize allows when any of the subresources is allowed, in order.
func (a *access) authorize(ctx context.Context, u user.Info, verb string, subresources []string) (bool, error) {
	if a.config.Authorization.Mode == kubeletv1beta1.KubeletAuthorizationModeAlwaysAllow {
		return true, nil
	}
	for _, sub := range subresources {
		allowed, err := a.ask(ctx, u, verb, sub)
		if err != nil || allowed {
			return allowed, err
		}
	}
	return false, nil
}

func (a *access) ask(ctx context.Context, u user.Info, verb, subresource string) (bool, error) {
	key := question{u.GetName(), fmt.Sprintf("%q", u.GetGroups()), fmt.Sprintf("%q", u.GetExtra()), u.GetUID(), verb, subresource}
	if allowed, ok := a.verdicts.get(key); ok {
		return allowed, nil
	}
	sar := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: u.GetName(), Groups: u.GetGroups(), UID: u.GetUID(), Extra: map[string]authorizationv1.ExtraValue{},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Version: "v1", Resource: "nodes", Subresource: subresource, Name: a.nodeName,
		},
	}}
	for k, v := range u.GetExtra() {
		sar.Spec.Extra[k] = v
	}
	obj, err := a.api.Create(ctx,
		client.Ref{Resource: authorizationv1.SchemeGroupVersion.WithResource("subjectaccessreviews")}, sar, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	answer, ok := obj.(*authorizationv1.SubjectAccessReview)
	if !ok {
		return false, fmt.Errorf("access review: unexpected %T", obj)
	}
	allowed := answer.Status.Allowed && !answer.Status.Denied
	ttl := a.config.Authorization.Webhook.CacheUnauthorizedTTL
	if allowed {
		ttl = a.config.Authorization.Webhook.CacheAuthorizedTTL
	}
	a.verdicts.put(key, allowed, ttl.Duration)
	return allowed, nil
}

// attributes maps a request to a verb on subresources of the node, the narrow
// one first (KEP-2862). What runs commands or opens ports is "create" whatever
// its method: a WebSocket begins with GET, and to read is not to execute.
func attributes(r *http.Request) (verb string, subresources []string) {
	first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch first {
	case "exec", "attach", "run", "portForward":
		return "create", []string{"proxy"}
	}
	switch r.Method {
	case http.MethodPost:
		verb = "create"
	case http.MethodPut:
		verb = "update"
	case http.MethodPatch:
		verb = "patch"
	case http.MethodDelete:
		verb = "delete"
	default:
		verb = "get"
	}
	switch first {
	case "stats", "metrics":
		return verb, []string{first}
	case "logs":
		return verb, []string{"log"}
	case "configz", "healthz", "pods":
		return verb, []string{first, "proxy"}
	case "runningpods":
		return verb, []string{"pods", "proxy"}
	}
	return verb, []string{"proxy"}
}

// memory remembers values for a time. When it is full it starts anew: asking
// again is all that costs.
type memory[K comparable, V any] struct {
	clock clock.PassiveClock

	mu      sync.Mutex // guards entries
	entries map[K]remembered[V]
}

type remembered[V any] struct {
	value V
	until time.Time
}

func newMemory[K comparable, V any](c clock.PassiveClock) *memory[K, V] {
	return &memory[K, V]{clock: c, entries: map[K]remembered[V]{}}
}

func (m *memory[K, V]) get(key K) (V, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.entries[key]
	if !ok || m.clock.Now().After(e.until) {
		delete(m.entries, key)
		var zero V
		return zero, false
	}
	return e.value, true
}

func (m *memory[K, V]) put(key K, value V, ttl time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.entries) >= maxRemembered {
		clear(m.entries)
	}
	m.entries[key] = remembered[V]{value, m.clock.Now().Add(ttl)}
}
