// Package controllers makes it so: a folder per controller, each around one
// reconcile function that looks at the state and says what to change. This
// package is what they share: the loop that calls it.
package controllers

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"proa/internal/client"
)

// Key names the object to reconcile.
type Key = types.NamespacedName

// Result of a reconcile that did not fail. After asks to look again after that
// time even when nothing changes; zero means done.
type Result struct{ After time.Duration }

// Config is what every controller is built from.
type Config struct {
	Cache *client.Cache
	// Recorder is a component's own; nil drops events.
	Recorder func(component string) EventRecorder
	Clock    clock.WithTicker
	Workers  int // of one controller; 0 means 4
	// Metrics is where a controller's own metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
	Queues  *Queues // measures the queues; nil: nothing does
}

// Register makes Metrics gather what a controller measures.
func (c Config) Register(measures ...prometheus.Collector) {
	if c.Metrics != nil {
		c.Metrics.MustRegister(measures...)
	}
}

// Loop calls Reconcile for every enqueued key: never twice at once for the same
// key, again with growing delay after an error, once for any number of enqueues
// in between.
type Loop struct {
	name      string
	workers   int
	queue     workqueue.TypedRateLimitingInterface[Key]
	reconcile func(ctx context.Context, key Key) (Result, error)
}

const (
	retryBase    = 5 * time.Millisecond
	retryMax     = 1000 * time.Second
	defaultQueue = 4
)

// NewLoop returns a loop named for logs and metrics, which have upstream's name of the queue.
func NewLoop(name string, c Config, reconcile func(ctx context.Context, key Key) (Result, error)) *Loop {
	workers := c.Workers
	if workers == 0 {
		workers = defaultQueue
	}
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[Key](retryBase, retryMax)
	config := workqueue.TypedRateLimitingQueueConfig[Key]{Name: name, Clock: c.Clock}
	if c.Queues != nil {
		config.DelayingQueue = c.Queues.queue(name, c.Clock)
	}
	return &Loop{
		name:      name,
		workers:   workers,
		queue:     workqueue.NewTypedRateLimitingQueueWithConfig(limiter, config),
		reconcile: reconcile,
	}
}

// Enqueue asks for a reconcile of key.
func (l *Loop) Enqueue(key Key) { l.queue.Add(key) }

// EnqueueAfter asks for a reconcile of key after d.
func (l *Loop) EnqueueAfter(key Key, d time.Duration) { l.queue.AddAfter(key, d) }

// EnqueueObject asks for a reconcile of obj.
func (l *Loop) EnqueueObject(obj client.Object) {
	l.Enqueue(Key{Namespace: obj.GetNamespace(), Name: obj.GetName()})
}

// Run works until ctx ends and its workers have stopped. The cache must have synced.
func (l *Loop) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, l.queue.ShutDown)
	defer stop()
	var wg sync.WaitGroup
	for range l.workers {
		wg.Go(func() {
			for l.next(ctx) {
			}
		})
	}
	wg.Wait()
	return nil
}

// attempt reconciles one key. A panic is this key's failure, tried again later:
// it must not take the other controllers and the API server with it.
func (l *Loop) attempt(ctx context.Context, key Key) (result Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return l.reconcile(ctx, key)
}

func (l *Loop) next(ctx context.Context) bool {
	key, shutdown := l.queue.Get()
	if shutdown {
		return false
	}
	defer l.queue.Done(key)
	result, err := l.attempt(ctx, key)
	switch {
	case ctx.Err() != nil:
	case apierrors.IsConflict(err): // someone else wrote first: look again
		slog.DebugContext(ctx, "reconcile conflict", "controller", l.name, "key", key.String(), "err", err)
		l.queue.AddRateLimited(key)
	case err != nil:
		slog.WarnContext(ctx, "reconcile failed", "controller", l.name, "key", key.String(), "err", err)
		l.queue.AddRateLimited(key)
	default:
		l.queue.Forget(key)
		if result.After > 0 {
			l.queue.AddAfter(key, result.After)
		}
	}
	return true
}
