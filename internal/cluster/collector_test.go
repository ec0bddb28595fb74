package cluster

import (
	"testing"
	"time"
)

func TestPacerFollowsThePaceOfCollections(t *testing.T) {
	const live = 32 << 20 // worth a collection every 0.6 s
	tests := []struct {
		name     string
		live     int64
		interval time.Duration
		rounds   int
		growth   int64
	}{
		{"grows while collections come too fast", live, 50 * time.Millisecond, 2, 4 * minGrowth},
		{"stops at its limit", live, 50 * time.Millisecond, 20, maxGrowth},
		{"grows a large heap by half at most", 1 << 30, time.Second, 20, 1 << 29},
		{"stays while the pace is right", live, 600 * time.Millisecond, 20, minGrowth},
		{"a large heap keeps a part of its size", 1 << 30, time.Minute, 20, 1 << 26},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &pacer{growth: minGrowth}
			now := time.Unix(0, 0)
			percent := p.collected(now, tt.live)
			for range tt.rounds {
				now = now.Add(tt.interval)
				percent = p.collected(now, tt.live)
			}
			if p.growth != tt.growth || percent != int(tt.growth*100/tt.live) {
				t.Errorf("growth is %d MiB (%d %%), want %d MiB", p.growth>>20, percent, tt.growth>>20)
			}
		})
	}
}

func TestPacerShrinksAgainWhenItIsQuiet(t *testing.T) {
	p := &pacer{growth: maxGrowth}
	now := time.Unix(0, 0)
	for range 10 {
		now = now.Add(2 * time.Minute)
		p.collected(now, 32<<20)
	}
	if p.growth != minGrowth {
		t.Errorf("growth is %d MiB after 20 idle minutes", p.growth>>20)
	}
}
