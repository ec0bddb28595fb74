package probe

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"proa/internal/kubelet/cri"
	"proa/internal/kubelet/events"
)

// target is the container a probe asks.
type target struct {
	pod       *corev1.Pod
	spec      *corev1.Container
	container *cri.Container
	host      string // where network probes connect unless the probe names a host
}

// attempts is how often a probe that could not be carried out is tried before
// it counts as failed.
const attempts = 3

type worker struct {
	m       *Manager
	kind    Kind
	target  target
	probe   *corev1.Probe
	cancel  context.CancelFunc
	trigger chan struct{}

	result Result // guarded by m.mu

	last Result // of the run goroutine: outcome of the latest probe
	row  int32  // how many outcomes in a row were like last
}

func (w *worker) wake() {
	select {
	case w.trigger <- struct{}{}:
	default:
	}
}

// run probes first when the initial delay is over, then every period.
func (w *worker) run(ctx context.Context) {
	clk := w.m.c.Clock
	delay := time.Duration(w.probe.InitialDelaySeconds)*time.Second - clk.Since(w.target.container.Started)
	period := time.Duration(max(w.probe.PeriodSeconds, 1)) * time.Second
	timer := clk.NewTimer(max(delay, 0))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.trigger:
			if clk.Since(w.target.container.Started) < time.Duration(w.probe.InitialDelaySeconds)*time.Second {
				continue
			}
		case <-timer.C():
		}
		if w.kind != Startup && !w.m.startedUp(w.target.container.ID) {
			timer.Reset(period)
			continue
		}
		if done := w.once(ctx); done {
			return
		}
		timer.Reset(period)
	}
}

// once probes and applies the thresholds. A startup probe is done when it
// succeeded; a liveness or startup probe when it failed, because its container
// is about to be replaced.
func (w *worker) once(ctx context.Context) (done bool) {
	outcome, output, err := w.attempt(ctx)
	if ctx.Err() != nil {
		return true
	}
	w.report(outcome, output, err)
	good := outcome == pass || outcome == warn
	r := Failure
	if good {
		r = Success
	}
	w.count(r)
	if r == w.last {
		w.row++
	} else {
		w.last, w.row = r, 1
	}
	if (r == Failure && w.row < max(w.probe.FailureThreshold, 1)) || (r == Success && w.row < max(w.probe.SuccessThreshold, 1)) {
		return false
	}
	w.m.set(w, r)
	switch w.kind {
	case Startup:
		return true
	case Liveness:
		return r == Failure
	}
	return false
}

func (w *worker) attempt(ctx context.Context) (outcome, string, error) {
	var o outcome
	var output string
	var err error
	for range attempts {
		if o, output, err = w.ask(ctx); err == nil {
			return o, output, nil
		}
	}
	return o, output, err
}

func (w *worker) report(o outcome, output string, err error) {
	ref := events.Container(w.target.pod, w.target.spec)
	rec := w.m.c.Recorder
	switch {
	case err != nil:
		rec.Eventf(ref, corev1.EventTypeWarning, "Unhealthy", "%s probe errored and resulted in %s state: %v", w.kind, o, err)
	case o == warn:
		rec.Eventf(ref, corev1.EventTypeWarning, "ProbeWarning", "%s probe warning: %s", w.kind, output)
	case o == fail:
		rec.Eventf(ref, corev1.EventTypeWarning, "Unhealthy", "%s probe failed: %s", w.kind, output)
	}
}

// GracePeriod is how long a container gets to stop after a failed liveness or
// startup probe: the probe's own setting, or nil.
func GracePeriod(p *corev1.Probe) *int64 {
	if p == nil || p.TerminationGracePeriodSeconds == nil {
		return nil
	}
	return ptr.To(*p.TerminationGracePeriodSeconds)
}
