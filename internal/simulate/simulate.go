// Package simulate is nodes without machines: it says of every node that is
// marked as simulated, and of the pods on it, what a kubelet would say. What
// happens to them, and when, comes from KWOK's stages; without any, nodes are
// Ready at once, pods run at once, those of Jobs are complete at once, and what
// is to be deleted is gone at once.
//
// One queue of times and a few workers serve all objects: an object costs
// nothing while nothing happens to it. Heartbeats are leases alone.
package simulate

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/simulate/kwok"
	"proa/internal/simulate/lifecycle"
)

// Marked is the annotation, of this value, that makes a node a simulated one.
const (
	Marked = "kwok.x-k8s.io/node"
	Fake   = "fake"
)

// Config of a Simulator. Cache is required.
type Config struct {
	// Cache is where nodes and pods are read and what changes go through.
	Cache *client.Cache
	// As gives the API of another user, for stages that say who makes a change.
	// Nil: such stages fail.
	As func(user string) (client.API, error)
	// Stages take the place of what happens otherwise to the kinds they are about.
	Stages []kwok.Stage
	// Fleet is made when the simulator starts.
	Fleet Fleet

	// NodeIP and Port are where simulated nodes answer (package endpoint). With
	// no Port they do not.
	NodeIP string
	Port   int

	// LeaseDuration is how long a node's lease lasts; it is renewed four times in
	// that time. Default 40 s, as a kubelet's.
	LeaseDuration time.Duration
	Workers       int // default 32
	Clock         clock.WithTicker
	Seed          int64 // of delays and choices; 0 means 1
	Recorder      record.EventRecorder
}

// Simulator is made by New and works while Run does.
type Simulator struct {
	config Config
	clock  clock.WithTicker
	nodes  *client.Informer[*corev1.Node]
	pods   *client.Informer[*corev1.Pod]
	others map[schema.GroupKind]*kindStore
	stages *lifecycle.Set
	queue  workqueue.TypedDelayingInterface[key]
	beats  *heartbeats
	addrs  addresses

	mu     sync.Mutex // guards what follows
	random *rand.Rand
	coming map[key]coming
}

// key names an object that something may happen to.
type key struct {
	schema.GroupKind
	types.NamespacedName
}

// coming is the stage that an object goes on to, and when.
type coming struct {
	uid   types.UID
	stage *lifecycle.Stage
	at    time.Time
}

var (
	nodeKind = schema.GroupKind{Kind: "Node"}
	podKind  = schema.GroupKind{Kind: "Pod"}
)

const (
	podsByNode = "spec.nodeName"
	retry      = time.Second
)

// New returns a Simulator; call it before the cache runs.
func New(c Config) (*Simulator, error) {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	c.LeaseDuration = cmp.Or(c.LeaseDuration, 40*time.Second)
	s := &Simulator{
		config: c, clock: c.Clock,
		nodes:  client.Shared[*corev1.Node](c.Cache),
		pods:   client.Shared[*corev1.Pod](c.Cache),
		others: map[schema.GroupKind]*kindStore{},
		queue:  workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[key]{Name: "simulate", Clock: c.Clock}),
		random: rand.New(rand.NewSource(cmp.Or(c.Seed, 1))),
		coming: map[key]coming{},
	}
	s.addrs.fallback = fleetRange
	s.beats = newHeartbeats(s)
	var err error
	s.stages, err = lifecycle.New(lifecycle.Config{Stages: c.Stages, Now: c.Clock.Now, Functions: s.functions()})
	if err != nil {
		return nil, err
	}
	if err := s.followOthers(); err != nil {
		return nil, err
	}
	s.pods.AddIndex(podsByNode, func(pod *corev1.Pod) []string { return []string{pod.Spec.NodeName} })
	s.nodes.OnChange(s.nodeChanged)
	s.pods.OnChange(s.podChanged)
	return s, nil
}

// Simulated tells whether a node is one of these.
func Simulated(node *corev1.Node) bool { return node.Annotations[Marked] == Fake }

// Node returns a simulated node.
func (s *Simulator) Node(name string) (*corev1.Node, bool) {
	node, ok := s.nodes.Cached("", name)
	return node, ok && Simulated(node)
}

// Pod returns a pod on a simulated node.
func (s *Simulator) Pod(namespace, name string) (*corev1.Pod, bool) {
	pod, ok := s.pods.Cached(namespace, name)
	if !ok {
		return nil, false
	}
	_, ok = s.Node(pod.Spec.NodeName)
	return pod, ok
}

// PodsOf returns the pods on a node.
func (s *Simulator) PodsOf(node string) []*corev1.Pod { return s.pods.ByIndex(podsByNode, node) }

func (s *Simulator) nodeChanged(old, node *corev1.Node) {
	switch {
	case node == nil:
		s.beats.forget(old.Name)
		s.forget(keyOf(nodeKind, old))
	case Simulated(node):
		s.queue.Add(keyOf(nodeKind, node))
		s.beats.follow(node.Name)
		if old == nil || !Simulated(old) {
			for _, pod := range s.PodsOf(node.Name) {
				s.queue.Add(keyOf(podKind, pod))
			}
		}
	case old != nil && Simulated(old):
		s.beats.forget(node.Name)
	}
}

func (s *Simulator) podChanged(old, pod *corev1.Pod) {
	if pod == nil {
		s.addrs.free(old.Status.PodIP)
		s.forget(keyOf(podKind, old))
		return
	}
	if pod.Spec.NodeName == "" {
		return
	}
	if _, ours := s.Node(pod.Spec.NodeName); ours {
		s.addrs.keep(pod.Status.PodIP)
		s.queue.Add(keyOf(podKind, pod))
	}
}

func keyOf(kind schema.GroupKind, obj metav1.Object) key {
	return key{kind, types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}}
}

func (s *Simulator) forget(k key) {
	s.mu.Lock()
	delete(s.coming, k)
	s.mu.Unlock()
}

// Run simulates until ctx ends and its workers have stopped. The cache must have
// synced.
func (s *Simulator) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for range cmp.Or(s.config.Workers, 32) {
		wg.Go(func() { s.work(ctx) })
	}
	for range heartbeatWorkers {
		wg.Go(func() { s.beats.work(ctx) })
	}
	for _, other := range s.others {
		wg.Go(func() { other.run(ctx) })
	}
	if err := s.makeFleet(ctx); err != nil && ctx.Err() == nil {
		slog.ErrorContext(ctx, "simulated nodes", "err", err)
	}
	<-ctx.Done()
	s.queue.ShutDown()
	s.beats.queue.ShutDown()
	return nil
}

func (s *Simulator) work(ctx context.Context) {
	for {
		k, shutdown := s.queue.Get()
		if shutdown {
			return
		}
		if err := s.advance(ctx, k); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "simulate", "kind", k.Kind, "object", k.NamespacedName.String(), "err", err)
			s.queue.AddAfter(k, retry)
		}
		s.queue.Done(k)
	}
}

// object is what k names, nil when it is gone or not simulated.
func (s *Simulator) object(k key) lifecycle.Object {
	switch k.GroupKind {
	case nodeKind:
		if node, ok := s.Node(k.Name); ok {
			return node
		}
		return nil
	case podKind:
		if pod, ok := s.Pod(k.Namespace, k.Name); ok {
			return pod
		}
		return nil
	}
	return s.others[k.GroupKind].get(k.NamespacedName)
}

// advance lets happen to an object what is due.
func (s *Simulator) advance(ctx context.Context, k key) error {
	obj := s.object(k)
	if obj == nil {
		s.forget(k)
		return nil
	}
	if !s.stages.Has(k.GroupKind) {
		return overtaken(s.plainly(ctx, obj))
	}
	for obj != nil {
		subject := &lifecycle.Subject{Object: obj}
		stage, wait := s.choose(k, subject)
		if stage == nil {
			return nil
		}
		if wait > 0 {
			s.queue.AddAfter(k, wait)
			return nil
		}
		s.forget(k)
		after, err := s.play(ctx, k, stage, subject)
		if err != nil || !stage.Immediate || after == nil || after.GetResourceVersion() == obj.GetResourceVersion() {
			return overtaken(err)
		}
		obj = after
	}
	return nil
}

// overtaken: what has changed meanwhile is looked at again when the change is seen.
func overtaken(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// choose keeps to the stage that was chosen before, as long as the object's
// state leads to it, and else draws one.
func (s *Simulator) choose(k key, subject *lifecycle.Subject) (*lifecycle.Stage, time.Duration) {
	matching := s.stages.Matching(k.GroupKind, subject)
	now := s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if next, ok := s.coming[k]; ok && next.uid == subject.Object.GetUID() {
		for _, stage := range matching {
			if stage == next.stage {
				return stage, next.at.Sub(now)
			}
		}
	}
	stage := lifecycle.Choose(matching, subject, s.random)
	if stage == nil {
		delete(s.coming, k)
		return nil, 0
	}
	delay := stage.Delay(subject, s.random)
	s.coming[k] = coming{uid: subject.Object.GetUID(), stage: stage, at: now.Add(delay)}
	return stage, delay
}

// plainly is what happens to a kind without stages.
func (s *Simulator) plainly(ctx context.Context, obj lifecycle.Object) error {
	switch o := obj.(type) {
	case *corev1.Node:
		return s.plainNode(ctx, o)
	case *corev1.Pod:
		return s.plainPod(ctx, o)
	}
	return fmt.Errorf("no stages for %T", obj)
}
