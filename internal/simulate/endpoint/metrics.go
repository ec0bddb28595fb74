package endpoint

import (
	"fmt"
	"net/http"
	"sort"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"proa/internal/simulate/expr"
	"proa/internal/simulate/kwok"
	"proa/internal/simulate/lifecycle"
	"proa/internal/simulate/usage"
)

// running are the pods of a node that use anything.
func (e *Endpoint) running(node string) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, pod := range e.c.Simulator.PodsOf(node) {
		if pod.Status.Phase == corev1.PodRunning {
			pods = append(pods, pod)
		}
	}
	return pods
}

// resourceMetrics is what a kubelet has at /metrics/resource.
func (e *Endpoint) resourceMetrics(w http.ResponseWriter, r *http.Request) {
	node := r.PathValue("nodeName")
	if _, ok := e.c.Simulator.Node(node); !ok {
		http.NotFound(w, r)
		return
	}
	now := e.c.Clock.Now().Truncate(time.Millisecond) // as exact as the page's timestamps
	families := newFamilies()
	var nodeCPU, nodeMemory float64
	for _, pod := range e.running(node) {
		podLabels := []string{"namespace", pod.Namespace, "pod", pod.Name}
		var podCPU, podMemory float64
		for i := range pod.Spec.Containers {
			name := pod.Spec.Containers[i].Name
			cpu, memory := e.meter.CumulativeAt(now, pod, name, "cpu"), e.meter.Container(pod, name, "memory")
			podCPU, podMemory = podCPU+cpu, podMemory+memory
			labels := append([]string{"container", name}, podLabels...)
			families.add(counter, "container_cpu_usage_seconds_total", "Cumulative cpu time consumed by the container in core-seconds", cpu, labels...)
			families.add(gauge, "container_memory_working_set_bytes", "Current working set of the container in bytes", memory, labels...)
			if started := usage.Started(pod, name); !started.IsZero() {
				families.add(gauge, "container_start_time_seconds", "Start time of the container since unix epoch in seconds", float64(started.UnixMilli())/1000, labels...)
			}
		}
		families.add(counter, "pod_cpu_usage_seconds_total", "Cumulative cpu time consumed by the pod in core-seconds", podCPU, podLabels...)
		families.add(gauge, "pod_memory_working_set_bytes", "Current working set of the pod in bytes", podMemory, podLabels...)
		nodeCPU, nodeMemory = nodeCPU+podCPU, nodeMemory+podMemory
	}
	families.add(counter, "node_cpu_usage_seconds_total", "Cumulative cpu time consumed by the node in core-seconds", nodeCPU)
	families.add(gauge, "node_memory_working_set_bytes", "Current working set of the node in bytes", nodeMemory)
	families.write(w, ptr.To(now.UnixMilli()))
}

var (
	counter = dto.MetricType_COUNTER
	gauge   = dto.MetricType_GAUGE
)

// families are metrics on their way to a page.
type families struct{ byName map[string]*dto.MetricFamily }

func newFamilies() *families { return &families{map[string]*dto.MetricFamily{}} }

func (f *families) of(kind dto.MetricType, name, help string) *dto.MetricFamily {
	family := f.byName[name]
	if family == nil {
		family = &dto.MetricFamily{Name: &name, Help: &help, Type: &kind}
		f.byName[name] = family
	}
	return family
}

// add takes in a value; labels are names and values in turn.
func (f *families) add(kind dto.MetricType, name, help string, value float64, labels ...string) {
	m := &dto.Metric{Label: labelPairs(labels)}
	if kind == counter {
		m.Counter = &dto.Counter{Value: &value}
	} else {
		m.Gauge = &dto.Gauge{Value: &value}
	}
	family := f.of(kind, name, help)
	family.Metric = append(family.Metric, m)
}

func labelPairs(labels []string) []*dto.LabelPair {
	var pairs []*dto.LabelPair
	for i := 0; i+1 < len(labels); i += 2 {
		pairs = append(pairs, &dto.LabelPair{Name: &labels[i], Value: &labels[i+1]})
	}
	return pairs
}

// write sends the page in the text form, with a time for every value if at is set.
func (f *families) write(w http.ResponseWriter, at *int64) {
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	w.Header().Set("Content-Type", string(format))
	names := make([]string, 0, len(f.byName))
	for name := range f.byName {
		names = append(names, name)
	}
	sort.Strings(names)
	encoder := expfmt.NewEncoder(w, format)
	for _, name := range names {
		for _, m := range f.byName[name].Metric {
			m.TimestampMs = at
		}
		if encoder.Encode(f.byName[name]) != nil {
			return // the client is gone
		}
	}
}

// page is a Metric document, compiled.
type page struct {
	e       *Endpoint
	path    string
	metrics []pageMetric
}

type pageMetric struct {
	*kwok.Metric
	value   *expr.Program
	labels  []*expr.Program
	buckets []*expr.Program
}

func (e *Endpoint) compilePage(spec kwok.MetricSpec) (*page, error) {
	if !strings.HasPrefix(spec.Path, "/metrics") {
		return nil, fmt.Errorf("path %q: want one below /metrics", spec.Path)
	}
	env, err := expr.New(expr.Config{
		Now: e.c.Clock.Now, Variables: []string{"node", "pod", "container"},
		Methods: map[string]func(any, []string) (float64, error){
			"Usage": func(obj any, names []string) (float64, error) { return e.measure(obj, names, e.meter.Container) },
			"CumulativeUsage": func(obj any, names []string) (float64, error) {
				return e.measure(obj, names, e.meter.Cumulative)
			},
			"StartedContainersTotal": func(obj any, _ []string) (float64, error) { return e.started(obj), nil },
		},
	})
	if err != nil {
		return nil, err
	}
	p := &page{e: e, path: spec.Path}
	for i := range spec.Metrics {
		m, err := compileMetric(env, &spec.Metrics[i])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", spec.Metrics[i].Name, err)
		}
		p.metrics = append(p.metrics, m)
	}
	return p, nil
}

func compileMetric(env *expr.Env, doc *kwok.Metric) (m pageMetric, err error) {
	m.Metric = doc
	switch doc.Kind {
	case "counter", "gauge":
		if m.value, err = env.Compile(doc.Value); err != nil {
			return m, err
		}
	case "histogram":
		for _, b := range doc.Buckets {
			p, err := env.Compile(b.Value)
			if err != nil {
				return m, err
			}
			m.buckets = append(m.buckets, p)
		}
	default:
		return m, fmt.Errorf("unknown kind %q", doc.Kind)
	}
	for _, l := range doc.Labels {
		p, err := env.Compile(l.Value)
		if err != nil {
			return m, err
		}
		m.labels = append(m.labels, p)
	}
	return m, nil
}

// of names the object that an expression calls a method of.
func of(obj any) (namespace, name string) {
	t, _ := obj.(map[string]any)
	meta, _ := t["metadata"].(map[string]any)
	namespace, _ = meta["namespace"].(string)
	name, _ = meta["name"].(string)
	return namespace, name
}

// measure is node.Usage(resource), pod.Usage(resource) or
// pod.Usage(resource, container).
func (e *Endpoint) measure(obj any, names []string, meter func(*corev1.Pod, string, string) float64) (float64, error) {
	if len(names) == 0 {
		return 0, fmt.Errorf("want the name of a resource")
	}
	namespace, name := of(obj)
	pods := []*corev1.Pod{}
	if namespace == "" {
		pods = e.running(name)
	} else if pod, ok := e.c.Simulator.Pod(namespace, name); ok {
		pods = append(pods, pod)
	}
	var total float64
	for _, pod := range pods {
		for i := range pod.Spec.Containers {
			if c := pod.Spec.Containers[i].Name; len(names) < 2 || names[1] == c {
				total += meter(pod, c, names[0])
			}
		}
	}
	return total, nil
}

func (e *Endpoint) started(obj any) float64 {
	_, node := of(obj)
	n := 0
	for _, pod := range e.running(node) {
		n += len(pod.Spec.Containers)
	}
	return float64(n)
}

func (p *page) serve(w http.ResponseWriter, r *http.Request) {
	node, ok := p.e.c.Simulator.Node(r.PathValue("nodeName"))
	if !ok {
		http.NotFound(w, r)
		return
	}
	families := newFamilies()
	vars := map[string]any{"node": tree(node), "pod": map[string]any{}, "container": map[string]any{}}
	p.add(families, "node", vars)
	for _, pod := range p.e.running(node.Name) {
		vars["pod"], vars["container"] = tree(pod), map[string]any{}
		p.add(families, "pod", vars)
		for i := range pod.Spec.Containers {
			vars["container"] = tree(&pod.Spec.Containers[i])
			p.add(families, "container", vars)
		}
	}
	families.write(w, nil)
}

func tree(obj any) map[string]any {
	t, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return map[string]any{} // no API type fails here
	}
	return lifecycle.WithMetadata(t)
}

// add evaluates the metrics of one dimension. One that fails for an object is
// left out for it.
func (p *page) add(to *families, dimension string, vars map[string]any) {
	for _, m := range p.metrics {
		if m.Dimension != dimension && !(m.Dimension == "" && dimension == "node") {
			continue
		}
		var labels []string
		failed := false
		for i, l := range m.labels {
			v, err := l.Eval(vars)
			failed = failed || err != nil
			labels = append(labels, m.Labels[i].Name, fmt.Sprint(v))
		}
		if failed {
			continue
		}
		if m.value != nil {
			if v, err := m.value.Number(vars); err == nil {
				kind := counter
				if m.Kind == "gauge" {
					kind = gauge
				}
				to.add(kind, m.Name, m.Help, v, labels...)
			}
			continue
		}
		if h, err := m.histogram(vars); err == nil {
			family := to.of(dto.MetricType_HISTOGRAM, m.Name, m.Help)
			family.Metric = append(family.Metric, &dto.Metric{Label: labelPairs(labels), Histogram: h})
		}
	}
}

// histogram has buckets that are given one by one and shown added up.
func (m pageMetric) histogram(vars map[string]any) (*dto.Histogram, error) {
	h := &dto.Histogram{}
	var count uint64
	var sum float64
	for i, program := range m.buckets {
		n, err := program.Number(vars)
		if err != nil {
			return nil, err
		}
		bucket := m.Buckets[i]
		count += uint64(max(n, 0))
		sum += n * bucket.Le
		if !bucket.Hidden {
			h.Bucket = append(h.Bucket, &dto.Bucket{UpperBound: ptr.To(bucket.Le), CumulativeCount: ptr.To(count)})
		}
	}
	h.SampleCount, h.SampleSum = &count, &sum
	return h, nil
}
