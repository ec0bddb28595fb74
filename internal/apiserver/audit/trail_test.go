package audit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
)

func TestNothingIsAuditedWithoutAPolicyAndAPlace(t *testing.T) {
	for name, c := range map[string]Config{
		"nothing": {}, "no place": {Policy: &audit.Policy{}}, "no policy": {Log: Log{Path: "-"}},
	} {
		if trail, err := New(c); trail != nil || err != nil {
			t.Errorf("%s: %v, %v", name, trail, err)
		}
	}
}

func TestWhatCannotWorkIsRefused(t *testing.T) {
	tests := []struct {
		name   string
		config Config
		want   string
	}{
		{"an unknown format", Config{Log: Log{Path: "x", Format: "xml"}}, "invalid audit log format xml"},
		{"a negative age", Config{Log: Log{Path: "x", MaxAge: -1}}, "--audit-log-maxage -1 can't be a negative number"},
		{"an unknown mode", Config{Log: Log{Path: "x", Delivery: Delivery{Mode: "later"}}}, "invalid audit log mode later"},
		{"a batch of nothing", Config{Webhook: Webhook{Kubeconfig: "x", Delivery: Delivery{Mode: Batch, Batch: buffered.BatchConfig{BufferSize: 1}}}}, "must be positive"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.config.Policy = &audit.Policy{}
			if _, err := New(tt.config); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Error(err)
			}
		})
	}
}

func TestPolicyFilesAreChecked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	os.WriteFile(file, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Sometimes}]\n"), 0o600)
	if _, err := ReadPolicy(file); err == nil || !strings.Contains(err.Error(), "Sometimes") {
		t.Error(err)
	}
}

func TestManagedFieldsAreLeftOut(t *testing.T) {
	got := string(withoutManagedFields([]byte(`{"items":[{"metadata":{"name":"a","managedFields":[{}]}}],"metadata":{"resourceVersion":"9007199254740993"},"n":9007199254740993}`)))
	if want := `{"items":[{"metadata":{"name":"a"}}],"metadata":{"resourceVersion":"9007199254740993"},"n":9007199254740993}`; got != want {
		t.Error(got)
	}
}
