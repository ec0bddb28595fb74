// Package metrics measures what nodes and pods use: it reads the resource
// metrics of every node agent now and then, keeps the last two readings, and
// answers metrics.k8s.io from the difference, as a metrics server does.
package metrics

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"proa/internal/client"
)

// Config of a Collector. Cache, Client and Address are required.
type Config struct {
	Cache *client.Cache
	// Client makes requests that node agents answer; Address is the host:port
	// where a node's agent listens.
	Client  *http.Client
	Address func(node string) (string, error)

	Interval time.Duration // between readings of a node; default 15 s
	Workers  int           // nodes read at once; default 8
	Clock    clock.WithTicker
}

// settle is when a node is read again that has just become known or did not
// answer: a rate takes two readings.
const settle = time.Second

// Collector keeps the readings of all nodes. It is safe for concurrent use.
type Collector struct {
	config Config
	nodes  *client.Informer[*corev1.Node]
	pods   *client.Informer[*corev1.Pod]
	queue  workqueue.TypedRateLimitingInterface[string]

	mu       sync.RWMutex // guards readings; a reading is never changed
	readings map[string]*reading
}

// New returns a Collector; call it before the cache runs.
func New(c Config) *Collector {
	if c.Interval == 0 {
		c.Interval = 15 * time.Second
	}
	if c.Workers == 0 {
		c.Workers = 8
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	m := &Collector{
		config: c, nodes: client.Shared[*corev1.Node](c.Cache), pods: client.Shared[*corev1.Pod](c.Cache),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](settle, c.Interval),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "metrics", Clock: c.Clock}),
		readings: map[string]*reading{},
	}
	m.nodes.OnChange(m.nodeChanged)
	return m
}

// nodeChanged reads a node at once when it appears or becomes Ready.
func (m *Collector) nodeChanged(old, now *corev1.Node) {
	switch {
	case now == nil:
		m.forget(old.Name)
	case old == nil || !ready(old) && ready(now):
		m.queue.Add(now.Name)
	}
}

func ready(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Run reads nodes until ctx ends and its workers have stopped.
func (m *Collector) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, m.queue.ShutDown)
	defer stop()
	var workers sync.WaitGroup
	for range m.config.Workers {
		workers.Go(func() {
			for m.next(ctx) {
			}
		})
	}
	workers.Wait()
	return nil
}

// next reads the node whose turn it is; it reports false when there are none any more.
func (m *Collector) next(ctx context.Context) bool {
	node, shutdown := m.queue.Get()
	if shutdown {
		return false
	}
	defer m.queue.Done(node)
	known, ok := m.nodes.Cached("", node)
	if !ok {
		m.queue.Forget(node)
		m.forget(node)
		return true
	}
	if err := m.measure(ctx, node, cmp.Or(known.Annotations[pathAnnotation], "/metrics/resource")); err != nil {
		slog.DebugContext(ctx, "node metrics", "node", node, "err", err)
		m.queue.AddRateLimited(node)
		return true
	}
	m.queue.Forget(node)
	m.queue.AddAfter(node, m.pause(node))
	return true
}

// pause is how long a reading of a node stays the newest.
func (m *Collector) pause(node string) time.Duration {
	if _, rated := m.reading(node).node.rate(m.config.Interval); !rated {
		return settle
	}
	return m.config.Interval
}

// measure makes the newest reading of a node.
func (m *Collector) measure(ctx context.Context, node, path string) error {
	address, err := m.config.Address(node)
	if err != nil {
		return err
	}
	fresh, err := scrape(ctx, m.config.Client, address, path)
	if err != nil {
		return err
	}
	fresh.follow(m.reading(node))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readings[node] = fresh
	return nil
}

var nothing = &reading{}

// reading is the newest of a node, an empty one where there is none.
func (m *Collector) reading(node string) *reading {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if r := m.readings[node]; r != nil {
		return r
	}
	return nothing
}

func (m *Collector) forget(node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.readings, node)
}
