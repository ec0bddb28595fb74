package stats

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

const scrapeTimeout = 10 * time.Second

var (
	nodeCPU         = prometheus.NewDesc("node_cpu_usage_seconds_total", "[STABLE] Cumulative cpu time consumed by the node in core-seconds", nil, nil)
	nodeMemory      = prometheus.NewDesc("node_memory_working_set_bytes", "[STABLE] Current working set of the node in bytes", nil, nil)
	nodeSwap        = prometheus.NewDesc("node_swap_usage_bytes", "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems", nil, nil)
	podLabels       = []string{"pod", "namespace"}
	podCPU          = prometheus.NewDesc("pod_cpu_usage_seconds_total", "[STABLE] Cumulative cpu time consumed by the pod in core-seconds", podLabels, nil)
	podMemory       = prometheus.NewDesc("pod_memory_working_set_bytes", "[STABLE] Current working set of the pod in bytes", podLabels, nil)
	podSwap         = prometheus.NewDesc("pod_swap_usage_bytes", "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems", podLabels, nil)
	containerLabels = []string{"container", "pod", "namespace"}
	containerCPU    = prometheus.NewDesc("container_cpu_usage_seconds_total", "[STABLE] Cumulative cpu time consumed by the container in core-seconds", containerLabels, nil)
	containerMemory = prometheus.NewDesc("container_memory_working_set_bytes", "[STABLE] Current working set of the container in bytes", containerLabels, nil)
	containerSwap   = prometheus.NewDesc("container_swap_usage_bytes", "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems", containerLabels, nil)
	containerStart  = prometheus.NewDesc("container_start_time_seconds", "[STABLE] Start time of the container since unix epoch in seconds", containerLabels, nil)
	scrapeError     = prometheus.NewDesc("resource_scrape_error", "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise", nil, nil)
)

// Resource is the collector behind /metrics/resource, which metrics servers read.
func (p *Provider) Resource() prometheus.Collector { return collector{p} }

type collector struct{ p *Provider }

// Describe sends the descriptions of all metrics.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		nodeCPU, nodeMemory, nodeSwap, podCPU, podMemory, podSwap,
		containerCPU, containerMemory, containerSwap, containerStart, scrapeError,
	} {
		ch <- d
	}
}

// Collect measures now.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	sum, err := c.p.Summary(ctx, true)
	if err != nil {
		ch <- prometheus.MustNewConstMetric(scrapeError, prometheus.GaugeValue, 1)
		return
	}
	s := sender{ch}
	s.cpu(nodeCPU, sum.Node.CPU)
	s.memory(nodeMemory, sum.Node.Memory)
	s.swap(nodeSwap, sum.Node.Swap)
	for i := range sum.Pods {
		pod := &sum.Pods[i]
		name, namespace := pod.PodRef.Name, pod.PodRef.Namespace
		s.cpu(podCPU, pod.CPU, name, namespace)
		s.memory(podMemory, pod.Memory, name, namespace)
		s.swap(podSwap, pod.Swap, name, namespace)
		for j := range pod.Containers {
			ct := &pod.Containers[j]
			s.cpu(containerCPU, ct.CPU, ct.Name, name, namespace)
			s.memory(containerMemory, ct.Memory, ct.Name, name, namespace)
			s.swap(containerSwap, ct.Swap, ct.Name, name, namespace)
			if !ct.StartTime.IsZero() {
				ch <- prometheus.MustNewConstMetric(containerStart, prometheus.GaugeValue, float64(ct.StartTime.UnixNano())/1e9, ct.Name, name, namespace)
			}
		}
	}
	ch <- prometheus.MustNewConstMetric(scrapeError, prometheus.GaugeValue, 0)
}

// sender emits values with the time they were measured at.
type sender struct{ ch chan<- prometheus.Metric }

func (s sender) cpu(d *prometheus.Desc, c *statsapi.CPUStats, labels ...string) {
	if c != nil && c.UsageCoreNanoSeconds != nil {
		s.send(d, prometheus.CounterValue, c.Time, float64(*c.UsageCoreNanoSeconds)/float64(time.Second), labels)
	}
}

func (s sender) memory(d *prometheus.Desc, m *statsapi.MemoryStats, labels ...string) {
	if m != nil && m.WorkingSetBytes != nil {
		s.send(d, prometheus.GaugeValue, m.Time, float64(*m.WorkingSetBytes), labels)
	}
}

func (s sender) swap(d *prometheus.Desc, w *statsapi.SwapStats, labels ...string) {
	if w != nil && w.SwapUsageBytes != nil {
		s.send(d, prometheus.GaugeValue, w.Time, float64(*w.SwapUsageBytes), labels)
	}
}

func (s sender) send(d *prometheus.Desc, kind prometheus.ValueType, at metav1.Time, v float64, labels []string) {
	s.ch <- prometheus.NewMetricWithTimestamp(at.Time, prometheus.MustNewConstMetric(d, kind, v, labels...))
}
