// Package feature says which of the API a server serves: the feature gates
// (--feature-gates) and the group versions and resources that are on
// (--runtime-config, KEP-3136), both written and refused as upstream's.
package feature

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/component-base/featuregate"
)

// Gates says which feature gates are on. The zero value has every gate at its
// default.
type Gates struct{ set map[string]State }

// known makes the gates of the table, all at their defaults.
func known() featuregate.MutableFeatureGate {
	specs := map[featuregate.Feature]featuregate.FeatureSpec{}
	add := func(names string, spec featuregate.FeatureSpec) {
		for _, name := range strings.Fields(names) {
			specs[featuregate.Feature(name)] = spec
		}
	}
	add(alpha, featuregate.FeatureSpec{PreRelease: featuregate.Alpha})
	add(betaOff, featuregate.FeatureSpec{PreRelease: featuregate.Beta})
	add(beta, featuregate.FeatureSpec{PreRelease: featuregate.Beta, Default: true})
	add(stable, featuregate.FeatureSpec{PreRelease: featuregate.GA, Default: true, LockToDefault: true})
	add(stableOpen, featuregate.FeatureSpec{PreRelease: featuregate.GA, Default: true})
	add(deprecatedOff, featuregate.FeatureSpec{PreRelease: featuregate.Deprecated})
	add(deprecatedOn, featuregate.FeatureSpec{PreRelease: featuregate.Deprecated, Default: true})
	add(deprecatedGone, featuregate.FeatureSpec{PreRelease: featuregate.Deprecated, LockToDefault: true})
	gates := featuregate.NewFeatureGate()
	if err := gates.Add(specs); err != nil {
		panic(fmt.Sprintf("feature: the table contradicts itself: %v", err))
	}
	return gates
}

// ParseGates reads what --feature-gates takes: A=true,B=false, AllAlpha and
// AllBeta among the names. A name that is unknown, a value that is no boolean
// and a change of a locked gate are errors.
func ParseGates(value string) (Gates, error) {
	if value == "" {
		return Gates{}, nil
	}
	gates := known()
	if err := gates.Set(value); err != nil {
		return Gates{}, err
	}
	return Gates{statesOf(gates)}, nil
}

var defaults = sync.OnceValue(func() map[string]State { return statesOf(known()) })

// State is one gate as metrics and /flagz show it.
type State struct {
	Name    string
	Stage   string // ALPHA, BETA, DEPRECATED or empty for GA
	Enabled bool
}

func statesOf(gates featuregate.MutableFeatureGate) map[string]State {
	states := map[string]State{}
	for name, spec := range gates.GetAll() {
		states[string(name)] = State{string(name), string(spec.PreRelease), gates.Enabled(name)}
	}
	return states
}

func (g Gates) states() map[string]State {
	if g.set == nil {
		return defaults()
	}
	return g.set
}

// Enabled reports whether a gate is on. A name outside the table is that of a
// gate which has been GA for so long that it is gone.
func (g Gates) Enabled(name string) bool {
	s, ok := g.states()[name]
	return s.Enabled || !ok
}

// All lists every gate by name.
func (g Gates) All() []State {
	return slices.SortedFunc(maps.Values(g.states()), func(a, b State) int { return strings.Compare(a.Name, b.Name) })
}
