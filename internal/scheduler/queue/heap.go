package queue

import (
	"container/heap"

	"k8s.io/apimachinery/pkg/types"

	"proa/internal/scheduler/framework"
)

// podHeap is a priority queue of pods that can also be found by UID.
type podHeap struct {
	items podItems
}

func newPodHeap(less func(a, b *framework.QueuedPodInfo) bool) *podHeap {
	return &podHeap{podItems{less: less, at: map[types.UID]int{}}}
}

func (h *podHeap) len() int { return len(h.items.pods) }

func (h *podHeap) push(p *framework.QueuedPodInfo) { heap.Push(&h.items, p) }

// peek returns the first pod, nil when there is none.
func (h *podHeap) peek() *framework.QueuedPodInfo {
	if h.len() == 0 {
		return nil
	}
	return h.items.pods[0]
}

func (h *podHeap) pop() *framework.QueuedPodInfo {
	if h.len() == 0 {
		return nil
	}
	return heap.Pop(&h.items).(*framework.QueuedPodInfo)
}

func (h *podHeap) get(uid types.UID) *framework.QueuedPodInfo {
	if i, ok := h.items.at[uid]; ok {
		return h.items.pods[i]
	}
	return nil
}

func (h *podHeap) remove(uid types.UID) *framework.QueuedPodInfo {
	i, ok := h.items.at[uid]
	if !ok {
		return nil
	}
	return heap.Remove(&h.items, i).(*framework.QueuedPodInfo)
}

// fix restores the order after the pod's place in it changed.
func (h *podHeap) fix(uid types.UID) {
	if i, ok := h.items.at[uid]; ok {
		heap.Fix(&h.items, i)
	}
}

// podItems implements heap.Interface. Pods that less takes for equal keep the
// order in which they first came.
type podItems struct {
	pods []*framework.QueuedPodInfo
	at   map[types.UID]int
	less func(a, b *framework.QueuedPodInfo) bool
}

func (h *podItems) Len() int { return len(h.pods) }

func (h *podItems) Less(i, j int) bool {
	a, b := h.pods[i], h.pods[j]
	if h.less(a, b) {
		return true
	}
	return !h.less(b, a) && a.Seq < b.Seq
}

func (h *podItems) Swap(i, j int) {
	h.pods[i], h.pods[j] = h.pods[j], h.pods[i]
	h.at[h.pods[i].Pod.UID], h.at[h.pods[j].Pod.UID] = i, j
}

func (h *podItems) Push(x any) {
	p := x.(*framework.QueuedPodInfo)
	h.at[p.Pod.UID] = len(h.pods)
	h.pods = append(h.pods, p)
}

func (h *podItems) Pop() any {
	last := len(h.pods) - 1
	p := h.pods[last]
	h.pods[last] = nil
	h.pods = h.pods[:last]
	delete(h.at, p.Pod.UID)
	return p
}
