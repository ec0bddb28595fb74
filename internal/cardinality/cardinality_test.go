package cardinality

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/spf13/pflag"
)

// gathered are metrics of every type: three verbs and two codes.
func gathered() *prometheus.Registry {
	r := prometheus.NewRegistry()
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "requests_total", Help: "h"}, []string{"code", "verb"})
	open := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "open", Help: "h"}, []string{"verb"})
	took := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "took", Help: "h", Buckets: []float64{1, 2}}, []string{"verb"})
	r.MustRegister(requests, open, took)
	for i, verb := range []string{"GET", "POST", "PUT"} {
		requests.WithLabelValues("200", verb).Add(float64(i + 1))
		open.WithLabelValues(verb).Set(float64(i + 1))
		took.WithLabelValues(verb).Observe(float64(i))
	}
	requests.WithLabelValues("500", "PUT").Inc()
	return r
}

func TestOtherValuesAreUnexpected(t *testing.T) {
	limits, err := NewLimits(map[string]string{"requests_total,verb": "GET,LIST", "open,verb": "", "took,verb": "GET", "absent,x": "y"})
	if err != nil {
		t.Fatal(err)
	}
	const want = `
# HELP cardinality_enforcement_unexpected_categorizations_total [ALPHA] The count of unexpected categorizations during cardinality enforcement.
# TYPE cardinality_enforcement_unexpected_categorizations_total counter
cardinality_enforcement_unexpected_categorizations_total 11
# HELP open h
# TYPE open gauge
open{verb="unexpected"} 6
# HELP requests_total h
# TYPE requests_total counter
requests_total{code="200",verb="GET"} 1
requests_total{code="200",verb="unexpected"} 5
requests_total{code="500",verb="unexpected"} 1
# HELP took h
# TYPE took histogram
took_bucket{verb="GET",le="1"} 1
took_bucket{verb="GET",le="2"} 1
took_bucket{verb="GET",le="+Inf"} 1
took_sum{verb="GET"} 0
took_count{verb="GET"} 1
took_bucket{verb="unexpected",le="1"} 1
took_bucket{verb="unexpected",le="2"} 2
took_bucket{verb="unexpected",le="+Inf"} 2
took_sum{verb="unexpected"} 3
took_count{verb="unexpected"} 2
`
	metrics := limits.Limit(gathered())
	for range 2 { // gathering changes nothing
		if err := testutil.GatherAndCompare(metrics, strings.NewReader(want)); err != nil {
			t.Error(err)
		}
	}
}

func TestLimitsComeFromFlagsOrAFile(t *testing.T) {
	write := func(text string) string {
		file := filepath.Join(t.TempDir(), "manifest.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	nested := write("allowListMapping:\n  \"a,b\": \"x,y\"\n")
	tests := []struct {
		name string
		args []string
		want string // values of label b of metric a
		err  string
	}{
		{"no flag limits nothing", nil, "", ""},
		{"a flag", []string{"--allow-metric-labels=a,b=y,x"}, "x y", ""},
		{"a file", []string{"--allow-metric-labels-manifest=" + nested}, "x y", ""},
		{"a file without a key above", []string{"--allow-metric-labels-manifest=" + write("{\"a,b\": z}")}, "z", ""},
		{"a file with the later key", []string{"--allow-metric-labels-manifest=" + write("allow-list: {\"a,b\": z}")}, "z", ""},
		{"the flag comes first", []string{"--allow-metric-labels=a,b=q", "--allow-metric-labels-manifest=" + nested}, "q", ""},
		{"a label without a metric", []string{"--allow-metric-labels=b=q"}, "", `"b" is not <metric name>,<label name>`},
		{"a file that is not there", []string{"--allow-metric-labels-manifest=/none"}, "", "open /none: no such file or directory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var f Flags
			fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
			f.Add(fs)
			if err := fs.Parse(tt.args); err != nil {
				t.Fatal(err)
			}
			limits, err := f.Limits()
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("%v, want %s", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if limits != nil {
				got = strings.Join(limits.allowed["a"]["b"], " ")
			}
			if got != tt.want {
				t.Errorf("%q may be shown, want %q", got, tt.want)
			}
		})
	}
}
