// Package cardinality bounds the values that labels of metrics show (KEP-2305). What an
// administrator does not list becomes one value, so that nobody who makes up values
// fills the database of those who collect them.
package cardinality

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// unexpected stands for all values that are not listed.
const unexpected = "unexpected"

// counted counts what was not listed: observations, and one for every series of a gauge.
const counted = "cardinality_enforcement_unexpected_categorizations_total"

// Flags are upstream's.
type Flags struct {
	labels   map[string]string
	manifest string
}

// Add registers the flags.
func (f *Flags) Add(fs *pflag.FlagSet) {
	fs.StringToStringVar(&f.labels, "allow-metric-labels", nil, "values that a label of a metric shows, others are 'unexpected': metric1,label1='v1,v2'")
	fs.StringVar(&f.manifest, "allow-metric-labels-manifest", "", "file with such a map, as allowListMapping or by itself; --allow-metric-labels comes before it")
}

// Limits returns what the flags ask for; nil for nothing.
func (f *Flags) Limits() (*Limits, error) {
	mapping := f.labels
	if len(mapping) == 0 && f.manifest != "" {
		var err error
		if mapping, err = readManifest(f.manifest); err != nil {
			return nil, fmt.Errorf("--allow-metric-labels-manifest: %w", err)
		}
	}
	if len(mapping) == 0 {
		return nil, nil
	}
	return NewLimits(mapping)
}

func readManifest(file string) (map[string]string, error) {
	data, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return nil, err
	}
	var document struct {
		AllowListMapping map[string]string `json:"allowListMapping"`
		AllowList        map[string]string `json:"allow-list"`
	}
	if err := yaml.Unmarshal(data, &document); err == nil && len(document.AllowListMapping)+len(document.AllowList) > 0 {
		all := maps.Clone(document.AllowList)
		if all == nil {
			all = map[string]string{}
		}
		maps.Copy(all, document.AllowListMapping)
		return all, nil
	}
	var plain map[string]string
	if err := yaml.UnmarshalStrict(data, &plain); err != nil {
		return nil, err
	}
	return plain, nil
}

// Limits are the values that may be shown, by metric and label.
type Limits struct {
	allowed map[string]map[string][]string // sorted values

	mu   sync.Mutex         // guards most
	most map[string]float64 // unexpected observations by metric: a counter that starts anew takes nothing back
}

var labelOfMetric = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*),([a-zA-Z_][a-zA-Z0-9_]*)$`)

// NewLimits reads a map from "metric,label" to values with commas between them.
func NewLimits(mapping map[string]string) (*Limits, error) {
	l := &Limits{allowed: map[string]map[string][]string{}, most: map[string]float64{}}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(mapping)) {
		names := labelOfMetric.FindStringSubmatch(key)
		if names == nil {
			errs = append(errs, fmt.Errorf("--allow-metric-labels: %q is not <metric name>,<label name>", key))
			continue
		}
		if l.allowed[names[1]] == nil {
			l.allowed[names[1]] = map[string][]string{}
		}
		values := strings.Split(mapping[key], ",")
		slices.Sort(values)
		l.allowed[names[1]][names[2]] = values
	}
	return l, errors.Join(errs...)
}

// Limit returns a gatherer that shows no other values. Series that become one are
// added up.
func (l *Limits) Limit(g prometheus.Gatherer) prometheus.Gatherer {
	if l == nil {
		return g
	}
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := g.Gather()
		families = slices.DeleteFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == counted })
		for i, f := range families {
			if allowed := l.allowed[f.GetName()]; allowed != nil {
				families[i] = l.limit(f, allowed)
			}
		}
		families = append(families, l.count())
		slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
		return families, err
	})
}

// limit returns a family without the other values. What was gathered may be shared, and
// stays as it is.
func (l *Limits) limit(f *dto.MetricFamily, allowed map[string][]string) *dto.MetricFamily {
	out := &dto.MetricFamily{Name: f.Name, Help: f.Help, Type: f.Type, Unit: f.Unit}
	series := map[string]*dto.Metric{}
	others := 0.0
	for _, m := range f.Metric {
		labels, changed := renamed(m.Label, allowed)
		if changed == 0 {
			out.Metric = append(out.Metric, m)
			continue
		}
		others += observations(m) * float64(changed)
		key := keyOf(labels)
		if sum := series[key]; sum != nil {
			add(sum, m)
			continue
		}
		first := proto.Clone(m).(*dto.Metric)
		first.Label = labels
		series[key] = first
	}
	for _, key := range slices.Sorted(maps.Keys(series)) {
		out.Metric = append(out.Metric, series[key])
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.most[f.GetName()] = max(l.most[f.GetName()], others)
	return out
}

func renamed(labels []*dto.LabelPair, allowed map[string][]string) (out []*dto.LabelPair, changed int) {
	out = slices.Clone(labels)
	for i, pair := range out {
		values, bound := allowed[pair.GetName()]
		if !bound || slices.Contains(values, pair.GetValue()) {
			continue
		}
		out[i] = &dto.LabelPair{Name: pair.Name, Value: proto.String(unexpected)}
		changed++
	}
	return out, changed
}

func keyOf(labels []*dto.LabelPair) string {
	var b strings.Builder
	for _, pair := range labels {
		fmt.Fprintf(&b, "%q=%q,", pair.GetName(), pair.GetValue())
	}
	return b.String()
}

// observations is how often a series was written.
func observations(m *dto.Metric) float64 {
	switch {
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Histogram != nil:
		return float64(m.Histogram.GetSampleCount())
	case m.Summary != nil:
		return float64(m.Summary.GetSampleCount())
	}
	return 1
}

// add adds a series to another one. Quantiles of a summary cannot be added, and go.
func add(sum, m *dto.Metric) {
	switch {
	case sum.Counter != nil && m.Counter != nil:
		sum.Counter.Value = proto.Float64(sum.Counter.GetValue() + m.Counter.GetValue())
	case sum.Gauge != nil && m.Gauge != nil:
		sum.Gauge.Value = proto.Float64(sum.Gauge.GetValue() + m.Gauge.GetValue())
	case sum.Untyped != nil && m.Untyped != nil:
		sum.Untyped.Value = proto.Float64(sum.Untyped.GetValue() + m.Untyped.GetValue())
	case sum.Summary != nil && m.Summary != nil:
		sum.Summary.SampleCount = proto.Uint64(sum.Summary.GetSampleCount() + m.Summary.GetSampleCount())
		sum.Summary.SampleSum = proto.Float64(sum.Summary.GetSampleSum() + m.Summary.GetSampleSum())
		sum.Summary.Quantile = nil
	case sum.Histogram != nil && m.Histogram != nil:
		addHistogram(sum.Histogram, m.Histogram)
	}
}

// addHistogram adds one of the same buckets.
func addHistogram(sum, h *dto.Histogram) {
	sum.SampleCount = proto.Uint64(sum.GetSampleCount() + h.GetSampleCount())
	sum.SampleSum = proto.Float64(sum.GetSampleSum() + h.GetSampleSum())
	for i, b := range h.Bucket {
		if i < len(sum.Bucket) {
			sum.Bucket[i].CumulativeCount = proto.Uint64(sum.Bucket[i].GetCumulativeCount() + b.GetCumulativeCount())
			sum.Bucket[i].Exemplar = nil
		}
	}
}

// count is the metric of what was not listed.
func (l *Limits) count() *dto.MetricFamily {
	l.mu.Lock()
	defer l.mu.Unlock()
	total := 0.0
	for _, n := range l.most {
		total += n
	}
	return &dto.MetricFamily{
		Name: proto.String(counted), Help: proto.String("[ALPHA] The count of unexpected categorizations during cardinality enforcement."),
		Type: dto.MetricType_COUNTER.Enum(), Metric: []*dto.Metric{{Counter: &dto.Counter{Value: proto.Float64(total)}}},
	}
}
