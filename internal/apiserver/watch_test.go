package apiserver

import (
	"fmt"
	"testing"
	"time"
)

func TestWatchesRestTheLongerTheMoreThereAre(t *testing.T) {
	tests := []struct {
		watches int64
		want    time.Duration
	}{{0, 0}, {1, 0}, {19, 0}, {20, 2 * time.Millisecond}, {500, 50 * time.Millisecond}, {100_000, 100 * time.Millisecond}}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%d watches", tt.watches), func(t *testing.T) {
			if got := restOf(tt.watches); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
