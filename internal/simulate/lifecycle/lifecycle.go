// Package lifecycle decides what happens next to a simulated object: which of
// KWOK's stages its state leads to, when, and what that changes. It reads no
// clock and makes no call; the same seed gives the same course.
package lifecycle

import (
	"fmt"
	"math/rand"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/simulate/kwok"
)

// Object is what stages are about.
type Object interface {
	metav1.Object
	runtime.Object
}

// Config of a Set.
type Config struct {
	Stages []kwok.Stage
	Now    func() time.Time // required
	// Functions of templates besides the general ones: NodeIP, PodIPWith, ...
	Functions map[string]any
}

// Set is the stages of all kinds. It is safe for concurrent use.
type Set struct {
	stages map[schema.GroupKind][]*Stage
}

// Stage is one compiled stage.
type Stage struct {
	Name string
	// Immediate: what it leads to is looked at at once, not when the change is seen.
	Immediate bool

	spec         *kwok.StageSpec
	selector     []func(*Subject) bool
	weight       value[int64]
	delay        value[time.Duration]
	jitter       value[time.Duration]
	delayed      bool
	steps        []step
	now          func() time.Time
	weightNumber int64
}

// New compiles stages; an expression or template that does not compile is an error.
func New(c Config) (*Set, error) {
	s := &Set{stages: map[schema.GroupKind][]*Stage{}}
	for i := range c.Stages {
		doc := &c.Stages[i]
		if doc.Spec.Selector == nil {
			continue // nothing leads to it
		}
		stage, err := compile(doc, &c)
		if err != nil {
			return nil, fmt.Errorf("stage %s: %w", doc.Name, err)
		}
		kind := GroupKind(doc.Spec.ResourceRef)
		s.stages[kind] = append(s.stages[kind], stage)
	}
	return s, nil
}

// GroupKind is the kind that a reference names. KWOK writes the core group as
// "v1", and others as a group with a version.
func GroupKind(ref kwok.ResourceRef) schema.GroupKind {
	group, _, versioned := strings.Cut(ref.APIGroup, "/")
	if !versioned && (group == "v1" || group == "core") {
		group = ""
	}
	return schema.GroupKind{Group: group, Kind: ref.Kind}
}

// Kinds are those that have stages, in no order.
func (s *Set) Kinds() []schema.GroupKind {
	var kinds []schema.GroupKind
	for kind := range s.stages {
		kinds = append(kinds, kind)
	}
	return kinds
}

// Has tells whether a kind has stages.
func (s *Set) Has(kind schema.GroupKind) bool { return len(s.stages[kind]) > 0 }

// Matching are the stages that an object's state leads to.
func (s *Set) Matching(kind schema.GroupKind, subject *Subject) []*Stage {
	var found []*Stage
	for _, stage := range s.stages[kind] {
		if stage.matches(subject) {
			found = append(found, stage)
		}
	}
	return found
}

// Choose draws one of several stages by their weights. Stages without any weight
// are equal; beside one that has a weight they are not drawn.
func Choose(stages []*Stage, subject *Subject, random *rand.Rand) *Stage {
	if len(stages) == 0 {
		return nil
	}
	if len(stages) == 1 {
		return stages[0]
	}
	var total int64
	weights := make([]int64, len(stages))
	for i, stage := range stages {
		weights[i] = max(stage.weightOf(subject), 0)
		total += weights[i]
	}
	if total == 0 {
		return stages[random.Intn(len(stages))]
	}
	at := random.Int63n(total)
	for i, w := range weights {
		if at -= w; at < 0 {
			return stages[i]
		}
	}
	return nil // weights add up to total
}

func compile(doc *kwok.Stage, c *Config) (*Stage, error) {
	spec := &doc.Spec
	s := &Stage{Name: doc.Name, spec: spec, now: c.Now, weightNumber: int64(spec.Weight)}
	if spec.ImmediateNextStage != nil {
		s.Immediate = *spec.ImmediateNextStage
	}
	var err error
	if s.selector, err = compileSelector(spec.Selector, c.Now); err != nil {
		return nil, fmt.Errorf("selector: %w", err)
	}
	if s.weight, err = compileNumber(spec.WeightFrom, c.Now); err != nil {
		return nil, fmt.Errorf("weightFrom: %w", err)
	}
	if d := spec.Delay; d != nil {
		s.delayed = true
		if s.delay, err = compileDuration(d.DurationMilliseconds, d.DurationFrom, c.Now); err != nil {
			return nil, fmt.Errorf("delay.durationFrom: %w", err)
		}
		if s.jitter, err = compileDuration(d.JitterDurationMilliseconds, d.JitterDurationFrom, c.Now); err != nil {
			return nil, fmt.Errorf("delay.jitterDurationFrom: %w", err)
		}
	}
	s.steps, err = compileSteps(spec, c)
	return s, err
}

func (s *Stage) matches(subject *Subject) bool {
	for _, holds := range s.selector {
		if !holds(subject) {
			return false
		}
	}
	return true
}

func (s *Stage) weightOf(subject *Subject) int64 {
	if s.weight != nil {
		if w, ok := s.weight(subject); ok {
			return w
		}
	}
	return s.weightNumber
}

// Delay is the time before the stage takes effect.
func (s *Stage) Delay(subject *Subject, random *rand.Rand) time.Duration {
	if !s.delayed {
		return 0
	}
	least, _ := s.delay(subject)
	most, ok := s.jitter(subject)
	switch {
	case !ok:
		return max(least, 0)
	case most <= least:
		return max(most, 0)
	}
	return max(least+time.Duration(random.Int63n(int64(most-least))), 0)
}

// Subject is an object as selectors and templates see it.
type Subject struct {
	Object Object
	json   map[string]any // made when first asked for
}

// JSON is the object as a tree of JSON values, which may not be changed.
func (s *Subject) JSON() map[string]any {
	if s.json == nil {
		tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(s.Object)
		if err != nil {
			tree = map[string]any{} // no API type fails here
		}
		s.json, _ = plain(tree).(map[string]any)
	}
	return s.json
}

// plain has the numbers that jq takes: int and float64.
func plain(v any) any {
	switch t := v.(type) {
	case map[string]any:
		for k, e := range t {
			t[k] = plain(e)
		}
	case []any:
		for i, e := range t {
			t[i] = plain(e)
		}
	case int64:
		return int(t)
	}
	return v
}

func compileSelector(sel *kwok.Selector, now func() time.Time) ([]func(*Subject) bool, error) {
	var all []func(*Subject) bool
	if len(sel.MatchLabels) > 0 {
		want := labels.SelectorFromSet(sel.MatchLabels)
		all = append(all, func(s *Subject) bool { return want.Matches(labels.Set(s.Object.GetLabels())) })
	}
	if len(sel.MatchAnnotations) > 0 {
		want := labels.SelectorFromSet(sel.MatchAnnotations)
		all = append(all, func(s *Subject) bool { return want.Matches(labels.Set(s.Object.GetAnnotations())) })
	}
	for _, r := range sel.MatchExpressions {
		holds, err := compileRequirement(r, now)
		if err != nil {
			return nil, err
		}
		all = append(all, holds)
	}
	return all, nil
}
