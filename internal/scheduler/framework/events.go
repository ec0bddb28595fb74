package framework

import (
	"math/bits"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Resource is a kind of object whose changes can make pods schedulable.
type EventResource string

const (
	AssignedPod    EventResource = "AssignedPod"    // a pod with a node
	UnscheduledPod EventResource = "UnscheduledPod" // the rejected pod itself
	Node           EventResource = "Node"
	Claim          EventResource = "PersistentVolumeClaim"
	Volume         EventResource = "PersistentVolume"
	StorageClass   EventResource = "storage.k8s.io/StorageClass"
	CSINode        EventResource = "storage.k8s.io/CSINode"
	CSIDriver      EventResource = "storage.k8s.io/CSIDriver"
	CSICapacity    EventResource = "storage.k8s.io/CSIStorageCapacity"
	DeviceClaim    EventResource = "resource.k8s.io/ResourceClaim"
	DeviceSlice    EventResource = "resource.k8s.io/ResourceSlice" // or the taints that a rule puts on its devices
	DeviceClass    EventResource = "resource.k8s.io/DeviceClass"
	WildCard       EventResource = "*"
)

// Action is a set of ways in which an object changed.
type Action uint32

const (
	Add Action = 1 << iota
	Delete
	UpdateNodeAllocatable
	UpdateNodeLabel
	UpdateNodeTaint
	UpdateNodeCondition
	UpdatePodLabel
	UpdatePodScaleDown
	UpdatePodToleration
	UpdatePodGates
	UpdatePodGeneratedClaim // a resource claim was made for it
	UpdateOther

	Update = UpdateNodeAllocatable | UpdateNodeLabel | UpdateNodeTaint | UpdateNodeCondition |
		UpdatePodLabel | UpdatePodScaleDown | UpdatePodToleration | UpdatePodGates | UpdatePodGeneratedClaim | UpdateOther
	All = Add | Delete | Update
)

// Event is a change in the cluster.
type Event struct {
	Resource EventResource
	Action   Action
}

// Match tells whether a registered event r covers the event e that happened.
func (r Event) Match(e Event) bool {
	return (r.Resource == WildCard || e.Resource == WildCard || r.Resource == e.Resource) && r.Action&e.Action != 0
}

// actionNames are upstream's, by bit.
var actionNames = []string{
	"Add", "Delete", "UpdateNodeAllocatable", "UpdateNodeLabel", "UpdateNodeTaint", "UpdateNodeCondition",
	"UpdatePodLabel", "UpdatePodScaleDown", "UpdatePodToleration", "UpdatePodSchedulingGatesEliminated",
	"UpdatePodGeneratedResourceClaim", "Update",
}

// Label names an event in metrics; of several actions at once the first counts.
func (r Event) Label() string {
	if r.Action&All == 0 {
		return string(r.Resource)
	}
	return string(r.Resource) + actionNames[bits.TrailingZeros32(uint32(r.Action&All))]
}

// Hint is what an event means for one rejected pod.
type Hint bool

const (
	QueueSkip Hint = false
	Queue     Hint = true
)

func (h Hint) String() string {
	if h == Queue {
		return "Queue"
	}
	return "QueueSkip"
}

// HintFunc tells whether a change may make pod schedulable. Old is nil for an
// added object, new for a removed one.
type HintFunc func(pod *corev1.Pod, old, new any) Hint

// HintedEvent is an event that a plugin registers for. A nil Hint means Queue.
type HintedEvent struct {
	Event
	Hint HintFunc
	// Concerns names the only pods that a change may help, unless it may help any.
	// Nil: any. It spares asking Hint about every waiting pod.
	Concerns func(old, new any) (pods []types.UID, any bool)
}
