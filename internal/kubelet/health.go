package kubelet

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"

	"proa/internal/apis/feature"
	"proa/internal/kubelet/cgroups"
	"proa/internal/kubelet/config"
)

// pulse tells whether the loop that keeps house still turns.
type pulse struct {
	clock clock.PassiveClock
	every time.Duration
	last  atomic.Int64 // Unix nanoseconds
}

func newPulse(c clock.PassiveClock, every time.Duration) *pulse {
	p := &pulse{clock: c, every: every}
	p.beat()
	return p
}

func (p *pulse) beat() { p.last.Store(p.clock.Now().UnixNano()) }

// check is an error when the loop missed two of its turns.
func (p *pulse) check() error {
	if p.clock.Since(time.Unix(0, p.last.Load())) > 2*p.every {
		return errors.New("sync Loop took longer than expected")
	}
	return nil
}

// configured is the configuration as /configz shows it, with the cgroup driver
// that the runtime has.
func configured(c *config.Configuration, systemd bool) (map[string]any, error) {
	shown := c.DeepCopy()
	if shown.CgroupDriver = cgroupfsDriver; systemd {
		shown.CgroupDriver = systemdDriver
	}
	return runtime.DefaultUnstructuredConverter.ToUnstructured(shown)
}

// features is the metric of the feature gates.
func features(gates feature.Gates) prometheus.Collector {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubernetes_feature_enabled", Help: "[BETA] This metric records the data about the stage and enablement of a k8s feature.",
	}, []string{"name", "stage"})
	for _, f := range gates.All() {
		on := 0.0
		if f.Enabled {
			on = 1
		}
		g.WithLabelValues(f.Name, f.Stage).Set(on)
	}
	return g
}

// cgroupVersion is the metric of what the host has: 1 is in maintenance mode (KEP-4569).
func cgroupVersion() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubelet_cgroup_version", Help: "[ALPHA] cgroup version on the hosts.",
	}, func() float64 { return float64(cgroups.Version()) })
}

// losingSupport is the metric of a runtime that upstream's release 1.38 no longer
// takes, because it does not tell its cgroup driver.
func losingSupport() prometheus.Collector {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubelet_cri_losing_support", Help: "[ALPHA] the Kubernetes version that the currently running CRI implementation will lose support on if not upgraded.",
	}, []string{"version"})
	g.WithLabelValues("1.38.0").Set(1)
	return g
}
