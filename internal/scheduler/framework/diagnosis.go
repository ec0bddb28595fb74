package framework

import (
	"fmt"
	"slices"
	"strings"
)

// Rejection is why one node does not fit.
type Rejection struct {
	Node   *NodeInfo // of the cycle: not to be looked at after it
	Name   string
	Plugin string
	Status *Status
}

// Diagnosis is the account of a cycle that found no node.
type Diagnosis struct {
	AllNodes   int
	Rejections []Rejection // of the nodes that were tried
	// Untried is the status of the other nodes, which PreFilter ruled out.
	Untried    *Status
	PreFilter  string // message of the PreFilter plugin that rejected the pod everywhere
	PostFilter string
	RejectedBy []string // plugins, each once
	PendingOn  []string
}

// Blame notes that plugin rejected the pod.
func (d *Diagnosis) Blame(plugin string, s *Status) {
	if !slices.Contains(d.RejectedBy, plugin) {
		d.RejectedBy = append(d.RejectedBy, plugin)
	}
	if s.Code() == Pending && !slices.Contains(d.PendingOn, plugin) {
		d.PendingOn = append(d.PendingOn, plugin)
	}
}

// Message is the sentence of the pod's condition and of its event.
func (d *Diagnosis) Message() string {
	msg := fmt.Sprintf("0/%d nodes are available:", d.AllNodes)
	if d.PreFilter != "" {
		msg += " " + d.PreFilter + "."
	} else if reasons := d.histogram(); len(reasons) > 0 {
		msg += " " + strings.Join(reasons, ", ") + "."
	}
	if d.PostFilter != "" {
		msg += " " + d.PostFilter
	}
	return msg
}

func (d *Diagnosis) histogram() []string {
	counts := map[string]int{}
	for _, r := range d.Rejections {
		for _, reason := range r.Status.Reasons() {
			counts[reason]++
		}
	}
	if rest := d.AllNodes - len(d.Rejections); rest > 0 {
		for _, reason := range d.Untried.Reasons() {
			counts[reason] += rest
		}
	}
	lines := make([]string, 0, len(counts))
	for reason, n := range counts {
		lines = append(lines, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(lines)
	return lines
}
