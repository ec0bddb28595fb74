package controlplane

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestFlagsOfRequestsAndAudit(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"), 0o600)
	parse := func(given map[string]string) (Config, error) {
		flags, err := ParseFlags(given)
		if err != nil {
			return Config{}, err
		}
		var c Config
		return c, flags.Apply(&c)
	}
	flags, err := ParseFlags(map[string]string{
		"enable-priority-and-fairness": "false", "max-requests-inflight": "7", "max-mutating-requests-inflight": "3",
		"request-timeout": "5s", "min-request-timeout": "60", "http2-max-streams-per-connection": "9",
		"goaway-chance": "0.01", "shutdown-delay-duration": "7s", "shutdown-send-retry-after": "true",
		"audit-policy-file": policy, "audit-log-path": "/x/audit.log", "audit-log-maxsize": "5", "audit-log-mode": "batch", "audit-webhook-truncate-enabled": "true",
	})
	if err != nil {
		t.Fatal(err)
	}
	var c Config
	if err := flags.Apply(&c); err != nil {
		t.Fatal(err)
	}
	s := c.Server
	if !s.NoFairness || s.MaxReads != 7 || s.MaxWrites != 3 || s.RequestTimeout != 5*time.Second || s.MinWatch != time.Minute || s.MaxStreams != 9 ||
		s.GoawayChance != 0.01 || s.ShutdownDelay != 7*time.Second || !s.ShutdownRetryAfter {
		t.Errorf("%+v", s)
	}
	a := s.Audit
	if !a.Enabled() || a.Log.Path != "/x/audit.log" || a.Log.MaxSize != 5 || a.Log.Mode != "batch" || a.Log.Truncate != nil || a.Webhook.Truncate == nil || a.Webhook.Mode != "batch" {
		t.Errorf("%+v", a)
	}
	for flag, want := range map[[2]string]string{
		{"max-requests-inflight", "-1"}:           "--max-requests-inflight can not be negative value",
		{"shutdown-delay-duration", "-1s"}:        "--shutdown-delay-duration can not be negative value",
		{"goaway-chance", "0.5"}:                  "--goaway-chance can not be less than 0 or greater than 0.02",
		{"audit-policy-file", "/nowhere"}:         "/nowhere",
		{"audit-log-version", "audit.k8s.io/v1b"}: "audit.k8s.io/v1b",
	} {
		if _, err := parse(map[string]string{flag[0]: flag[1]}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", flag, err)
		}
	}
}
