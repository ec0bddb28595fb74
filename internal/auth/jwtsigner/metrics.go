package jwtsigner

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"k8s.io/component-base/metrics/legacyregistry"
)

// counters are what is known of the calls, under upstream's names.
type counters struct {
	fetched, signed *prometheus.CounterVec
	succeeded       prometheus.Gauge // when a fetch last did
	dated           prometheus.Gauge // the time that the process gives its keys
	durations       *prometheus.HistogramVec
}

var counts = sync.OnceValue(func() *counters {
	const prefix = "apiserver_externaljwt_"
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, []string{"code"})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + name, Help: help})
	}
	c := &counters{
		fetched:   counter("fetch_keys_request_total", "Fetches of the keys of service account tokens."),
		signed:    counter("sign_request_total", "Requests to sign a service account token."),
		succeeded: gauge("fetch_keys_success_timestamp", "When keys were last fetched, in seconds of Unix time."),
		dated:     gauge("fetch_keys_data_timestamp", "The data_timestamp of these keys, in seconds of Unix time."),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "request_duration_seconds", Help: "Time of calls to the signing process, in seconds.",
			Buckets: []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"method", "code"}),
	}
	legacyregistry.RawMustRegister(c.fetched, c.signed, c.succeeded, c.dated, c.durations)
	return c
})

func fetched(err error) {
	counts().fetched.WithLabelValues(codeOf(err)).Inc()
	if err == nil {
		counts().succeeded.SetToCurrentTime()
	}
}

// measure times the calls of a connection.
func measure(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	began := time.Now()
	err := invoke(ctx, method, req, reply, cc, opts...)
	name := method[strings.LastIndexByte(method, '/')+1:]
	counts().durations.WithLabelValues(name, codeOf(err)).Observe(time.Since(began).Seconds())
	return err
}

func codeOf(err error) string {
	var answered interface{ GRPCStatus() *status.Status }
	switch {
	case err == nil:
		return "OK"
	case errors.As(err, &answered):
		return answered.GRPCStatus().Code().String()
	}
	return "unknown-non-grpc"
}
