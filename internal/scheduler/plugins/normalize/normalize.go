// Package normalize brings raw scores into the range that the scheduler adds up.
package normalize

import "proa/internal/scheduler/framework"

// Scale maps 0..max of the scores to 0..MaxNodeScore; reverse makes the lowest
// raw score the best.
func Scale(scores []int64, reverse bool) {
	var top int64
	for _, s := range scores {
		top = max(top, s)
	}
	for i, s := range scores {
		switch {
		case top == 0 && reverse:
			scores[i] = framework.MaxNodeScore
		case top == 0:
		case reverse:
			scores[i] = framework.MaxNodeScore - framework.MaxNodeScore*s/top
		default:
			scores[i] = framework.MaxNodeScore * s / top
		}
	}
}
