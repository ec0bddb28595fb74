package egress

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Upstream's metrics of connections through proxies. Direct ones are in none.
var (
	dialStarts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "apiserver_egress_dialer_dial_start_total", Help: "Dial starts, labeled by the protocol (http-connect or grpc) and transport (tcp or uds).",
	}, []string{"protocol", "transport"})
	dialDurations = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "apiserver_egress_dialer_dial_duration_seconds", Help: "Dial latency histogram in seconds, labeled by the protocol (http-connect or grpc), transport (tcp or uds)",
		Buckets: []float64{0.005, 0.025, 0.1, 0.5, 2.5, 12.5},
	}, []string{"protocol", "transport"})
	dialFailures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "apiserver_egress_dialer_dial_failure_count", Help: "Dial failure count, labeled by the protocol (http-connect or grpc), transport (tcp or uds), and stage (connect or proxy). The stage indicates at which stage the dial failed",
	}, []string{"protocol", "transport", "stage"})
)

// Collectors are the metrics, for the registry of a server: that of upstream's
// libraries has their own of these names, which stay empty.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{dialStarts, dialDurations, dialFailures}
}

// The stages at which a connection through a proxy can fail.
const (
	stageConnect = "connect" // to the proxy
	stageProxy   = "proxy"   // beyond it
)

// attempt is one connection that is being opened.
type attempt struct {
	protocol, transport string
	started             time.Time
}

func begin(protocol, transport string) attempt {
	dialStarts.WithLabelValues(protocol, transport).Inc()
	return attempt{protocol, transport, time.Now()}
}

func (a attempt) failed(stage string) {
	dialFailures.WithLabelValues(a.protocol, a.transport, stage).Inc()
}

func (a attempt) opened() {
	dialDurations.WithLabelValues(a.protocol, a.transport).Observe(time.Since(a.started).Seconds())
}
