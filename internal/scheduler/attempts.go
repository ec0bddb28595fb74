package scheduler

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/queue"
)

// Attempt is the account of a pod's last cycle without a node.
type Attempt struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Scheduler string    `json:"scheduler"` // its profile
	At        time.Time `json:"at"`
	Attempts  int       `json:"attempts"` // cycles so far
	// Reason and Message are those of the PodScheduled condition.
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// RejectedBy are the plugins that have to be satisfied; PendingOn those of them
	// that wait for something under way.
	RejectedBy []string `json:"rejectedBy,omitempty"`
	PendingOn  []string `json:"pendingOn,omitempty"`
	// PreFilter says why no node was looked at; Untried why some were not.
	PreFilter string `json:"preFilter,omitempty"`
	Untried   string `json:"untried,omitempty"`
	// PostFilter is what preemption said; NominatedNode is where it makes room.
	PostFilter    string        `json:"postFilter,omitempty"`
	NominatedNode string        `json:"nominatedNode,omitempty"`
	AllNodes      int           `json:"allNodes"`
	Nodes         []NodeVerdict `json:"nodes,omitempty"` // those looked at; empty after an error
	// Queue is where the pod is now.
	Queue queue.Whereabouts `json:"queue"`
}

// NodeVerdict is why a node did not fit.
type NodeVerdict struct {
	Node    string   `json:"node"`
	Plugin  string   `json:"plugin"`
	Reasons []string `json:"reasons"`
	// Preemptable: other pods' leaving could make the node fit.
	Preemptable bool `json:"preemptable,omitempty"`
}

// An account holds a line per node, so both numbers bound the memory.
const (
	maxAttempts     = 256
	maxAttemptLines = 1 << 18
)

// attempts keeps the latest accounts, one per pod.
type attempts struct {
	mu    sync.Mutex // guards what follows
	byPod map[types.UID]attempt
	order []types.UID // oldest first; may name pods that are gone
	lines int
}

type attempt struct {
	Attempt
	diagnosis *framework.Diagnosis
}

func (a *attempt) lines() int {
	if a.diagnosis == nil {
		return 0
	}
	return len(a.diagnosis.Rejections)
}

func newAttempts() *attempts { return &attempts{byPod: map[types.UID]attempt{}} }

// note keeps an account as its pod's only one, and drops the oldest if need be.
func (a *attempts) note(account Attempt, d *framework.Diagnosis) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.byPod[account.UID]; ok {
		a.dropLocked(account.UID)
	} else {
		a.order = append(a.order, account.UID)
	}
	latest := attempt{account, d}
	a.byPod[account.UID] = latest
	a.lines += latest.lines()
	for len(a.order) > maxAttempts || a.lines > maxAttemptLines && len(a.order) > 1 {
		oldest := a.order[0]
		a.order = a.order[1:]
		if oldest == account.UID { // it is the latest as well
			a.order = append(a.order, oldest)
			continue
		}
		a.dropLocked(oldest)
	}
}

func (a *attempts) dropLocked(uid types.UID) {
	if old, ok := a.byPod[uid]; ok {
		a.lines -= old.lines()
		delete(a.byPod, uid)
	}
}

func (a *attempts) forget(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dropLocked(uid)
}

// account notes why a cycle ended without a node.
func (s *Scheduler) account(pod *framework.PodInfo, tried int, f *failure, message, nomination string) {
	p := pod.Pod
	account := Attempt{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, Scheduler: p.Spec.SchedulerName,
		At: s.clock.Now(), Attempts: tried, Reason: f.reason(), Message: message, NominatedNode: nomination,
	}
	if d := f.diagnosis; d != nil {
		account.AllNodes, account.RejectedBy, account.PendingOn = d.AllNodes, d.RejectedBy, d.PendingOn
		account.PreFilter, account.PostFilter = d.PreFilter, d.PostFilter
		if len(d.Rejections) < d.AllNodes {
			account.Untried = d.Untried.Message()
		}
	}
	s.attempts.note(account, f.diagnosis)
}

// LastAttempt returns the account of a pod that waits; false when it has none.
// A gated pod has not been tried: its account has its name and its Queue only.
func (s *Scheduler) LastAttempt(uid types.UID) (Attempt, bool) {
	s.attempts.mu.Lock()
	found, ok := s.attempts.byPod[uid]
	s.attempts.mu.Unlock()
	found.Queue = s.queue.Where(uid)
	if !ok {
		found.UID = uid
		found.Namespace, found.Name = found.Queue.Namespace, found.Queue.Name
		return found.Attempt, found.Queue.GatedBy != ""
	}
	if found.diagnosis == nil {
		return found.Attempt, true
	}
	found.Nodes = make([]NodeVerdict, 0, len(found.diagnosis.Rejections))
	for _, r := range found.diagnosis.Rejections {
		found.Nodes = append(found.Nodes, NodeVerdict{
			Node: r.Name, Plugin: r.Plugin, Reasons: r.Status.Reasons(),
			Preemptable: r.Status.Code() == framework.Unschedulable,
		})
	}
	return found.Attempt, true
}
