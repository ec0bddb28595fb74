package queue

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/scheduler/framework"
)

// Nominations are the nodes promised to pods whose victims are on their way out.
type Nominations struct {
	mu     sync.RWMutex // guards what follows
	byNode map[string][]*framework.PodInfo
	node   map[types.UID]string
}

func newNominations() *Nominations {
	return &Nominations{byNode: map[string][]*framework.PodInfo{}, node: map[types.UID]string{}}
}

// Nominate promises node to pod; an empty node takes the promise back.
func (n *Nominations) Nominate(pod *framework.PodInfo, node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.removeLocked(pod.Pod.UID)
	if node != "" {
		n.node[pod.Pod.UID] = node
		n.byNode[node] = append(n.byNode[node], pod)
	}
}

// NominateFromStatus takes in what a pod's status says, if it says something.
func (n *Nominations) NominateFromStatus(pod *framework.PodInfo) {
	if node := pod.Pod.Status.NominatedNodeName; node != "" {
		n.Nominate(pod, node)
	}
}

// Renominate takes in what a new version of a pod's status says. A status without
// a node counts if the one before had one; otherwise it is merely behind a promise.
func (n *Nominations) Renominate(old *corev1.Pod, pod *framework.PodInfo) {
	was, is := old.Status.NominatedNodeName, pod.Pod.Status.NominatedNodeName
	switch {
	case is != was:
		n.Nominate(pod, is)
	case n.NominationOf(pod.Pod.UID) != "":
		n.Nominate(pod, n.NominationOf(pod.Pod.UID))
	}
}

// Unnominate takes a promise back.
func (n *Nominations) Unnominate(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.removeLocked(uid)
}

func (n *Nominations) removeLocked(uid types.UID) {
	node, ok := n.node[uid]
	if !ok {
		return
	}
	delete(n.node, uid)
	n.byNode[node] = slices.DeleteFunc(n.byNode[node], func(p *framework.PodInfo) bool { return p.Pod.UID == uid })
	if len(n.byNode[node]) == 0 {
		delete(n.byNode, node)
	}
}

// NominatedTo returns the pods that node is promised to.
func (n *Nominations) NominatedTo(node string) []*framework.PodInfo {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return slices.Clone(n.byNode[node])
}

// NominationOf returns the node promised to a pod.
func (n *Nominations) NominationOf(uid types.UID) string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.node[uid]
}

// AnyNominated tells whether some node is promised.
func (n *Nominations) AnyNominated() bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return len(n.node) > 0
}
