package kubelet

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"proa/internal/kubelet/config"
)

func TestThePulseTellsOfALoopThatStands(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
	p := newPulse(clk, time.Minute)
	clk.SetTime(clk.Now().Add(2 * time.Minute))
	if err := p.check(); err != nil {
		t.Errorf("after two turns: %v", err)
	}
	clk.SetTime(clk.Now().Add(time.Second))
	if err := p.check(); err == nil {
		t.Error("a loop that missed two turns is healthy")
	}
	p.beat()
	if err := p.check(); err != nil {
		t.Errorf("after a beat: %v", err)
	}
}

func TestTheConfigurationShowsWhatIsConfigured(t *testing.T) {
	c := config.New()
	c.MaxPods = 42
	got, err := configured(c, true)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"kind": "KubeletConfiguration", "maxPods": int64(42), "cgroupDriver": "systemd", "syncFrequency": "1m0s", "kubeAPIQPS": int64(50), "kubeAPIBurst": int64(100),
	} {
		if got[key] != want {
			t.Errorf("%s: %v, want %v", key, got[key], want)
		}
	}
	if c.CgroupDriver != "cgroupfs" {
		t.Error("to show the configuration changes it")
	}
}

func TestAHostWithSwap(t *testing.T) {
	list := filepath.Join(t.TempDir(), "swaps")
	const heading = "Filename\tType\tSize\tUsed\tPriority\n"
	for text, want := range map[string]bool{heading: false, heading + "/dev/sda2 partition 1 0 -2\n": true} {
		must(t, os.WriteFile(list, []byte(text), 0o600))
		if err := noSwap(list); (err != nil) != want {
			t.Errorf("%q: %v", text, err)
		}
	}
}
