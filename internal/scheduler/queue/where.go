package queue

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// State is the part of the queue that a pod is in.
type State string

const (
	Active        State = "active"
	Backoff       State = "backoff"
	Unschedulable State = "unschedulable"
	Gated         State = "gated"
	InFlight      State = "in flight" // being scheduled or bound
	Absent        State = ""
)

// Whereabouts tell where in the queue a pod is.
type Whereabouts struct {
	Namespace string `json:"-"`
	Name      string `json:"-"`
	State     State  `json:"state"`
	// GatedBy is the PreEnqueue plugin that keeps the pod out.
	GatedBy string `json:"gatedBy,omitempty"`
	// Until is when a backoff ends, or when a waiting pod is tried without any event.
	Until time.Time `json:"until,omitzero"`
}

// Where returns where a pod is.
func (q *Queue) Where(uid types.UID) Whereabouts {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.flights[uid] != nil {
		return Whereabouts{State: InFlight}
	}
	p := q.findLocked(uid)
	if p == nil {
		return Whereabouts{}
	}
	w := Whereabouts{Namespace: p.Pod.Namespace, Name: p.Pod.Name, GatedBy: p.GatedBy}
	switch {
	case q.active.get(uid) != nil:
		w.State = Active
	case q.waiting[uid] == nil:
		w.State, w.Until = Backoff, p.Expires
	case p.GatedBy != "":
		w.State = Gated
	default:
		w.State, w.Until = Unschedulable, p.Added.Add(q.config.MaxWait)
	}
	return w
}
