package eviction

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// state is what the thresholds have gone through: since when each is crossed, which
// must be acted on, and when each condition was last called for.
type state struct {
	thresholds []Threshold
	since      []time.Time // by threshold; zero: not crossed
	due        []bool      // by threshold: crossed for its grace period
	last       map[corev1.NodeConditionType]time.Time
}

func newState(thresholds []Threshold) *state {
	return &state{
		thresholds: thresholds, since: make([]time.Time, len(thresholds)), due: make([]bool, len(thresholds)),
		last: map[corev1.NodeConditionType]time.Time{},
	}
}

// note takes an observation in. It returns the conditions of the node, which stay for
// the transition period after they were last called for, and the thresholds to act on,
// those of memory first. A threshold that was acted on stays until what it asks to be
// reclaimed is free.
func (s *state) note(seen map[Signal]observation, transition time.Duration, now time.Time) ([]corev1.NodeConditionType, []Threshold) {
	var memory, others []Threshold
	for i, t := range s.thresholds {
		if !t.crossed(seen, false) && !(s.due[i] && t.crossed(seen, true)) {
			s.since[i], s.due[i] = time.Time{}, false
			continue
		}
		if s.since[i].IsZero() {
			s.since[i] = now
		}
		s.last[signals[t.Signal].condition] = now
		if s.due[i] = now.Sub(s.since[i]) >= t.GracePeriod; !s.due[i] {
			continue
		}
		if signals[t.Signal].resource == corev1.ResourceMemory {
			memory = append(memory, t)
		} else {
			others = append(others, t)
		}
	}
	var conditions []corev1.NodeConditionType
	for c, at := range s.last {
		if now.Sub(at) < transition {
			conditions = append(conditions, c)
		}
	}
	slices.Sort(conditions)
	return conditions, append(memory, others...)
}

// relieved reports whether no threshold is crossed any more, with what each asks to be
// reclaimed.
func (s *state) relieved(seen map[Signal]observation) bool {
	return !slices.ContainsFunc(s.thresholds, func(t Threshold) bool { return t.crossed(seen, true) })
}
