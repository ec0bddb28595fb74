package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"proa/internal/apis"
	"proa/internal/apiserver/audit"
	"proa/internal/apiserver/codec"
	"proa/internal/apiserver/negotiate"
	"proa/internal/apiserver/request"
	"proa/internal/latency"
	"proa/internal/store"
)

// withAuditRecord opens the record of a request.
func (s *Server) withAuditRecord(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := s.audit.Open(latency.With(r.Context()), w.Header().Get("Audit-Id"), s.config.Clock.Now())
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// withAudit writes down that a request came and what became of it.
func (s *Server) withAudit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		record := audit.From(ctx)
		if !record.Receive(r, attributes(r), request.From(ctx).LongRunning()) {
			s.fail(w, r, apierrors.NewInternalError(fmt.Errorf("failed to store audit event")))
			return
		}
		if !record.Wanted() {
			next.ServeHTTP(w, r)
			return
		}
		defer func() {
			p := recover()
			s.auditLatency(ctx, record)
			if p == nil || p == http.ErrAbortHandler {
				record.Complete(ctx)
			} else {
				record.Panic(ctx, fmt.Sprint(p))
			}
			if p != nil {
				panic(p)
			}
		}()
		next.ServeHTTP(&auditedWriter{ResponseWriter: w, r: r, record: record}, r)
	})
}

// slow is how long a request takes of which it is noted where its time went.
const slow = 500 * time.Millisecond

func (s *Server) auditLatency(ctx context.Context, record *audit.Record) {
	if took := record.Age(s.config.Clock.Now()); took > slow {
		record.Annotate(ctx, latency.Of(ctx).Annotations(took)...)
	}
}

// auditedWriter tells the record when the answer begins.
type auditedWriter struct {
	http.ResponseWriter
	r       *http.Request
	record  *audit.Record
	started bool
}

func (w *auditedWriter) start(code int) {
	if !w.started && (code >= http.StatusOK || code == http.StatusSwitchingProtocols) {
		w.started = true
		w.record.Start(w.r.Context(), code)
	}
}

func (w *auditedWriter) WriteHeader(code int) {
	w.start(code)
	w.ResponseWriter.WriteHeader(code)
}

func (w *auditedWriter) Write(p []byte) (int, error) {
	w.start(http.StatusOK)
	return w.ResponseWriter.Write(p)
}

// Flush and Hijack are for the libraries that ask for them by type.
func (w *auditedWriter) Flush() { http.NewResponseController(w.ResponseWriter).Flush() }

func (w *auditedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.start(http.StatusSwitchingProtocols)
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

// Unwrap lets http.ResponseController reach the connection.
func (w *auditedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// auditStranger writes down that a request had no credentials that are good.
func (s *Server) auditStranger(r *http.Request) {
	record := audit.From(r.Context())
	if record == nil {
		return
	}
	message := "Authentication failed, no credentials provided"
	var tried []string
	if h := r.Header.Get("Authorization"); h != "" {
		scheme, _, _ := strings.Cut(strings.ToLower(h), " ")
		tried = append(tried, scheme)
	}
	if r.URL.Query().Get("access_token") != "" {
		tried = append(tried, "access_token")
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		tried = append(tried, "x509")
	}
	if len(tried) > 0 {
		message = "Authentication failed, attempted: " + strings.Join(tried, ", ")
	}
	record.Refuse(r, attributes(r), message)
}

// auditDecision notes what the authorizer said.
func (s *Server) auditDecision(r *http.Request, decision authorizer.Decision, reason string, err error) {
	const decisionKey, reasonKey = "authorization.k8s.io/decision", "authorization.k8s.io/reason"
	record := audit.From(r.Context())
	switch {
	case record == nil:
	case decision == authorizer.DecisionAllow:
		record.Annotate(r.Context(), decisionKey, "allow", reasonKey, reason)
	case err != nil:
		record.Annotate(r.Context(), reasonKey, "internal error")
	default:
		record.Annotate(r.Context(), decisionKey, "forbid", reasonKey, reason)
	}
}

// auditRequest notes the object that was sent.
func (c *call) auditRequest(obj apis.Object) {
	if c.s.audit == nil {
		return
	}
	audit.From(c.r.Context()).Request(c.r.Context(), obj, c.body().GroupVersionKind, c.info.GVR(), c.info.Subresource)
}

func (c *call) auditPatch(patch []byte) {
	if c.s.audit != nil {
		audit.From(c.r.Context()).Patch(c.r.Context(), patch)
	}
}

// recordOfResponse is the record that wants the object which is answered, nil
// for none.
func (c *call) recordOfResponse() *audit.Record {
	if c.s.audit == nil {
		return nil
	}
	if record := audit.From(c.r.Context()); record.WantsResponse() {
		return record
	}
	return nil
}

// asJSON is the call with its answer as the objects themselves, in JSON.
func (c *call) asJSON() *call {
	plain := *c
	plain.format = negotiate.Format{Media: negotiate.JSON}
	return &plain
}

// auditItem notes the object that is answered.
func (c *call) auditItem(item *store.Item) {
	if record := c.recordOfResponse(); record != nil {
		var b bytes.Buffer
		if c.asJSON().form().WriteItem(&b, item) == nil {
			record.Response(b.Bytes())
		}
	}
}

// auditList notes the list that is answered.
func (c *call) auditList(meta metav1.ListMeta, items []*store.Item) {
	if record := c.recordOfResponse(); record != nil {
		var b bytes.Buffer
		plain := c.asJSON()
		f := plain.form()
		l := codec.List{Kind: f.Kind.GroupVersion().WithKind(plain.listKind(f.Kind.Kind)), Meta: meta}
		if f.WriteList(&b, l, items) == nil {
			record.Response(b.Bytes())
		}
	}
}

// auditStatus notes the Status that is answered.
func (s *Server) auditStatus(r *http.Request, status *metav1.Status) {
	if s.audit != nil {
		if record := audit.From(r.Context()); record != nil {
			record.Status(status)
		}
	}
}
