package rootca

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// measures are those of syncs, by the status code with which they ended.
type measures struct {
	syncs *prometheus.CounterVec
	took  *prometheus.HistogramVec // in seconds
}

func newMeasures() measures {
	const subsystem = "root_ca_cert_publisher"
	return measures{
		syncs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: subsystem, Name: "sync_total", Help: "[ALPHA] How often the certificate was published to a namespace, or found there",
		}, []string{"code"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: subsystem, Name: "sync_duration_seconds", Help: "[ALPHA] How long that took",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, []string{"code"}),
	}
}

func (m *measures) synced(err error, took time.Duration) {
	code := http.StatusOK
	if err != nil {
		code = http.StatusInternalServerError
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Code != 0 {
		code = int(status.Status().Code)
	}
	m.syncs.WithLabelValues(strconv.Itoa(code)).Inc()
	m.took.WithLabelValues(strconv.Itoa(code)).Observe(took.Seconds())
}
