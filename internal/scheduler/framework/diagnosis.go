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

// Copy returns a diagnosis to add to; the account of the nodes is shared.
func (d *Diagnosis) Copy() *Diagnosis {
	c := *d
	c.Rejections = slices.Clip(d.Rejections)
	c.RejectedBy, c.PendingOn = slices.Clone(d.RejectedBy), slices.Clone(d.PendingOn)
	return &c
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
	msg := fmt.Sprintf("0/%d nodes are available: %s.", d.AllNodes, d.PreFilter)
	if d.PreFilter == "" {
		counts := map[*Status]int{}
		for i := 0; i < len(d.Rejections); { // neighbours tend to say the same
			status, first := d.Rejections[i].Status, i
			for i < len(d.Rejections) && d.Rejections[i].Status == status {
				i++
			}
			counts[status] += i - first
		}
		if rest := d.AllNodes - len(d.Rejections); rest > 0 && d.Untried != nil {
			counts[d.Untried] += rest
		}
		msg = NoneAvailable(d.AllNodes, counts)
	}
	if d.PostFilter != "" {
		msg += " " + d.PostFilter
	}
	return msg
}

// NoneAvailable says how many of all nodes gave which reason.
func NoneAvailable(all int, counts map[*Status]int) string {
	byReason := map[string]int{}
	for s, n := range counts {
		if n == 0 {
			continue
		}
		for _, reason := range s.Reasons() {
			byReason[reason] += n
		}
	}
	lines := make([]string, 0, len(byReason))
	for reason, n := range byReason {
		lines = append(lines, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(lines)
	msg := fmt.Sprintf("0/%d nodes are available:", all)
	if len(lines) > 0 {
		msg += " " + strings.Join(lines, ", ") + "."
	}
	return msg
}
