// Package eviction defends the node against its pods. While less memory, disk or
// process ids are left than a threshold asks for, the node says so in its conditions,
// takes no pods that would make it worse, clears what nothing uses, and then ends pods
// one by one. Pods that exceed a limit of local storage are ended too (KEP-361).
//
// An idle node costs a few small reads and a statfs every ten seconds. Pods are
// measured only when one has to be chosen, or limits its own storage.
package eviction

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"proa/internal/kubelet/admit"
	"proa/internal/kubelet/status"
)

const (
	defaultInterval   = 10 * time.Second
	defaultTransition = 5 * time.Minute
	immediate         = 1 // second of grace for pods that have to go at once
	goneTimeout       = 30 * time.Second
	goneInterval      = time.Second
)

// Config of a Manager. Fields without a remark are required.
type Config struct {
	Thresholds []Threshold
	// Transition is how long a condition stays after it was last called for.
	// Default 5 min.
	Transition time.Duration
	// MaxPodGrace bounds the grace period of pods evicted for a soft threshold, in
	// seconds.
	MaxPodGrace int64
	// LimitStorage ends pods that exceed their limits of local storage.
	LimitStorage bool
	Interval     time.Duration // between observations; default 10 s

	// Node measures what thresholds are about.
	Node func(context.Context) (*statsapi.NodeStats, error)
	// Disks tells how the runtime's file systems lie; asked until it answers once.
	Disks func(context.Context) (Disks, error)
	// Usage measures pods; nil stands for all.
	Usage func(ctx context.Context, pods []types.UID) ([]statsapi.PodStats, error)
	// Pods are those that take up room on the node.
	Pods func() []*corev1.Pod
	// Static reports whether a pod comes from the node itself. Nil: none does.
	Static func(*corev1.Pod) bool
	// Evict ends a pod, in the background.
	Evict func(pod *corev1.Pod, end status.End, graceSeconds *int64)
	// ClearContainers and ClearImages remove what no pod uses.
	ClearContainers, ClearImages func(context.Context) error
	// Changed is told when the node's conditions have changed. Optional.
	Changed func()

	Recorder record.EventRecorder
	NodeRef  *corev1.ObjectReference
	Clock    clock.WithTicker
	Log      *slog.Logger
}

// Manager of one node. It is safe for concurrent use.
type Manager struct {
	c       Config
	metrics *metrics
	disks   *Disks // of the Run goroutine, as is state; nil before they are known
	state   *state

	mu         sync.Mutex
	conditions []corev1.NodeConditionType // guarded by mu
}

// New makes a Manager.
func New(c Config) *Manager {
	if c.Interval == 0 {
		c.Interval = defaultInterval
	}
	if c.Transition == 0 {
		c.Transition = defaultTransition
	}
	if c.Static == nil {
		c.Static = func(*corev1.Pod) bool { return false }
	}
	if c.Changed == nil {
		c.Changed = func() {}
	}
	return &Manager{c: c, metrics: newMetrics(), state: newState(c.Thresholds)}
}

// Conditions are the pressures that the node is under, by name. The slice is not to be
// changed.
func (m *Manager) Conditions() []corev1.NodeConditionType {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.conditions
}

func (m *Manager) setConditions(now []corev1.NodeConditionType) {
	m.mu.Lock()
	same := slices.Equal(m.conditions, now)
	m.conditions = now
	m.mu.Unlock()
	if !same {
		m.c.Changed()
	}
}

// Run watches over the node until ctx ends. After an eviction it looks again as soon as
// the pods are gone.
func (m *Manager) Run(ctx context.Context) error {
	if len(m.c.Thresholds) == 0 && !m.c.LimitStorage {
		<-ctx.Done()
		return ctx.Err()
	}
	tick := m.c.Clock.NewTicker(m.c.Interval)
	defer tick.Stop()
	for {
		evicted, err := m.Look(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			m.c.Log.Warn("watch over the node's resources", "err", err)
		case len(evicted) > 0:
			m.await(ctx, evicted)
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C():
		}
	}
}

// await waits until evicted pods have left the node, or for half a minute.
func (m *Manager) await(ctx context.Context, evicted []types.UID) {
	deadline := m.c.Clock.Now().Add(goneTimeout)
	for m.c.Clock.Now().Before(deadline) {
		select {
		case <-ctx.Done():
			return
		case <-m.c.Clock.After(goneInterval):
		}
		if !slices.ContainsFunc(m.c.Pods(), func(p *corev1.Pod) bool { return slices.Contains(evicted, p.UID) }) {
			return
		}
	}
	m.c.Log.Warn("evicted pods are still there", "pods", evicted)
}

// Look observes once and acts. It returns the pods that it evicted.
func (m *Manager) Look(ctx context.Context) ([]types.UID, error) {
	if err := m.learnDisks(ctx); err != nil {
		return nil, err
	}
	n, err := m.c.Node(ctx)
	if err != nil {
		return nil, fmt.Errorf("measure the node: %w", err)
	}
	seen := observe(n)
	conditions, due := m.state.note(seen, m.c.Transition, m.c.Clock.Now())
	m.setConditions(conditions)
	if m.c.LimitStorage {
		if evicted, err := m.enforceLimits(ctx); err != nil || len(evicted) > 0 {
			return evicted, err
		}
	}
	if len(due) == 0 {
		return nil, nil
	}
	return m.reclaim(ctx, due, seen)
}

func (m *Manager) learnDisks(ctx context.Context) error {
	if m.disks != nil {
		return nil
	}
	d, err := m.c.Disks(ctx)
	if err != nil {
		return fmt.Errorf("find the runtime's file systems: %w", err)
	}
	thresholds, ignored := withContainerFs(m.c.Thresholds, d)
	if ignored != nil {
		m.c.Log.Warn("thresholds of containerfs are those of the file system it lies on", "err", ignored)
	}
	m.disks, m.state = &d, newState(thresholds)
	return nil
}

// enforceLimits ends the pods that exceed a limit of local storage.
func (m *Manager) enforceLimits(ctx context.Context) ([]types.UID, error) {
	limited := map[types.UID]*corev1.Pod{}
	var uids []types.UID
	for _, pod := range m.c.Pods() {
		if limitsStorage(pod) {
			limited[pod.UID] = pod
			uids = append(uids, pod.UID)
		}
	}
	if len(uids) == 0 {
		return nil, nil
	}
	figures, err := m.c.Usage(ctx, uids)
	if err != nil {
		return nil, fmt.Errorf("measure pods with limits of storage: %w", err)
	}
	var evicted []types.UID
	for i := range figures {
		pod := limited[types.UID(figures[i].PodRef.UID)]
		if pod == nil {
			continue
		}
		limit, message := overLimit(pod, &figures[i], *m.disks)
		if limit != "" && m.evict(pod, message, nil, nil, immediate) {
			m.metrics.evictions.WithLabelValues(limit).Inc()
			evicted = append(evicted, pod.UID)
		}
	}
	return evicted, nil
}

// reclaim gets back what the first of the thresholds asks for: from what nothing uses
// if that is enough, else from one pod.
func (m *Manager) reclaim(ctx context.Context, due []Threshold, seen map[Signal]observation) ([]types.UID, error) {
	first := due[0]
	name := signals[first.Signal].resource
	m.c.Recorder.Eventf(m.c.NodeRef, corev1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim %s", name)
	enough, err := m.clear(ctx, first.Signal)
	if err != nil || enough {
		return nil, err
	}
	figures, err := m.c.Usage(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("measure pods: %w", err)
	}
	pods := candidates(m.c.Pods(), figures)
	if len(pods) == 0 {
		m.c.Log.Error("a threshold is crossed, but no pod runs", "signal", first.Signal)
		return nil, nil
	}
	rank(pods, first, *m.disks)
	for _, c := range pods {
		message, annotations := explain(c, name, due, seen)
		if m.evict(c.pod, message, annotations, disruption(message), m.grace(c.pod, first)) {
			m.metrics.evictions.WithLabelValues(string(first.Signal)).Inc()
			return []types.UID{c.pod.UID}, nil
		}
	}
	m.c.Log.Error("a threshold is crossed, but no pod can be evicted", "signal", first.Signal)
	return nil, nil
}

func candidates(pods []*corev1.Pod, figures []statsapi.PodStats) []candidate {
	by := map[types.UID]*statsapi.PodStats{}
	for i := range figures {
		by[types.UID(figures[i].PodRef.UID)] = &figures[i]
	}
	out := make([]candidate, 0, len(pods))
	for _, pod := range pods {
		out = append(out, candidate{pod, by[pod.UID]})
	}
	return out
}

// clear removes what no pod uses of a disk, and reports whether that was enough.
func (m *Manager) clear(ctx context.Context, s Signal) (enough bool, err error) {
	steps := m.clearing(s)
	for _, step := range steps {
		if err := step(ctx); err != nil {
			m.c.Log.Warn("clear what no pod uses", "signal", s, "err", err)
		}
	}
	if len(steps) == 0 {
		return false, nil
	}
	n, err := m.c.Node(ctx)
	if err != nil {
		return false, fmt.Errorf("measure the node after clearing: %w", err)
	}
	return m.state.relieved(observe(n)), nil
}

func (m *Manager) clearing(s Signal) []func(context.Context) error {
	containers, images := m.c.ClearContainers, m.c.ClearImages
	imageFs := s == ImageFsAvailable || s == ImageFsInodesFree
	nodeFs := s == NodeFsAvailable || s == NodeFsInodesFree
	switch {
	case signals[s].condition != corev1.NodeDiskPressure:
		return nil
	case m.disks.Images && m.disks.Containers && imageFs:
		return []func(context.Context) error{images}
	case m.disks.Images && m.disks.Containers:
		return []func(context.Context) error{containers}
	case m.disks.Images && nodeFs:
		return nil
	}
	return []func(context.Context) error{containers, images}
}

// grace is how long a pod may take to end, in seconds.
func (m *Manager) grace(pod *corev1.Pod, t Threshold) int64 {
	if t.hard() {
		return immediate
	}
	return min(m.c.MaxPodGrace, ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, m.c.MaxPodGrace))
}

func disruption(message string) []corev1.PodCondition {
	return []corev1.PodCondition{{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet, Message: message,
	}}
}

// evict ends a pod, unless the node or the cluster depends on it.
func (m *Manager) evict(pod *corev1.Pod, message string, annotations map[string]string, conditions []corev1.PodCondition, grace int64) bool {
	if admit.Critical(pod) || m.c.Static(pod) {
		m.c.Log.Error("a critical pod cannot be evicted", "pod", pod.Namespace+"/"+pod.Name)
		return false
	}
	m.c.Recorder.AnnotatedEventf(pod, annotations, corev1.EventTypeWarning, admit.Evicted, "%s", message)
	m.c.Evict(pod, status.End{Reason: admit.Evicted, Message: message, Conditions: conditions}, &grace)
	m.c.Log.Info("evict pod", "pod", pod.Namespace+"/"+pod.Name, "why", message)
	return true
}
