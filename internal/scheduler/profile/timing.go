package profile

import (
	"time"

	"proa/internal/scheduler/framework"
)

// Names of extension points in metrics, beside those of Point.
const (
	timedPreFilter  = "PreFilter"
	timedFilter     = "Filter"
	timedPostFilter = "PostFilter"
	timedAddPod     = "PreFilterExtensionAddPod"
	timedRemovePod  = "PreFilterExtensionRemovePod"
	timedPreScore   = "PreScore"
	timedScore      = "Score"
	timedNormalize  = "ScoreExtensionNormalize"
	timedReserve    = "Reserve"
	timedUnreserve  = "Unreserve"
	timedPermit     = "Permit"
	timedPreBind    = "PreBind"
	timedBind       = "Bind"
	timedPostBind   = "PostBind"
)

// timed reports how long a whole extension point took.
func (p *Profile) timed(point string, began time.Time, s *framework.Status) {
	if p.took != nil {
		p.took("", point, s.Code(), p.clock.Since(began))
	}
}

// call runs one plugin, and reports how long that took for the pods that are sampled.
func (p *Profile) call(state *framework.CycleState, point string, plugin framework.Plugin, f func() *framework.Status) *framework.Status {
	if !state.Sampled || p.took == nil {
		return f()
	}
	began := p.clock.Now()
	s := f()
	p.took(plugin.Name(), point, s.Code(), p.clock.Since(began))
	return s
}

// FilterTook reports one search over the nodes for a pod.
func (p *Profile) FilterTook(began time.Time, failed *framework.Status) {
	p.timed(timedFilter, began, failed)
}
