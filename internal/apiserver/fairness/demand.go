package fairness

import (
	"math"
	"time"
)

// integrator follows a number over time.
type integrator struct {
	value       float64
	since       time.Duration // value
	began       time.Duration // the period
	sum, square float64       // of value times seconds
	highest     float64
}

// demand is what an integrator saw in a period.
type demand struct {
	average, deviation, highest float64
}

func (i *integrator) set(now time.Duration, value int) {
	i.advance(now)
	i.value = float64(value)
	i.highest = max(i.highest, i.value)
}

func (i *integrator) advance(now time.Duration) {
	dt := (now - i.since).Seconds()
	i.sum += dt * i.value
	i.square += dt * i.value * i.value
	i.since = now
}

// reset begins a new period and returns what the last one was like; false when
// it had no length.
func (i *integrator) reset(now time.Duration) (demand, bool) {
	i.advance(now)
	d := demand{highest: i.highest}
	length := (now - i.began).Seconds()
	if length > 0 {
		d.average = i.sum / length
		d.deviation = math.Sqrt(max(0, i.square/length-d.average*d.average))
	}
	i.began, i.sum, i.square, i.highest = now, 0, 0, i.value
	return d, length > 0
}

// smoothing is how much of the old demand is kept each time: half of it after
// five minutes.
const smoothing = 0.977

// smooth follows demand up at once and down slowly.
func smooth(old float64, d demand) float64 {
	envelope := d.average + d.deviation
	return max(envelope, smoothing*old+(1-smoothing)*envelope)
}

// claim is what one level asks of the seats, and its bounds.
type claim struct {
	target, least, most float64
}

// leastTarget keeps levels that want nothing in proportion to each other.
const leastTarget = 0.001

// share divides seats in proportion to the targets, within each one's bounds:
// it returns the proportion at which the parts add up to the seats, and the parts.
// When the bounds do not allow for that sum the parts are as near as they can be.
func share(seats float64, claims []claim) (proportion float64, parts []float64) {
	parts = make([]float64, len(claims))
	fill := func(p float64) (sum float64) {
		for i, c := range claims {
			parts[i] = min(max(p*max(c.target, leastTarget), c.least), c.most)
			sum += parts[i]
		}
		return sum
	}
	// The sum grows with the proportion, so that the right one can be closed in on.
	low, high := 0.0, 0.0
	for _, c := range claims {
		high = max(high, c.most/max(c.target, leastTarget))
	}
	for range 100 {
		proportion = (low + high) / 2
		if fill(proportion) < seats {
			low = proportion
		} else {
			high = proportion
		}
	}
	fill(high)
	return high, parts
}
