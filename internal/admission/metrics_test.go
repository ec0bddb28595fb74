package admission

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
)

// refusing is a plugin that refuses deletes.
type refusing struct{}

func (refusing) Name() string { return "refusing" }

func (refusing) Validate(_ context.Context, a *Attributes) error {
	if a.Operation == admissionv1.Delete {
		return errors.New("no")
	}
	return nil
}

func TestPluginsAreTimed(t *testing.T) {
	c := NewChain(annotating{}, refusing{})
	for _, op := range []admissionv1.Operation{admissionv1.Create, admissionv1.Delete} {
		a := &Attributes{Operation: op}
		c.Admit(t.Context(), a)
		c.Validate(t.Context(), a)
	}
	r := prometheus.NewRegistry()
	r.MustRegister(c.Metrics()...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		for _, m := range f.Metric {
			series := strings.TrimSuffix(strings.TrimPrefix(f.GetName(), "apiserver_admission_"), "_admission_duration_seconds")
			for _, l := range m.Label {
				series += " " + l.GetValue()
			}
			got = append(got, series)
		}
	}
	want := []string{ // name, operation, rejected, type
		"controller annotating CREATE false admit", "controller annotating CREATE false validate",
		"controller annotating DELETE false admit", "controller annotating DELETE false validate",
		"controller refusing CREATE false validate", "controller refusing DELETE true validate",
		"step CREATE false admit", "step CREATE false validate", "step DELETE false admit", "step DELETE true validate",
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// BenchmarkTiming is what the times of one plugin cost.
func BenchmarkTiming(b *testing.B) {
	c := NewChain(refusing{})
	a := &Attributes{Operation: admissionv1.Create}
	b.ReportAllocs()
	for b.Loop() {
		c.Validate(b.Context(), a)
	}
}
