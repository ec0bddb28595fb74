package profile

import "proa/internal/scheduler/framework"

// Counter counts calls.
type Counter interface{ Add(n float64) }

type uncounted struct{}

func (uncounted) Add(float64) {}

// count gives the plugins of a point their counters.
func count[T framework.Plugin](list []at[T], c *Config, point Point) {
	for i := range list {
		list[i].calls = uncounted{}
		if c.Count != nil {
			list[i].calls = c.Count(point, list[i].plugin.Name())
		}
	}
}

// Filtered counts the calls of a search: so many nodes were asked about, of which
// plugins rejected some, so that no later plugin was asked.
func (p *Profile) Filtered(state *framework.CycleState, nodes int, rejected map[string]int) {
	for i := range p.filter {
		f := &p.filter[i]
		if state.SkipFilter&f.bit != 0 {
			continue
		}
		f.calls.Add(float64(nodes))
		nodes -= rejected[f.plugin.Name()]
	}
}
