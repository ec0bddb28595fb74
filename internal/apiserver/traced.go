package apiserver

import (
	"net/http"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/apiserver/request"
	"proa/internal/tracing"
)

// withTracing makes a span of each request. Strangers do not choose what is sampled:
// theirs is a trace of its own, linked to the one that they name.
func (s *Server) withTracing(next http.Handler) http.Handler {
	inner := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		span := trace.SpanFromContext(r.Context())
		span.SetAttributes(attribute.String("http.target", r.URL.RequestURI()), attribute.String("audit-id", w.Header().Get("Audit-Id")))
		next.ServeHTTP(w, r)
	})
	return otelhttp.NewHandler(inner, "KubernetesAPI",
		otelhttp.WithPropagators(tracing.Propagators), otelhttp.WithTracerProvider(s.config.Tracer),
		otelhttp.WithPublicEndpointFn(func(r *http.Request) bool { return !trusted(userFrom(r.Context())) }),
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return spanName(r) }))
}

func trusted(u user.Info) bool {
	if u == nil {
		return false
	}
	for _, group := range u.GetGroups() {
		if group == user.SystemPrivilegedGroup || group == user.MonitoringGroup {
			return true
		}
	}
	return false
}

// spanName is the method and the form of the path, so that requests that differ in
// names only are alike.
func spanName(r *http.Request) string {
	info := request.From(r.Context())
	if !info.IsResource {
		return r.Method
	}
	name := r.Method + " /" + info.Prefix
	if info.Group != "" {
		name += "/" + info.Group
	}
	name += "/" + info.Version
	if info.Namespace != "" {
		name += "/namespaces/{:namespace}"
	}
	name += "/" + info.Resource
	if info.Name != "" {
		name += "/{:name}"
	}
	if info.Subresource != "" {
		name += "/" + info.Subresource
	}
	return name
}

// verbSpans are upstream's names of the spans of verbs.
var verbSpans = map[string]string{
	"get": "Get", "list": "List", "create": "Create", "update": "Update", "patch": "Patch", "delete": "Delete", "deletecollection": "Delete",
}

// traced makes a span of what a call does once it is known what it is about.
func (c *call) traced(do func() error) (err error) {
	name := verbSpans[c.info.Verb]
	if c.s.config.Tracer == nil || name == "" {
		return do()
	}
	ctx, span := tracing.Start(c.r.Context(), name)
	if !span.On() {
		return do()
	}
	defer func() { span.End(err) }()
	span.Set(
		attribute.String("accept", c.r.Header.Get("Accept")), attribute.String("audit-id", c.w.Header().Get("Audit-Id")),
		attribute.String("client", c.r.RemoteAddr), attribute.String("api-group", c.info.Group), attribute.String("api-version", c.info.Version),
		attribute.String("name", c.info.Name), attribute.String("subresource", c.info.Subresource), attribute.String("namespace", c.info.Namespace),
		attribute.String("protocol", c.r.Proto), attribute.String("resource", c.info.Resource), attribute.String("url", c.r.URL.Path),
		attribute.String("user-agent", c.r.UserAgent()), attribute.String("verb", c.info.Verb))
	c.r = c.r.WithContext(ctx)
	return do()
}
