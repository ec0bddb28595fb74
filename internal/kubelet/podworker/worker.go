package podworker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/kubelet/cri"
	"proa/internal/kubelet/status"
)

// ending is why and how a pod terminates.
type ending struct {
	removed bool        // the API has it no more
	end     *status.End // phase Failed with this reason
	grace   *int64      // seconds, instead of the pod's own
}

// worker is one pod's state in memory: the newest object, and what the last
// step met. A restart loses nothing but the waiting reasons.
type worker struct {
	w         *Workers
	cancelRun context.CancelFunc
	wake      chan struct{}
	rt        atomic.Pointer[cri.Pod]

	mu         sync.Mutex
	pod        *corev1.Pod // guarded by mu, as are all below
	ending     *ending
	interrupt  context.CancelFunc // of the step in flight
	admitted   bool
	told       bool // that all has ended: others may have taken the room already
	terminated bool
	given      allocation
	pending    *corev1.PodCondition // of a resize that waits

	// Of the run goroutine.
	started  time.Time
	prepared *corev1.Pod                  // the object the cgroup and volumes were made for, by this process
	inForce  *corev1.ResourceRequirements // of the pod's cgroup, once it was made
	waiting  map[string]status.Waiting
	messages map[string]string    // termination messages by container id
	retryAt  map[string]time.Time // containers that wait for another try
	misses   map[string]int       // tries in a row that failed, by container
	tried    *corev1.Pod          // the object of the latest tries
	failures int                  // steps in a row that failed
}

func (p *worker) current() *corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pod
}

// allocated is the pod with the resources that it has.
func (p *worker) allocated() *corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.given.of(p.pod)
}

func (p *worker) active() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.admitted && !p.terminated
}

// takesRoom: what a pod had whose end is told may be given to the next, before its
// files are gone.
func (p *worker) takesRoom() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.admitted && !p.told && !p.terminated
}

func (p *worker) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// update takes a newer object. Deletion, or a shorter grace period, interrupts
// what is going on.
func (p *worker) update(pod *corev1.Pod) {
	p.mu.Lock()
	old := p.pod
	if status.Newer(old, pod) {
		p.mu.Unlock()
		return
	}
	p.pod = pod
	ended := pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
	if (pod.DeletionTimestamp != nil || ended) && p.ending == nil {
		p.ending = &ending{}
		p.stopStepLocked()
	} else if pod.DeletionTimestamp != nil && graceOf(pod) < graceOf(old) {
		p.stopStepLocked()
	}
	p.mu.Unlock()
	p.poke()
}

func (p *worker) terminate(e ending) {
	p.mu.Lock()
	switch {
	case p.ending == nil:
		p.ending = &e
		p.stopStepLocked()
	case e.removed:
		next := *p.ending
		next.removed = true
		p.ending = &next
	case e.grace != nil && !p.terminated && (p.ending.grace == nil || *e.grace < *p.ending.grace):
		next := *p.ending
		next.grace = e.grace
		if next.end == nil {
			next.end = e.end
		}
		p.ending = &next
		p.stopStepLocked()
	}
	p.mu.Unlock()
	p.poke()
}

func (p *worker) stopStepLocked() {
	if p.interrupt != nil {
		p.interrupt()
	}
}

// graceOf is the pod's grace period in seconds, at least 1.
func graceOf(pod *corev1.Pod) int64 {
	g := int64(corev1.DefaultTerminationGracePeriodSeconds)
	switch {
	case pod.DeletionGracePeriodSeconds != nil:
		g = *pod.DeletionGracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		g = *pod.Spec.TerminationGracePeriodSeconds
	}
	return max(g, 1)
}

// snapshot returns what this step works on and a context that newer orders end.
func (p *worker) snapshot(ctx context.Context) (context.Context, context.CancelFunc, *corev1.Pod, *ending) {
	ctx, cancel := context.WithCancel(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.interrupt = cancel
	return ctx, cancel, p.given.of(p.pod), p.ending
}

// errRemoved ends the worker.
var errRemoved = errors.New("pod removed")

// run steps whenever something happened or a step asked for another look.
func (p *worker) run(ctx context.Context) {
	clk := p.w.c.Clock
	p.started = clk.Now()
	timer := clk.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		stepCtx, cancel, pod, end := p.snapshot(ctx)
		after, err := p.step(stepCtx, pod, end)
		interrupted := stepCtx.Err() != nil
		cancel()
		switch {
		case errors.Is(err, errRemoved):
			p.w.drop(pod.UID)
			return
		case ctx.Err() != nil:
			return
		case interrupted:
			continue // there are newer orders
		case err != nil:
			p.failures++
			after = retryDelay(p.failures)
			p.w.c.Log.Warn("sync pod", "pod", pod.Namespace+"/"+pod.Name, "err", err, "retry", after)
		default:
			p.failures = 0
		}
		if after <= 0 {
			after = time.Hour
		}
		timer.Reset(after)
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-timer.C():
		}
	}
}

// retryDelay doubles from half a second to ten.
func retryDelay(failures int) time.Duration {
	return min(500*time.Millisecond<<min(failures-1, 6), 10*time.Second)
}

func (p *worker) step(ctx context.Context, pod *corev1.Pod, end *ending) (time.Duration, error) {
	if end != nil {
		return 0, p.wind(ctx, pod, end)
	}
	if rejected := p.admission(ctx, pod); rejected {
		return 0, nil
	}
	return p.sync(ctx, pod)
}

// admission asks once whether the node takes the pod. One that has started
// before, in an earlier life of this process, stays.
func (p *worker) admission(ctx context.Context, pod *corev1.Pod) (rejected bool) {
	p.mu.Lock()
	done := p.admitted
	p.mu.Unlock()
	if done {
		return false
	}
	p.w.admit.Lock()
	defer p.w.admit.Unlock()
	if pod.Status.StartTime == nil && p.w.c.Admit != nil {
		if end := p.w.c.Admit(ctx, pod, p.w.list((*worker).takesRoom)); end != nil {
			p.w.c.Recorder.Event(pod, corev1.EventTypeWarning, end.Reason, end.Plain())
			p.w.c.Status.Set(pod, status.Failed(pod, *end, p.w.c.Clock.Now()))
			p.mu.Lock()
			p.terminated = true
			p.ending = &ending{end: end}
			p.mu.Unlock()
			return true
		}
	}
	p.mu.Lock()
	p.admitted = true
	p.given = recorded(pod)
	p.mu.Unlock()
	return false
}

// look reads the pod's state from the runtime, starts and stops probes after it
// and reports the status.
func (p *worker) look(ctx context.Context, pod *corev1.Pod) (*cri.Pod, error) {
	rt, err := p.w.c.Runtime.Pod(ctx, pod.UID)
	if err != nil {
		return nil, err
	}
	p.rt.Store(rt)
	return rt, nil
}

// health tells the status generator what the probes know. A container whose
// probe has given no result yet is as ready as the API last said, so that a
// restart of the agent does not take it out of service.
type health struct {
	p   *worker
	pod *corev1.Pod
}
