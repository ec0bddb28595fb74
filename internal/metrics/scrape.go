package metrics

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/types"
)

const (
	scrapeTimeout = 10 * time.Second
	maxScrape     = 64 << 20 // bytes of one node's answer
)

// pathAnnotation of a node names where its resource metrics are, if not at
// /metrics/resource: a simulated node shares its agent's port with others.
const pathAnnotation = "metrics.k8s.io/resource-metrics-path"

// scrape reads the resource metrics of the node agent at host:port.
func scrape(ctx context.Context, c *http.Client, address, path string) (*reading, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, (&url.URL{Scheme: "https", Host: address, Path: path}).String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s", req.URL, resp.Status)
	}
	return parse(io.LimitReader(resp.Body, maxScrape))
}

// parse reads the text form of a node's resource metrics. Metrics that it does
// not know are passed over.
func parse(text io.Reader) (*reading, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return nil, fmt.Errorf("resource metrics: %w", err)
	}
	r := &reading{pods: map[types.NamespacedName]map[string]series{}}
	each(families["node_cpu_usage_seconds_total"], func(m *dto.Metric) { r.node.last.setCPU(m) })
	each(families["node_memory_working_set_bytes"], func(m *dto.Metric) { r.node.last.setMemory(m) })
	r.containers(families["container_cpu_usage_seconds_total"], (*point).setCPU)
	r.containers(families["container_memory_working_set_bytes"], (*point).setMemory)
	r.containers(families["container_start_time_seconds"], (*point).setStart)
	r.dropUnmeasured()
	return r, nil
}

// dropUnmeasured forgets containers that are listed but do not run.
func (r *reading) dropUnmeasured() {
	for _, containers := range r.pods {
		maps.DeleteFunc(containers, func(_ string, s series) bool { return s.last.at.IsZero() })
	}
}

func each(family *dto.MetricFamily, use func(*dto.Metric)) {
	for _, m := range family.GetMetric() {
		use(m)
	}
}

// containers sets a part of the last point of every container in a family.
func (r *reading) containers(family *dto.MetricFamily, set func(*point, *dto.Metric)) {
	each(family, func(m *dto.Metric) {
		var pod types.NamespacedName
		var container string
		for _, l := range m.GetLabel() {
			switch l.GetName() {
			case "namespace":
				pod.Namespace = l.GetValue()
			case "pod":
				pod.Name = l.GetValue()
			case "container":
				container = l.GetValue()
			}
		}
		if r.pods[pod] == nil {
			r.pods[pod] = map[string]series{}
		}
		s := r.pods[pod][container]
		set(&s.last, m)
		r.pods[pod][container] = s
	})
}

func value(m *dto.Metric) float64 {
	switch {
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue()
	}
	return m.GetUntyped().GetValue()
}

// setCPU also sets the time of the point: a rate is that of the CPU.
func (p *point) setCPU(m *dto.Metric) {
	p.cpu, p.at = value(m), time.UnixMilli(m.GetTimestampMs())
}

func (p *point) setMemory(m *dto.Metric) { p.memory = value(m) }

func (p *point) setStart(m *dto.Metric) { p.started = time.UnixMilli(int64(value(m) * 1000)) }
