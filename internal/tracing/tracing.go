// Package tracing tells a collector of OpenTelemetry what a request spends its time
// on (KEP-647). Spans have upstream's names. Parts of the server begin theirs with
// Start, which does nothing in a request that nobody traces; where no collector is
// configured, no request is.
package tracing

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/client-go/transport"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"proa/internal/configfile"
)

// Provider makes spans and sends them. Shutdown sends those that wait.
type Provider = tracing.TracerProvider

// Propagators carry the trace of a request in its headers: traceparent and baggage.
var Propagators = tracing.Propagators()

// Open reads a TracingConfiguration (apiserver.config.k8s.io). Spans name the service
// apiserver and an instance of it.
func Open(ctx context.Context, file, instance string) (Provider, error) {
	data, err := configfile.Read(file)
	if err != nil {
		return nil, fmt.Errorf("failed to read tracing config: unable to read tracing configuration from %q: %w", filepath.Clean(file), err)
	}
	config, err := configfile.Decode[*apiserver.TracingConfiguration](data)
	if err != nil {
		return nil, fmt.Errorf("failed to read tracing config: unable to decode tracing configuration data: %w", err)
	}
	if errs := tracingapi.ValidateTracingConfiguration(&config.TracingConfiguration, nil, nil); len(errs) > 0 {
		return nil, fmt.Errorf("failed to validate tracing configuration: %w", errs.ToAggregate())
	}
	otel.SetMeterProvider(noop.NewMeterProvider()) // what the library measures by itself, nobody reads
	return tracing.NewProvider(ctx, &config.TracingConfiguration, nil, []resource.Option{resource.WithAttributes(
		attribute.String("service.name", "apiserver"), attribute.String("service.instance.id", instance),
	)})
}

// Span is a part of a request. The zero Span is of one that is not traced.
type Span struct{ span trace.Span }

// Start begins a span within that of ctx. Whatever attributes cost should be left to
// Set.
func Start(ctx context.Context, name string) (context.Context, Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, Span{}
	}
	ctx, span := parent.TracerProvider().Tracer("proa").Start(ctx, name)
	return ctx, Span{span}
}

// On says that the span is sent.
func (s Span) On() bool { return s.span != nil }

// Set adds attributes.
func (s Span) Set(attributes ...attribute.KeyValue) {
	if s.span != nil {
		s.span.SetAttributes(attributes...)
	}
}

// End ends the span. An error is told with it.
func (s Span) End(err error) {
	if s.span == nil {
		return
	}
	if err != nil {
		s.span.RecordError(err)
	}
	s.span.End()
}

// Of returns the span of a context, nil when it is not sent.
func Of(ctx context.Context) trace.Span {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		return span
	}
	return nil
}

// Transport wraps one that calls other servers: a call within a traced request is a
// span, and tells the other server of the trace.
func Transport(rt http.RoundTripper) http.RoundTripper {
	return &calls{RoundTripper: rt, traced: otelhttp.NewTransport(rt, otelhttp.WithPropagators(Propagators))}
}

var _ transport.WrapperFunc = Transport

type calls struct {
	http.RoundTripper
	traced http.RoundTripper
}

// RoundTrip makes a call.
func (c *calls) RoundTrip(r *http.Request) (*http.Response, error) {
	if !trace.SpanContextFromContext(r.Context()).IsValid() {
		return c.RoundTripper.RoundTrip(r)
	}
	return c.traced.RoundTrip(r)
}

// WrappedRoundTripper lets client-go find the transport below.
func (c *calls) WrappedRoundTripper() http.RoundTripper { return c.RoundTripper }
