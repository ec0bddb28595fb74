package queue

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"proa/internal/scheduler/framework"
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

// By names what rejects a pod, and whose pod it is.
type By struct{ Plugin, Scheduler string }

// Rejections counts the waiting pods by what rejects them.
func (q *Queue) Rejections() map[By]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	counts := map[By]int{}
	for _, p := range q.waiting {
		if p.GatedBy != "" {
			continue
		}
		for _, plugin := range p.RejectedBy {
			counts[By{plugin, p.Pod.Spec.SchedulerName}]++
		}
	}
	return counts
}

// Find returns a pod that waits, wherever it does.
func (q *Queue) Find(uid types.UID) (*framework.PodInfo, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if p := q.findLocked(uid); p != nil {
		return p.PodInfo, true
	}
	return nil, false
}
