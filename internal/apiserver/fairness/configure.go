package fairness

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis/flowcontrol"
	"proa/internal/store"
)

var (
	schemasResource = schema.GroupResource{Group: flowcontrolv1.GroupName, Resource: "flowschemas"}
	levelsResource  = schema.GroupResource{Group: flowcontrolv1.GroupName, Resource: "prioritylevelconfigurations"}
)

// objects are what the store holds of a kind, in key order.
func objects[T any](sn *store.Snapshot, gr schema.GroupResource) (list []T) {
	sn.Range(gr, "", store.Key{}, func(item *store.Item) bool {
		if obj, ok := item.Object.(T); ok {
			list = append(list, obj)
		}
		return true
	})
	return list
}

// reload replaces the table by what the store says now.
func (f *Fairness) reload() {
	f.mu.Lock()
	defer f.mu.Unlock()
	sn := f.config.Store.Snapshot()
	specs := wantedLevels(objects[*flowcontrolv1.PriorityLevelConfiguration](sn, levelsResource))
	for name, l := range f.levels {
		l.mu.Lock()
		_, wanted := specs[name]
		l.draining = !wanted
		if !wanted && l.idleLocked() {
			delete(f.levels, name)
		}
		l.mu.Unlock()
	}
	f.setUpLocked(specs)
	f.current.Store(f.tableLocked(specs, objects[*flowcontrolv1.FlowSchema](sn, schemasResource)))
	f.shareOutLocked()
}

// wantedLevels are the levels by name, with the mandatory ones that are missing.
func wantedLevels(list []*flowcontrolv1.PriorityLevelConfiguration) map[string]*flowcontrolv1.PriorityLevelConfiguration {
	specs := map[string]*flowcontrolv1.PriorityLevelConfiguration{}
	mandatory, _ := flowcontrol.Mandatory()
	for _, l := range slices.Concat(mandatory, list) {
		if whole(&l.Spec) {
			specs[l.Name] = l
		}
	}
	return specs
}

// whole reports whether a spec has the part that its type calls for.
func whole(s *flowcontrolv1.PriorityLevelConfigurationSpec) bool {
	switch s.Type {
	case flowcontrolv1.PriorityLevelEnablementExempt:
		return s.Exempt != nil && s.Limited == nil
	case flowcontrolv1.PriorityLevelEnablementLimited:
		return s.Limited != nil && (s.Limited.LimitResponse.Type == flowcontrolv1.LimitResponseTypeQueue) == (s.Limited.LimitResponse.Queuing != nil)
	}
	return false
}

// numbers are the shares, and the percentages that may be lent and borrowed; a
// negative one has no limit.
func numbers(s *flowcontrolv1.PriorityLevelConfigurationSpec) (shares, lend, borrow int32) {
	if e := s.Exempt; e != nil {
		return valueOr(e.NominalConcurrencyShares, 0), valueOr(e.LendablePercent, 0), -1
	}
	return valueOr(s.Limited.NominalConcurrencyShares, 0), valueOr(s.Limited.LendablePercent, 0), valueOr(s.Limited.BorrowingLimitPercent, -1)
}

func valueOr(p *int32, otherwise int32) int32 {
	if p == nil {
		return otherwise
	}
	return *p
}

// setUpLocked divides the seats among the levels by their shares. Levels that
// only drain keep theirs.
func (f *Fairness) setUpLocked(specs map[string]*flowcontrolv1.PriorityLevelConfiguration) {
	total, waiting, executing := int32(0), 0, 0
	for _, o := range specs {
		shares, _, _ := numbers(&o.Spec)
		total += shares
	}
	for name, o := range specs {
		l := f.levels[name]
		if l == nil {
			l = &level{name: name, exempt: o.Spec.Type == flowcontrolv1.PriorityLevelEnablementExempt, clock: f.config.Clock, now: f.now, tallies: map[string]*tally{}}
			now := f.now()
			l.demand.since, l.demand.began, l.usage = now, now, newUsage(now)
			f.levels[name] = l
		}
		l.mu.Lock()
		l.configureLocked(&o.Spec, f.config.Seats, total, f.now())
		waiting, executing = waiting+len(l.queues)*l.longest, executing+l.nominal
		l.mu.Unlock()
	}
	f.server.configure(f.now(), waiting, executing)
}

func (l *level) configureLocked(s *flowcontrolv1.PriorityLevelConfigurationSpec, seats int, total int32, now time.Duration) {
	shares, lend, borrow := numbers(s)
	if total > 0 {
		l.nominal = int(math.Ceil(float64(seats) * float64(shares) / float64(total)))
	}
	part := func(percent int32) int { return int(math.Round(float64(l.nominal) * float64(percent) / 100)) }
	l.least, l.most = l.nominal-part(lend), l.nominal+seats
	if borrow >= 0 {
		l.most = l.nominal + part(borrow)
	}
	if s.Limited == nil || s.Limited.LimitResponse.Queuing == nil {
		l.resizeLocked(0, 0, 0)
	} else {
		q := s.Limited.LimitResponse.Queuing
		l.resizeLocked(int(q.Queues), int(q.HandSize), int(q.QueueLengthLimit))
	}
	l.usage.waiting.outOf(now, len(l.queues)*l.longest)
	l.usage.executing.outOf(now, l.nominal)
	l.usage.seats.outOf(now, l.nominal)
	l.dispatchLocked(now)
}

// ofNominal bounds one request's part of a level with queues.
const ofNominal = 0.15

// maxSeatsLocked is how many seats one request may take.
func (l *level) maxSeatsLocked() int {
	if len(l.queues) == 0 {
		return widest
	}
	return max(1, min(int(math.Ceil(float64(l.nominal)*ofNominal)), l.nominal/max(l.hand, 1)))
}

// tableLocked makes the schemas ready whose level exists, the mandatory ones in
// any case.
func (f *Fairness) tableLocked(specs map[string]*flowcontrolv1.PriorityLevelConfiguration, schemas []*flowcontrolv1.FlowSchema) *table {
	named := map[string]*flowcontrolv1.FlowSchema{}
	_, mandatory := flowcontrol.Mandatory()
	for _, s := range slices.Concat(mandatory, schemas) {
		named[s.Name] = s
	}
	t := &table{}
	for _, o := range named {
		level := specs[o.Spec.PriorityLevelConfiguration.Name]
		if level == nil {
			continue
		}
		s := f.compileLocked(o, level)
		t.schemas = append(t.schemas, s)
		if s.name == flowcontrolv1.FlowSchemaNameCatchAll {
			t.catchAll = s
		}
	}
	slices.SortFunc(t.schemas, func(a, b *flowSchema) int {
		return cmp.Or(cmp.Compare(named[a.name].Spec.MatchingPrecedence, named[b.name].Spec.MatchingPrecedence), strings.Compare(a.name, b.name))
	})
	return t
}

func (f *Fairness) compileLocked(o *flowcontrolv1.FlowSchema, of *flowcontrolv1.PriorityLevelConfiguration) *flowSchema {
	l := f.levels[of.Name]
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tallies[o.Name] == nil {
		l.tallies[o.Name] = newTally()
	}
	s := &flowSchema{
		name: o.Name, rules: o.Spec.Rules, seed: hash(f.config.Seed, o.Name),
		level: l, maxSeats: l.maxSeatsLocked(), tally: l.tallies[o.Name],
		header: [2][]string{{string(o.UID)}, {string(of.UID)}},
	}
	if m := o.Spec.DistinguisherMethod; m != nil {
		s.method = m.Type
	}
	return s
}

// shareOutLocked moves seats from levels that do not need them to those that do.
func (f *Fairness) shareOutLocked() {
	now := f.now()
	var limited []*level
	var claims []claim
	left, leasts, needs := 0, 0, 0
	for _, l := range f.levels {
		l.mu.Lock()
		left += l.nominal
		if d, ok := l.demand.reset(now); ok {
			l.last, l.smoothed = d, smooth(l.smoothed, d)
		} else {
			l.last.highest = d.highest
		}
		if l.exempt {
			l.limit = max(l.least, int(math.Round(l.last.highest)))
			l.target = float64(l.limit)
			left -= l.limit
		} else {
			need := max(l.least, min(l.nominal, int(math.Round(l.last.highest))))
			l.target = max(float64(need), l.smoothed)
			leasts, needs = leasts+l.least, needs+need
			limited = append(limited, l)
			claims = append(claims, claim{target: l.target, least: float64(need), most: float64(max(l.most, need))})
		}
		l.mu.Unlock()
	}
	parts := f.partsLocked(left, leasts, needs, claims, limited)
	for i, l := range limited {
		l.mu.Lock()
		l.limit = int(math.Round(parts[i]))
		l.dispatchLocked(now)
		l.mu.Unlock()
	}
}

// partsLocked are the seats of the limited levels: what the exempt one leaves, or,
// when that is too little, what was configured as theirs.
func (f *Fairness) partsLocked(left, leasts, needs int, claims []claim, limited []*level) (parts []float64) {
	if left > needs {
		f.fair, parts = share(float64(left), claims)
		return parts
	}
	f.fair = 0
	parts = make([]float64, len(claims))
	for i, l := range limited {
		least := float64(l.least)
		parts[i] = least
		if left > leasts {
			parts[i] += (claims[i].least - least) * float64(left-leasts) / float64(needs-leasts)
		}
	}
	return parts
}
