package configfile

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Reloads are upstream's metrics of one kind of configuration:
// apiserver_<kind>_config_controller_automatic_reloads_total,
// ..._automatic_reload_last_timestamp_seconds and ..._last_config_info.
type Reloads struct {
	total *prometheus.CounterVec
	last  *prometheus.GaugeVec
	info  *prometheus.GaugeVec
}

var (
	reloadsMu sync.Mutex
	reloads   = map[string]*Reloads{} // by kind; servers of one process share them
)

// NewReloads returns the metrics of a kind of configuration, such as
// "authentication".
func NewReloads(kind string) *Reloads {
	reloadsMu.Lock()
	defer reloadsMu.Unlock()
	if r := reloads[kind]; r != nil {
		return r
	}
	name := func(what string) string { return "apiserver_" + kind + "_config_controller_" + what }
	r := &Reloads{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name("automatic_reloads_total"), Help: "Automatic reloads of the " + kind + " configuration by status and server.",
		}, []string{"status", "apiserver_id_hash"}),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: name("automatic_reload_last_timestamp_seconds"), Help: "When the " + kind + " configuration was last reloaded, by status and server.",
		}, []string{"status", "apiserver_id_hash"}),
		info: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: name("last_config_info"), Help: "The " + kind + " configuration in force, by its hash.",
		}, []string{"apiserver_id_hash", "hash"}),
	}
	legacyregistry.RawMustRegister(r.total, r.last, r.info)
	reloads[kind] = r
	return r
}

func (r *Reloads) loaded(data []byte) {
	if r == nil {
		return
	}
	r.info.Reset()
	r.info.WithLabelValues(serverHash(), hash(data)).Set(1)
}

func (r *Reloads) failed(now time.Time) { r.count("failure", now) }

func (r *Reloads) succeeded(now time.Time, data []byte) {
	r.count("success", now)
	r.loaded(data)
}

func (r *Reloads) count(status string, now time.Time) {
	if r == nil {
		return
	}
	r.total.WithLabelValues(status, serverHash()).Inc()
	r.last.WithLabelValues(status, serverHash()).Set(float64(now.UnixNano()) / 1e9)
}

// ServerID names this server among those of a cluster, as upstream derives it
// from the host's name.
var ServerID = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	sum := sha256.Sum256([]byte(host))
	return "apiserver-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16]))
})

var serverHash = sync.OnceValue(func() string { return hash([]byte(ServerID())) })

func hash(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }
