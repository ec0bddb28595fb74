package apiserver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"

	"proa/internal/apiserver/request"
	"proa/internal/latency"
)

type userKey struct{}

func userFrom(ctx context.Context) user.Info {
	u, _ := ctx.Value(userKey{}).(user.Info)
	return u
}

// chain puts the filters around the handler, the first one outermost.
func (s *Server) chain(h http.Handler) http.Handler {
	filters := []func(http.Handler) http.Handler{s.withRecovery, s.withInfo, s.withMetrics}
	if s.config.ShutdownRetryAfter {
		filters = append(filters, s.withRetryAfter)
	}
	if s.config.GoawayChance > 0 {
		filters = append(filters, s.withGoaway)
	}
	if s.audit == nil {
		filters = append(filters, s.withAuthentication)
	} else {
		filters = append(filters, s.withAuditRecord, s.withAuthentication, s.withAudit)
	}
	if s.config.Tracer != nil {
		filters = append(filters, s.withTracing)
	}
	filters = append(filters, s.withImpersonation, s.withTimeout, s.withLimit(), s.withAuthorization, withWarnings)
	for i := len(filters) - 1; i >= 0; i-- {
		h = filters[i](h)
	}
	return h
}

func (s *Server) withRecovery(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p != http.ErrAbortHandler {
				s.config.Log.Error("a request panicked", "method", r.Method, "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
				http.Error(w, "This request caused apiserver to panic. Look in the logs for details.", http.StatusInternalServerError)
			}
			panic(http.ErrAbortHandler) // end the connection: a part may be written
		}()
		next.ServeHTTP(w, r)
	})
}

// withRetryAfter sends new requests elsewhere while the server stops. Health and
// metrics are told to the end.
func (s *Server) withRetryAfter(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info := request.From(r.Context())
		for _, prefix := range []string{"/readyz", "/livez", "/healthz", "/metrics"} {
			if strings.HasPrefix(info.Path, prefix) {
				next.ServeHTTP(w, r)
				return
			}
		}
		if !s.inFlight.TryRLock() {
			w.Header().Set("Connection", "close")
			w.Header().Set("Retry-After", "5")
			http.Error(w, "The apiserver is shutting down, please try again later.", http.StatusTooManyRequests)
			return
		}
		if info.LongRunning() { // nobody waits for these
			s.inFlight.RUnlock()
		} else {
			defer s.inFlight.RUnlock()
		}
		next.ServeHTTP(w, r)
	})
}

// withGoaway has some clients connect anew, perhaps to another server.
func (s *Server) withGoaway(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && rand.Float64() < s.config.GoawayChance {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// withInfo reads the path, names the request in the Audit-Id header and keeps
// answers out of shared caches.
func (s *Server) withInfo(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("Audit-Id")
		if id == "" || len(id) > 64 {
			id = uuid.NewString()
		}
		w.Header().Set("Audit-Id", id)
		w.Header().Set("Cache-Control", "no-cache, private")
		next.ServeHTTP(w, r.WithContext(request.With(r.Context(), request.Parse(r))))
	})
}

func (s *Server) withAuthentication(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asking := r
		if r.Header.Get("Authorization") != "" { // some tokens are good but should be replaced
			asking = r.WithContext(warning.WithWarningRecorder(r.Context(), &warnings{header: w.Header()}))
		}
		known := latency.Of(r.Context()).Track(latency.Authentication)
		who, ok := s.authenticate(asking)
		known()
		if !ok {
			if r.ProtoMajor == 2 {
				w.Header().Set("Connection", "close") // strangers get no streams to play with
			}
			s.auditStranger(r)
			s.fail(w, r, apierrors.NewUnauthorized("Unauthorized"))
			return
		}
		if r.ProtoMajor == 2 && who.GetName() == user.Anonymous {
			w.Header().Set("Connection", "close")
		}
		r.Header.Del("Authorization")
		for name := range r.Header {
			if strings.HasPrefix(strings.ToLower(name), "x-remote-") {
				delete(r.Header, name)
			}
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, who)))
	})
}

func (s *Server) authenticate(r *http.Request) (user.Info, bool) {
	if s.config.Authenticator == nil {
		return &user.DefaultInfo{Name: "system:admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}, true
	}
	resp, ok, err := s.config.Authenticator.AuthenticateRequest(r)
	if err != nil {
		s.config.Log.Debug("authentication failed", "error", err)
	}
	if err != nil || !ok || resp == nil {
		return nil, false
	}
	return resp.User, true
}

func (s *Server) withAuthorization(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := attributes(r)
		decided := latency.Of(r.Context()).Track(latency.Authorization)
		decision, reason, err := s.decide(r.Context(), a)
		decided()
		if s.audit != nil {
			s.auditDecision(r, decision, reason, err)
		}
		if decision != authorizer.DecisionAllow {
			s.fail(w, r, forbidden(a, reason))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// authorize asks the authorizer; anything but an allow is a 403 Status.
func (s *Server) authorize(ctx context.Context, a authorizer.Attributes) error {
	decision, reason, _ := s.decide(ctx, a)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	return forbidden(a, reason)
}

func (s *Server) decide(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if s.config.Authorizer == nil {
		return authorizer.DecisionAllow, "", nil
	}
	decision, reason, err := s.config.Authorizer.Authorize(ctx, a)
	if err != nil && decision != authorizer.DecisionAllow {
		s.config.Log.Debug("authorization failed", "error", err)
	}
	return decision, reason, err
}

func attributes(r *http.Request) *authorizer.AttributesRecord {
	info := request.From(r.Context())
	a := &authorizer.AttributesRecord{
		User: userFrom(r.Context()), Verb: info.Verb, Path: info.Path, ResourceRequest: info.IsResource,
		Namespace: info.Namespace, APIGroup: info.Group, APIVersion: info.Version,
		Resource: info.Resource, Subresource: info.Subresource, Name: info.Name,
	}
	switch info.Verb {
	case "list", "watch", "deletecollection":
		if info.IsResource && r.URL.RawQuery != "" {
			addSelectors(a, r)
		}
	}
	return a
}

// addSelectors lets authorizers allow a list of only what a selector picks (KEP-4601).
func addSelectors(a *authorizer.AttributesRecord, r *http.Request) {
	query := r.URL.Query()
	if text := query.Get("fieldSelector"); text != "" {
		sel, err := fields.ParseSelector(text)
		if err == nil {
			a.FieldSelectorRequirements = sel.Requirements()
		}
		a.FieldSelectorParsingErr = err
	}
	if text := query.Get("labelSelector"); text != "" {
		sel, err := labels.Parse(text)
		if err == nil {
			a.LabelSelectorRequirements, _ = sel.Requirements()
		}
		a.LabelSelectorParsingErr = err
	}
}

var noMarkup = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

func forbidden(a authorizer.Attributes, reason string) error {
	text := noMarkup.Replace(forbiddenText(a))
	if reason != "" {
		text += ": " + reason
	}
	gr := schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}
	return apierrors.NewForbidden(gr, a.GetName(), errors.New(text))
}

func forbiddenText(a authorizer.Attributes) string {
	name := ""
	if u := a.GetUser(); u != nil {
		name = u.GetName()
	}
	if !a.IsResourceRequest() {
		return fmt.Sprintf("User %q cannot %s path %q", name, a.GetVerb(), a.GetPath())
	}
	resource := a.GetResource()
	if a.GetSubresource() != "" {
		resource += "/" + a.GetSubresource()
	}
	where := "at the cluster scope"
	if ns := a.GetNamespace(); ns != "" {
		where = fmt.Sprintf("in the namespace %q", ns)
	}
	return fmt.Sprintf("User %q cannot %s resource %q in API group %q %s", name, a.GetVerb(), resource, a.GetAPIGroup(), where)
}

// withLimit bounds what is served at a time.
func (s *Server) withLimit() func(http.Handler) http.Handler {
	if s.fairness == nil {
		return s.withInFlightLimit()
	}
	return s.withFairness
}

// withInFlightLimit refuses what exceeds the limits of reads and writes at a
// time. Long-running requests and the system's own masters are not counted.
func (s *Server) withInFlightLimit() func(http.Handler) http.Handler {
	slotsFor := func(limit int) chan struct{} {
		if limit < 0 {
			return nil
		}
		return make(chan struct{}, limit)
	}
	reads, writes := slotsFor(s.config.MaxReads), slotsFor(s.config.MaxWrites)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			info := request.From(r.Context())
			if info.LongRunning() || isMaster(userFrom(r.Context())) {
				next.ServeHTTP(w, r)
				return
			}
			slots := writes
			if r.Method == http.MethodGet || r.Method == http.MethodHead {
				slots = reads
			}
			if slots == nil {
				next.ServeHTTP(w, r)
				return
			}
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
				next.ServeHTTP(w, r)
			default:
				s.tooMany(w, r, 1)
			}
		})
	}
}

// tooMany refuses a request for want of room, in plain text as upstream does.
func (s *Server) tooMany(w http.ResponseWriter, r *http.Request, retryAfter int) {
	s.metrics.drop(r.Method)
	err := apierrors.NewTooManyRequests("Too many requests, please try again later.", retryAfter)
	s.auditStatus(r, statusOf(err))
	w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	http.Error(w, err.ErrStatus.Message, http.StatusTooManyRequests)
}

func isMaster(u user.Info) bool {
	for _, g := range u.GetGroups() {
		if g == user.SystemPrivilegedGroup {
			return true
		}
	}
	return false
}

// withTimeout bounds requests that are not long-running, by the timeout query
// parameter or the server's own limit.
func (s *Server) withTimeout(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if request.From(r.Context()).LongRunning() {
			next.ServeHTTP(w, r)
			return
		}
		limit := s.config.RequestTimeout
		if strings.Contains(r.URL.RawQuery, "timeout=") {
			if text := r.URL.Query().Get("timeout"); text != "" {
				wanted, err := time.ParseDuration(text)
				if err != nil {
					s.fail(w, r, apierrors.NewBadRequest(fmt.Sprintf("invalid timeout specified in the request URL - %v", err)))
					return
				}
				if wanted > 0 && wanted < limit {
					limit = wanted
				}
			}
		}
		ctx, cancel := context.WithTimeout(r.Context(), limit)
		defer cancel()
		defer cutOff(ctx, w, min(limit, lastWords))()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// lastWords is how long a client whose time is up may take at most to read what it
// is told.
const lastWords = 5 * time.Second

// cutOff ends the exchange with the client when ctx ends, until the returned function
// is called: one that sends its body, or reads its answer, a byte a minute would
// otherwise keep its place for as long as it likes.
func cutOff(ctx context.Context, w http.ResponseWriter, grace time.Duration) (stop func()) {
	var acting sync.Mutex // a connection must not be touched once its request is over
	over := false
	forget := context.AfterFunc(ctx, func() {
		acting.Lock()
		defer acting.Unlock()
		if over {
			return
		}
		now, control := time.Now(), http.NewResponseController(w)
		control.SetReadDeadline(now) // without deadlines there is no connection to hold
		control.SetWriteDeadline(now.Add(grace))
	})
	return func() {
		if forget() {
			return
		}
		acting.Lock()
		over = true
		acting.Unlock()
	}
}

// warnings collects Warning headers; they have to come before the body.
type warnings struct {
	mu     sync.Mutex
	header http.Header
	seen   map[string]bool
	length int
}

// mostWarnings bounds the text of all warnings of one response, in bytes.
const mostWarnings = 4 << 10

func (w *warnings) AddWarning(agent, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen[text] || w.length+len(text) > mostWarnings {
		return
	}
	value, err := utilnet.NewWarningHeader(299, agent, text)
	if err != nil {
		return
	}
	if w.seen == nil {
		w.seen = map[string]bool{}
	}
	w.seen[text] = true
	w.length += len(text)
	w.header.Add("Warning", value)
}

func withWarnings(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := warning.WithWarningRecorder(r.Context(), &warnings{header: w.Header()})
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// statusOf is the Status a client gets for an error.
func statusOf(err error) *metav1.Status {
	var api apierrors.APIStatus
	switch {
	case errors.As(err, &api):
		status := api.Status()
		if status.Status == "" {
			status.Status = metav1.StatusFailure
		}
		if status.Code == 0 {
			status.Code = http.StatusInternalServerError
		}
		return &status
	case errors.Is(err, context.DeadlineExceeded):
		status := apierrors.NewTimeoutError("request did not complete within requested timeout - context deadline exceeded", 0).Status()
		return &status
	case errors.Is(err, context.Canceled):
		status := apierrors.NewTimeoutError("request did not complete: its client is gone", 0).Status()
		return &status
	}
	return &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}
}
