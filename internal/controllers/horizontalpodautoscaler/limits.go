package horizontalpodautoscaler

import (
	"math"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// downscaleStabilization is how long the highest recommendation holds where the
// autoscaler does not say.
const downscaleStabilization = 5 * time.Minute

// history is what an autoscaler recommended and did, for as long as its windows
// and periods look back. One run at a time uses it.
type history struct {
	recommendations []recommendation
	ups, downs      []change
}

type recommendation struct {
	replicas int32
	at       time.Time
}

// change is how many replicas were added, or taken away, and when.
type change struct {
	replicas int32
	at       time.Time
}

// scaled remembers a change of the target, if there are policies to ask for it.
func (h *history) scaled(b *autoscalingv2.HorizontalPodAutoscalerBehavior, from, to int32, now time.Time) {
	if b == nil {
		return
	}
	if to > from {
		h.ups = append(recent(h.ups, longest(b.ScaleUp), now), change{to - from, now})
	} else {
		h.downs = append(recent(h.downs, longest(b.ScaleDown), now), change{from - to, now})
	}
}

func recent(changes []change, period time.Duration, now time.Time) []change {
	var kept []change
	for _, c := range changes {
		if !c.at.Before(now.Add(-period)) {
			kept = append(kept, c)
		}
	}
	return kept
}

func longest(rules *autoscalingv2.HPAScalingRules) time.Duration {
	period := int32(0)
	if rules != nil {
		for _, p := range rules.Policies {
			period = max(period, p.PeriodSeconds)
		}
	}
	return seconds(period)
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

// sum counts the replicas changed within a policy's period.
func sum(changes []change, period int32, now time.Time) int32 {
	total, cutoff := int32(0), now.Add(-seconds(period))
	for _, c := range changes {
		if c.at.After(cutoff) {
			total += c.replicas
		}
	}
	return total
}

// bounds are what limits a recommendation.
type bounds struct {
	current, min, max int32
	behavior          *autoscalingv2.HorizontalPodAutoscalerBehavior
}

// verdict is why a number came out.
type verdict struct {
	replicas        int32
	limited         bool // the rules and limits changed it
	reason, message string
	stabilized      stabilization
}

type stabilization struct {
	replicas        int32
	reason, message string
}

var readyForNewScale = stabilization{reason: "ReadyForNewScale", message: "recommended size matches current size"}

const (
	lowerBefore  = "recent recommendations were lower than current one, applying the lowest recent recommendation"
	higherBefore = "recent recommendations were higher than current one, applying the highest recent recommendation"
)

// limit takes what the metrics ask for through the stabilization windows, the
// policies and the limits, and remembers it.
func (h *history) limit(b bounds, desired int32, now time.Time) verdict {
	up, down := time.Duration(0), downscaleStabilization
	if b.behavior != nil {
		up = window(b.behavior.ScaleUp, 0)
		down = window(b.behavior.ScaleDown, downscaleStabilization)
	}
	s := h.stabilize(b, desired, up, down, now)
	var v verdict
	if b.behavior == nil {
		v = limitByDefault(b, s.replicas)
	} else {
		v = h.limitByPolicies(b, s.replicas, now)
	}
	v.stabilized, v.limited = s, v.replicas != s.replicas
	return v
}

func window(rules *autoscalingv2.HPAScalingRules, otherwise time.Duration) time.Duration {
	if rules == nil || rules.StabilizationWindowSeconds == nil {
		return otherwise
	}
	return seconds(*rules.StabilizationWindowSeconds)
}

// stabilize keeps a number from following every swing: it goes up no higher than
// the lowest recommendation within the window up, down no lower than the highest
// within the window down.
func (h *history) stabilize(b bounds, desired int32, up, down time.Duration, now time.Time) stabilization {
	lowest, highest := desired, desired
	kept := h.recommendations[:0]
	for _, r := range h.recommendations {
		if r.at.After(now.Add(-up)) {
			lowest = min(lowest, r.replicas)
		}
		if r.at.After(now.Add(-down)) {
			highest = max(highest, r.replicas)
		}
		if r.at.After(now.Add(-max(up, down))) {
			kept = append(kept, r)
		}
	}
	h.recommendations = append(kept, recommendation{desired, now})
	s := readyForNewScale
	if b.behavior == nil {
		s.replicas = highest
	} else {
		s.replicas = min(max(b.current, lowest), highest)
	}
	switch {
	case s.replicas == desired:
	case b.behavior != nil && desired >= b.current:
		s.reason, s.message = "ScaleUpStabilized", lowerBefore
	default:
		s.reason, s.message = "ScaleDownStabilized", higherBefore
	}
	return s
}

// Without rules a target at most doubles at once, from at least scaleUpMinimum.
const (
	scaleUpFactor  = 2
	scaleUpMinimum = 4
)

func limitByDefault(b bounds, desired int32) verdict {
	fastest := max(b.current*scaleUpFactor, scaleUpMinimum)
	switch {
	case desired < b.min:
		return tooFew(b.min)
	case desired > min(b.max, fastest) && b.max > fastest:
		return tooFast(fastest)
	case desired > b.max:
		return tooMany(b.max)
	}
	return within(desired)
}

func (h *history) limitByPolicies(b bounds, desired int32, now time.Time) verdict {
	switch {
	case desired > b.current:
		fastest := max(b.current, h.fastestUp(b, now))
		if desired > min(b.max, fastest) && b.max > fastest {
			return tooFast(fastest)
		}
		if desired > b.max {
			return tooMany(b.max)
		}
	case desired < b.current:
		fastest := min(b.current, h.fastestDown(b, now))
		if desired < max(b.min, fastest) && b.min < fastest {
			return verdict{replicas: fastest, reason: "ScaleDownLimit", message: "the desired replica count is decreasing faster than the maximum scale rate"}
		}
		if desired < b.min {
			return tooFew(b.min)
		}
	}
	return within(desired)
}

func tooFew(n int32) verdict {
	return verdict{replicas: n, reason: "TooFewReplicas", message: "the desired replica count is less than the minimum replica count"}
}

func tooMany(n int32) verdict {
	return verdict{replicas: n, reason: "TooManyReplicas", message: "the desired replica count is more than the maximum replica count"}
}

func tooFast(n int32) verdict {
	return verdict{replicas: n, reason: "ScaleUpLimit", message: "the desired replica count is increasing faster than the maximum scale rate"}
}

func within(n int32) verdict {
	return verdict{replicas: n, reason: "DesiredWithinRange", message: "the desired count is within the acceptable range"}
}

// fastestUp is the most replicas that the policies allow now.
func (h *history) fastestUp(b bounds, now time.Time) int32 {
	return h.selected(b, b.behavior.ScaleUp, now, func(p autoscalingv2.HPAScalingPolicy, start int32) int32 {
		if p.Type == autoscalingv2.PercentScalingPolicy {
			return saturated(math.Ceil(float64(start) * (1 + float64(p.Value)/100)))
		}
		return saturated(float64(start) + float64(p.Value))
	}, func(a, b int32) bool { return a > b })
}

// fastestDown is the fewest replicas that the policies allow now.
func (h *history) fastestDown(b bounds, now time.Time) int32 {
	return h.selected(b, b.behavior.ScaleDown, now, func(p autoscalingv2.HPAScalingPolicy, start int32) int32 {
		if p.Type == autoscalingv2.PercentScalingPolicy {
			return saturated(float64(start) * (1 - float64(p.Value)/100))
		}
		return saturated(float64(start) - float64(p.Value))
	}, func(a, b int32) bool { return a < b })
}

// saturated is n as an int32, cut off, not wrapped around.
func saturated(n float64) int32 {
	return int32(max(math.MinInt32, min(math.MaxInt32, n)))
}

// selected asks every policy of rules what it allows, from what there was when
// its period began, and picks by selectPolicy. further orders what moves more first.
func (h *history) selected(b bounds, rules *autoscalingv2.HPAScalingRules, now time.Time,
	propose func(autoscalingv2.HPAScalingPolicy, int32) int32, further func(a, b int32) bool) int32 {
	if rules == nil {
		return b.current
	}
	smallest := rules.SelectPolicy != nil && *rules.SelectPolicy == autoscalingv2.MinChangePolicySelect
	if rules.SelectPolicy != nil && *rules.SelectPolicy == autoscalingv2.DisabledPolicySelect {
		return b.current
	}
	best := b.current
	for i, p := range rules.Policies {
		start := b.current - sum(h.ups, p.PeriodSeconds, now) + sum(h.downs, p.PeriodSeconds, now)
		n := propose(p, start)
		if i == 0 || further(n, best) != smallest && n != best {
			best = n
		}
	}
	return best
}
