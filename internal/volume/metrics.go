package volume

import (
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

var (
	boundVolumes   = gauge("bound_pv_count", "Volumes that are bound.", "storage_class")
	unboundVolumes = gauge("unbound_pv_count", "Volumes that are not bound.", "storage_class")
	allVolumes     = gauge("total_pv_count", "Volumes.", "plugin_name", "volume_mode")
	boundClaims    = gauge("bound_pvc_count", "Claims that are bound.", "namespace", "storage_class", "volume_attributes_class")
	unboundClaims  = gauge("unbound_pvc_count", "Claims that are not bound.", "namespace", "storage_class", "volume_attributes_class")
)

func gauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("pv_collector_"+name, "[ALPHA] "+help, labels, nil)
}

// measures counts volumes and claims when somebody asks, and claims that got their
// class late.
type measures struct {
	*binder
	defaulted, failed prometheus.Counter
}

func newMeasures(b *binder) *measures {
	return &measures{
		binder:    b,
		defaulted: prometheus.NewCounter(prometheus.CounterOpts{Name: "retroactive_storageclass_total", Help: "[ALPHA] Claims without a class that were given the default one."}),
		failed:    prometheus.NewCounter(prometheus.CounterOpts{Name: "retroactive_storageclass_errors_total", Help: "[ALPHA] Claims without a class that could not be given the default one."}),
	}
}

// Describe is beside Collect.
func (m *measures) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{boundVolumes, unboundVolumes, allVolumes, boundClaims, unboundClaims} {
		to <- d
	}
}

// series is one figure: its metric and up to three labels.
type series struct {
	desc    *prometheus.Desc
	a, b, c string
}

// Collect counts what the informers hold.
func (m *measures) Collect(to chan<- prometheus.Metric) {
	counts := map[series]int{}
	for _, v := range m.volumes.Select("", labels.Everything()) {
		d := unboundVolumes
		if v.Status.Phase == corev1.VolumeBound {
			d = boundVolumes
		}
		counts[series{desc: d, a: storagehelpers.GetPersistentVolumeClass(v)}]++
		counts[series{desc: allVolumes, a: pluginOf(v), b: string(ptr.Deref(v.Spec.VolumeMode, corev1.PersistentVolumeFilesystem))}]++
	}
	for _, c := range m.claims.Select("", labels.Everything()) {
		d := unboundClaims
		if c.Status.Phase == corev1.ClaimBound {
			d = boundClaims
		}
		counts[series{d, c.Namespace, storagehelpers.GetPersistentVolumeClaimClass(c), ptr.Deref(c.Spec.VolumeAttributesClassName, "")}]++
	}
	for s, n := range counts {
		values := []string{s.a, s.b, s.c}
		switch s.desc {
		case boundVolumes, unboundVolumes:
			values = values[:1]
		case allVolumes:
			values = values[:2]
		}
		to <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, float64(n), values...)
	}
}

// pluginOf is upstream's name of what a volume is made of.
func pluginOf(v *corev1.PersistentVolume) string {
	switch s := v.Spec.PersistentVolumeSource; {
	case s.CSI != nil:
		return "kubernetes.io/csi:" + s.CSI.Driver
	case s.HostPath != nil:
		return "kubernetes.io/host-path"
	case s.NFS != nil:
		return "kubernetes.io/nfs"
	case s.Local != nil:
		return "kubernetes.io/local-volume"
	}
	return "N/A"
}
