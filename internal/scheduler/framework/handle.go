package framework

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/scheduler/devices"
	"proa/internal/scheduler/extender"
)

// Handle is what a plugin may use of the scheduler it is part of.
type Handle struct {
	Cache    *client.Cache // informers and writes, as the scheduler's user
	Clock    clock.WithTicker
	Recorder events.EventRecorder
	Args     any // of this plugin in this profile; nil means its defaults

	// PodGroups tells whether scheduling.k8s.io/v1beta1 PodGroups are served.
	PodGroups bool

	// Snapshot is the state that the current cycle sees. It is for PreFilter to
	// Reserve; not for PreEnqueue, hints and the binding's extension points.
	Snapshot *Snapshot
	Devices  *devices.Inventory
	// Nominated returns the pods that wait for victims on a node.
	Nominated func(node string) []*PodInfo
	// NominationOf returns the node promised to a pod, empty for none.
	NominationOf func(uid types.UID) string
	// Nominate promises a node to a pod; an empty node takes the promise back.
	Nominate func(pod *PodInfo, node string)
	// Activate moves a pod to the active queue.
	Activate func(pod *PodInfo)
	// Preempted counts the victims of a preemption; nil: nobody counts.
	Preempted func(victims int)
	// Evicted notes how long it took to delete all victims of a preemption, and what
	// failed; nil: nobody notes it.
	Evicted func(took time.Duration, err error)
	// Allow and Reject answer for a pod that a Permit plugin holds with Wait.
	Allow  func(pod types.UID, plugin string)
	Reject func(pod types.UID, plugin, reason string)
	// Background runs a task that ends with the scheduler.
	Background func(func(ctx context.Context))
	// Extenders are the programs that are asked beside the plugins.
	Extenders []*extender.Extender
	// Trials runs the profile's filters outside of the main course.
	Trials Trials
}

// Trials are the calls of a profile that preemption tries placements with.
type Trials interface {
	Filter(ctx context.Context, state *CycleState, pod *PodInfo, node *NodeInfo) *Status
	FilterWithNominated(ctx context.Context, state *CycleState, pod *PodInfo, node *NodeInfo) (string, *Status)
	AddPod(ctx context.Context, state *CycleState, pod, added *PodInfo, node *NodeInfo) *Status
	RemovePod(ctx context.Context, state *CycleState, pod, removed *PodInfo, node *NodeInfo) *Status
}
