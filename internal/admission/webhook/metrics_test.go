package webhook

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/component-base/metrics/legacyregistry"
)

func TestWebhooksAreMeasured(t *testing.T) {
	w := newWorld(t)
	w.serve("/yes", allowed)
	w.serve("/no", func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{}
	})
	w.mutate("measured-first", w.hook("measured-first", "/yes"))
	w.validate("measured-second", w.hook("measured-second", "/no"))
	w.create(ref("configmaps"), configMap("a", nil))

	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		name, ok := strings.CutPrefix(f.GetName(), "apiserver_admission_webhook_")
		if !ok {
			continue
		}
		for _, m := range f.Metric {
			line, ours := name, false
			for _, l := range m.Label {
				ours = ours || strings.HasPrefix(l.GetValue(), "measured-")
				line += " " + l.GetValue()
			}
			if ours {
				got = append(got, line+" "+fmt.Sprint(m.GetCounter().GetValue()+float64(m.GetHistogram().GetSampleCount())))
			}
		}
	}
	want := []string{ // labels in the order of their names: code, error_type, name, operation, rejected, rejection_code, type
		"admission_duration_seconds measured-first.example.com CREATE false admit 1",
		"admission_duration_seconds measured-second.example.com CREATE true validating 1",
		"rejection_count no_error measured-second.example.com CREATE 400 validating 1",
		"request_total 200 measured-first.example.com CREATE false admit 1",
		"request_total 400 measured-second.example.com CREATE true validating 1",
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
