package scheduler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"proa/internal/scheduler/framework"
)

// permits are the pods that Permit plugins hold back. A pod is registered before
// its plugins are asked: a plugin may tell others of the pod and be answered
// before it has itself returned Wait.
type permits struct {
	mu   sync.Mutex // guards held
	held map[types.UID]*held
}

// held is one pod: the plugins it waits for and, in the end, the answer.
type held struct {
	asking  bool                // the plugins have not all been asked yet
	waiting map[string]struct{} // once they have
	allowed map[string]struct{} // that let it go while it was asking
	refused bool
	answer  chan refusal // one value; zero for approval
}

type refusal struct {
	plugin string
	status *framework.Status
}

// ask registers a pod whose plugins are about to be asked.
func (w *permits) ask(uid types.UID) *held {
	h := &held{asking: true, allowed: map[string]struct{}{}, answer: make(chan refusal, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held == nil {
		w.held = map[types.UID]*held{}
	}
	w.held[uid] = h
	return h
}

// asked says for whom the pod has to wait; for nobody if the plugins are none.
func (w *permits) asked(uid types.UID, h *held, plugins map[string]time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h.asking = false
	h.waiting = map[string]struct{}{}
	for name := range plugins {
		if _, ok := h.allowed[name]; !ok {
			h.waiting[name] = struct{}{}
		}
	}
	w.settleLocked(uid, h)
}

// settleLocked lets the pod go if nobody holds it any more.
func (w *permits) settleLocked(uid types.UID, h *held) {
	if h.asking || h.refused || len(h.waiting) > 0 {
		return
	}
	if w.held[uid] == h {
		delete(w.held, uid)
	}
	h.answer <- refusal{}
}

func (w *permits) len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.held)
}

// Allow says that plugin no longer holds the pod; the last one lets it go.
func (s *Scheduler) Allow(uid types.UID, plugin string) {
	w := &s.permits
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.held[uid]
	switch {
	case h == nil:
	case h.asking:
		h.allowed[plugin] = struct{}{}
	default:
		delete(h.waiting, plugin)
		w.settleLocked(uid, h)
	}
}

// Reject sends a held pod back to the queue.
func (s *Scheduler) Reject(uid types.UID, plugin, reason string) {
	w := &s.permits
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.held[uid]
	if h == nil {
		return
	}
	delete(w.held, uid)
	h.refused = true
	h.answer <- refusal{plugin, framework.NewStatus(framework.Unschedulable, reason)}
}

// permit asks the Permit plugins about a placement. What they make it wait for is
// returned with how long each may take.
func (s *Scheduler) permit(ctx context.Context, pl *placement) (plugin string, wait map[string]time.Duration, status *framework.Status) {
	if !pl.profile.HasPermit() {
		return "", nil, nil
	}
	uid := pl.pod.Pod.UID
	h := s.permits.ask(uid)
	plugin, wait, status = pl.profile.Permit(ctx, pl.state, pl.pod.PodInfo, pl.node)
	s.permits.asked(uid, h, wait)
	if wait != nil {
		pl.held = h
	}
	return plugin, wait, status
}

// waitPermitted blocks while plugins hold the pod. The shortest of their timeouts
// rejects it.
func (s *Scheduler) waitPermitted(ctx context.Context, pl *placement, wait map[string]time.Duration) (string, *framework.Status) {
	if pl.held == nil {
		return "", nil
	}
	began := s.clock.Now()
	plugin, status := s.untilPermitted(ctx, pl, wait)
	s.metrics.permits.WithLabelValues(status.Code().String()).Observe(s.clock.Since(began).Seconds())
	return plugin, status
}

func (s *Scheduler) untilPermitted(ctx context.Context, pl *placement, wait map[string]time.Duration) (string, *framework.Status) {
	names := slices.SortedFunc(maps.Keys(wait), func(a, b string) int { return int(wait[a] - wait[b]) })
	timeout := s.clock.NewTimer(wait[names[0]])
	defer timeout.Stop()
	select {
	case r := <-pl.held.answer:
		return r.plugin, r.status
	case <-timeout.C():
		s.Reject(pl.pod.Pod.UID, names[0], fmt.Sprintf("rejected due to timeout after waiting %v at plugin %v", wait[names[0]], names[0]))
		r := <-pl.held.answer // an approval may have come first
		return r.plugin, r.status
	case <-ctx.Done():
		return "", framework.AsStatus(ctx.Err())
	}
}
