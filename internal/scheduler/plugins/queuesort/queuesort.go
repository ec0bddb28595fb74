// Package queuesort has the most important pod first, then the one that waits longest.
package queuesort

import "proa/internal/scheduler/framework"

const Name = "PrioritySort"

type Plugin struct{}

func New(*framework.Handle) (framework.Plugin, error) { return Plugin{}, nil }

func (Plugin) Name() string { return Name }

func (Plugin) Less(a, b *framework.QueuedPodInfo) bool {
	if a.Priority != b.Priority {
		return a.Priority > b.Priority
	}
	return a.Added.Before(b.Added)
}

func (Plugin) EventsToRegister() []framework.HintedEvent { return nil }
