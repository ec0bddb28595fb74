package framework

import corev1 "k8s.io/api/core/v1"

// Resource is a kind of object whose changes can make pods schedulable.
type EventResource string

const (
	AssignedPod    EventResource = "AssignedPod"    // a pod with a node
	UnscheduledPod EventResource = "UnscheduledPod" // the rejected pod itself
	Node           EventResource = "Node"
	Claim          EventResource = "PersistentVolumeClaim"
	Volume         EventResource = "PersistentVolume"
	StorageClass   EventResource = "StorageClass"
	CSINode        EventResource = "CSINode"
	CSIDriver      EventResource = "CSIDriver"
	CSICapacity    EventResource = "CSIStorageCapacity"
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
	UpdateOther

	Update = UpdateNodeAllocatable | UpdateNodeLabel | UpdateNodeTaint | UpdateNodeCondition |
		UpdatePodLabel | UpdatePodScaleDown | UpdatePodToleration | UpdatePodGates | UpdateOther
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

// Hint is what an event means for one rejected pod.
type Hint bool

const (
	QueueSkip Hint = false
	Queue     Hint = true
)

// HintFunc tells whether a change may make pod schedulable. Old is nil for an
// added object, new for a removed one.
type HintFunc func(pod *corev1.Pod, old, new any) Hint

// HintedEvent is an event that a plugin registers for. A nil Hint means Queue.
type HintedEvent struct {
	Event
	Hint HintFunc
}
