package kubelet

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

func TestThePulseTellsOfALoopThatStands(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
	p := newPulse(clk)
	clk.SetTime(clk.Now().Add(2 * houseInterval))
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
	k := &Kubelet{c: Config{MaxPods: 42, ClusterDomain: "cluster.local", ClusterDNS: []string{"10.96.0.10"}}}
	got, err := k.configuration(true)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{"kind": "KubeletConfiguration", "maxPods": int64(42), "cgroupDriver": "systemd", "syncFrequency": "1m0s"} {
		if got[key] != want {
			t.Errorf("%s: %v, want %v", key, got[key], want)
		}
	}
	for key, value := range got {
		if value == "0s" {
			t.Errorf("%s is shown as 0s", key)
		}
	}
}
