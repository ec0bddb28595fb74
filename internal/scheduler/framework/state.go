package framework

import "slices"

// StateData is what a plugin keeps between its calls for one pod.
type StateData interface {
	// Clone returns a copy that AddPod and RemovePod of a trial may change.
	Clone() StateData
}

// CycleState is the memory of one pod's cycle, one value per key. It is written
// from one goroutine; the parallel extension points (Filter, Score) only read.
type CycleState struct {
	slots []slot

	// SkipFilter and SkipScore name the plugins whose PreFilter or PreScore
	// answered Skip, by position in the profile.
	SkipFilter, SkipScore uint64

	// Sampled: the calls of plugins for this pod are timed one by one.
	Sampled bool
}

type slot struct {
	key   string
	value StateData
}

// Write sets the value of key.
func (s *CycleState) Write(key string, value StateData) {
	for i := range s.slots {
		if s.slots[i].key == key {
			s.slots[i].value = value
			return
		}
	}
	s.slots = append(s.slots, slot{key, value})
}

// Read returns the value of key as T; false when there is none.
func Read[T StateData](s *CycleState, key string) (T, bool) {
	for i := range s.slots {
		if s.slots[i].key == key {
			v, ok := s.slots[i].value.(T)
			return v, ok
		}
	}
	var zero T
	return zero, false
}

// Renewed returns a state with the same values, that PreFilter may be asked with
// again. The values are shared, but not changed by what is written to the new state.
func (s *CycleState) Renewed() *CycleState {
	return &CycleState{slots: slices.Clone(s.slots), SkipScore: s.SkipScore, Sampled: s.Sampled}
}

// Clone copies the state for a trial.
func (s *CycleState) Clone() *CycleState {
	c := &CycleState{slots: make([]slot, len(s.slots)), SkipFilter: s.SkipFilter, SkipScore: s.SkipScore, Sampled: s.Sampled}
	for i, sl := range s.slots {
		c.slots[i] = slot{sl.key, sl.value.Clone()}
	}
	return c
}
