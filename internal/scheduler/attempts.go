package scheduler

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/scheduler/framework"
)

// Attempt is the account of a pod's last cycle without a node.
type Attempt struct {
	Namespace, Name string
	UID             types.UID
	At              time.Time
	Message         string
	Nodes           []NodeVerdict // of the nodes looked at; empty after an error
}

// NodeVerdict is why a node did not fit.
type NodeVerdict struct {
	Node, Plugin string
	Reasons      []string
	// Preemptable: other pods' leaving could make the node fit.
	Preemptable bool
}

// maxAttempts bounds the memory: an account holds a line per node.
const maxAttempts = 256

// attempts keeps the latest accounts, one per pod.
type attempts struct {
	mu    sync.Mutex // guards what follows
	byPod map[types.UID]attempt
	order []types.UID // oldest first; may name pods that are gone
}

type attempt struct {
	Attempt
	diagnosis *framework.Diagnosis
}

func newAttempts() *attempts { return &attempts{byPod: map[types.UID]attempt{}} }

func (a *attempts) note(pod *corev1.Pod, at time.Time, message string, d *framework.Diagnosis) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.byPod[pod.UID]; !ok {
		a.order = append(a.order, pod.UID)
	}
	a.byPod[pod.UID] = attempt{
		Attempt{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, At: at, Message: message}, d,
	}
	for len(a.order) > maxAttempts {
		delete(a.byPod, a.order[0])
		a.order = a.order[1:]
	}
}

func (a *attempts) forget(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.byPod, uid)
}

// LastAttempt returns the account of a pod that waits; false when it has none.
func (s *Scheduler) LastAttempt(uid types.UID) (Attempt, bool) {
	s.attempts.mu.Lock()
	found, ok := s.attempts.byPod[uid]
	s.attempts.mu.Unlock()
	if !ok || found.diagnosis == nil {
		return found.Attempt, ok
	}
	for _, r := range found.diagnosis.Rejections {
		found.Nodes = append(found.Nodes, NodeVerdict{
			Node: r.Name, Plugin: r.Plugin, Reasons: r.Status.Reasons(),
			Preemptable: r.Status.Code() == framework.Unschedulable,
		})
	}
	return found.Attempt, true
}
