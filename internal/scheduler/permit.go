package scheduler

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"proa/internal/scheduler/framework"
)

// permits are the pods that Permit plugins hold back.
type permits struct {
	mu   sync.Mutex // guards held
	held map[types.UID]*held
}

// held is one pod: the plugins it waits for and, in the end, the answer.
type held struct {
	waiting map[string]struct{}
	answer  chan refusal // one value; zero for approval
}

type refusal struct {
	plugin string
	status *framework.Status
}

func (w *permits) hold(uid types.UID, plugins map[string]time.Duration) *held {
	h := &held{waiting: map[string]struct{}{}, answer: make(chan refusal, 1)}
	for name := range plugins {
		h.waiting[name] = struct{}{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held == nil {
		w.held = map[types.UID]*held{}
	}
	w.held[uid] = h
	return h
}

// Allow says that plugin no longer holds the pod; the last one lets it go.
func (s *Scheduler) Allow(uid types.UID, plugin string) {
	w := &s.permits
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.held[uid]
	if h == nil {
		return
	}
	delete(h.waiting, plugin)
	if len(h.waiting) == 0 {
		delete(w.held, uid)
		h.answer <- refusal{}
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
	h.answer <- refusal{plugin, framework.NewStatus(framework.Unschedulable, reason)}
}

// waitPermitted blocks while plugins hold the pod. The shortest of their timeouts
// rejects it.
func (s *Scheduler) waitPermitted(ctx context.Context, pl *placement, wait map[string]time.Duration) (string, *framework.Status) {
	if pl.held == nil {
		return "", nil
	}
	names := make([]string, 0, len(wait))
	for name := range wait {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return int(wait[a] - wait[b]) })
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
