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
	add(deprecatedKept, featuregate.FeatureSpec{PreRelease: featuregate.Deprecated, Default: true, LockToDefault: true})
	gates := featuregate.NewFeatureGate()
	err := gates.Add(specs)
	if err == nil {
		err = gates.AddDependencies(copyOf(requires))
	}
	if err != nil {
		panic(fmt.Sprintf("feature: the table contradicts itself: %v", err))
	}
	return gates
}

// copyOf makes a map that its new owner may sort.
func copyOf(m map[featuregate.Feature][]featuregate.Feature) map[featuregate.Feature][]featuregate.Feature {
	out := map[featuregate.Feature][]featuregate.Feature{}
	for name, others := range m {
		out[name] = slices.Clone(others)
	}
	return out
}

// ParseGates reads what --feature-gates takes: A=true,B=false, AllAlpha and
// AllBeta among the names, each name with or without kube: before it. A name
// that is unknown, a value that is no boolean, a change of a locked gate and
// one of a gate that Proa cannot turn are errors; AllAlpha and AllBeta leave
// the latter as they are.
func ParseGates(value string) (Gates, error) {
	if value == "" {
		return Gates{}, nil
	}
	names, err := ofKube(value)
	if err != nil {
		return Gates{}, err
	}
	gates := known()
	if err := gates.Set(strings.Join(names, ",")); err != nil {
		return Gates{}, err
	}
	states := statesOf(gates)
	for _, name := range strings.Fields(bound) {
		is, was := states[name], defaults()[name]
		if is.Enabled == was.Enabled {
			continue
		}
		if slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, name+"=") }) {
			return Gates{}, fmt.Errorf("cannot set feature gate %s to %v, Proa does not act on it", name, is.Enabled)
		}
		states[name] = was
	}
	return Gates{states}, nil
}

// ofKube takes the name of the component off each gate, as kube-apiserver's
// flag may have it. There is one component, kube.
func ofKube(value string) ([]string, error) {
	var names []string
	for _, pair := range strings.Split(value, ",") {
		pair = strings.TrimSpace(pair)
		if component, gate, ok := strings.Cut(pair, ":"); ok {
			if component != "kube" {
				return nil, fmt.Errorf("component not registered: %s", component)
			}
			pair = gate
		}
		names = append(names, pair)
	}
	return names, nil
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
