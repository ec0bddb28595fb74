// Package podcert gets the certificates that this node's pods project (KEP-4317).
// For each podCertificate source it makes a key and a PodCertificateRequest, keeps
// what the signer issues, and asks anew when the signer said that renewal may begin:
//
//	asked ──► issued ──► asked again ──► issued ...
//	  │                      │
//	  └──► denied, failed ◄──┘   for good
//
// Keys live in memory only: after a restart every source is asked for again.
package podcert

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"golang.org/x/sync/errgroup"

	"proa/internal/client"
)

const (
	maxJitter = 5 * time.Minute
	// overdue is how long after the time of renewal a certificate is reported as late.
	overdue = 10 * time.Minute
	// makers is how many keys are made at a time: a large RSA key takes a second.
	makers = 2
)

// Config of a Manager. API, NodeName, Node and Recorder are required.
type Config struct {
	API      client.API
	NodeName string
	Node     func() (*corev1.Node, error)
	Recorder record.EventRecorder
	Clock    clock.WithTicker // default: the wall clock
	Log      *slog.Logger
	// Changed is told, from any goroutine, of pods whose certificates came, or
	// will not come. Optional.
	Changed func(uid types.UID)
	// Jitter spreads renewals of certificates that were issued together. Default:
	// up to five minutes, at random.
	Jitter func() time.Duration
}

// Manager of the certificates of one node's pods. It is safe for concurrent use.
type Manager struct {
	c        Config
	cache    *client.Cache
	requests *client.Informer[*certificatesv1.PodCertificateRequest]
	queue    workqueue.TypedRateLimitingInterface[source]

	want   func()        // begins the watch of requests, once
	wanted chan struct{} // closed by want

	mu    sync.Mutex // guards what follows
	pods  map[types.UID]*corev1.Pod
	state map[source]*projection
}

// source names a podCertificate source of a pod.
type source struct {
	pod    types.UID
	volume string
	index  int
}

// New returns a Manager of which Run does the work.
func New(c Config) *Manager {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Changed == nil {
		c.Changed = func(types.UID) {}
	}
	if c.Jitter == nil {
		c.Jitter = func() time.Duration { return rand.N(maxJitter) }
	}
	m := &Manager{
		c: c, cache: client.NewCache(c.API), wanted: make(chan struct{}),
		pods: map[types.UID]*corev1.Pod{}, state: map[source]*projection{},
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.DefaultTypedControllerRateLimiter[source](),
			workqueue.TypedRateLimitingQueueConfig[source]{Clock: c.Clock}),
	}
	m.want = sync.OnceFunc(func() { close(m.wanted) })
	m.requests = client.Filtered[*certificatesv1.PodCertificateRequest](m.cache, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", c.NodeName).String(),
	})
	m.requests.OnChange(func(old, new *certificatesv1.PodCertificateRequest) {
		if new == nil {
			new = old
		}
		m.wake(new.Spec.PodUID)
	})
	return m
}

// Run asks for certificates until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	defer m.queue.ShutDown()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-m.wanted:
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.cache.Run(ctx) })
	g.Go(func() error {
		if err := m.cache.WaitForSync(ctx); err != nil {
			return err
		}
		for range makers {
			g.Go(func() error { return m.work(ctx) })
		}
		<-ctx.Done()
		m.queue.ShutDown()
		return ctx.Err()
	})
	return g.Wait()
}

func (m *Manager) work(ctx context.Context) error {
	for {
		s, quit := m.queue.Get()
		if quit {
			return ctx.Err()
		}
		after, err := m.reconcile(ctx, s)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			m.c.Log.Warn("get pod certificate", "uid", s.pod, "volume", s.volume, "source", s.index, "err", err)
			m.queue.AddRateLimited(s)
		default:
			m.queue.Forget(s)
			if after > 0 {
				m.queue.AddAfter(s, after)
			}
		}
		m.queue.Done(s)
	}
}

// Track asks for the certificates of a pod of this node, if it projects any.
func (m *Manager) Track(pod *corev1.Pod) {
	if !projects(pod) {
		return
	}
	m.mu.Lock()
	known := m.pods[pod.UID] != nil
	m.pods[pod.UID] = pod
	m.mu.Unlock()
	m.want()
	if !known {
		m.wake(pod.UID)
	}
}

// Forget drops the keys of a pod.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pods, uid)
	for s := range m.state {
		if s.pod == uid {
			delete(m.state, s)
		}
	}
}

// Credential returns the private key and the certificates, in PEM, of one source,
// or says why there are none.
func (m *Manager) Credential(pod *corev1.Pod, volume string, index int) (key, chain []byte, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.state[source{pod.UID, volume, index}]
	switch {
	case p == nil:
		return nil, nil, errNotIssued
	case p.end != nil:
		return nil, nil, p.end
	case p.credential == nil:
		return nil, nil, errNotIssued
	}
	return p.credential.key, p.credential.chain, nil
}

var errNotIssued = errors.New("credential bundle is not issued yet")

func (m *Manager) wake(uid types.UID) {
	m.mu.Lock()
	pod := m.pods[uid]
	m.mu.Unlock()
	if pod == nil {
		return
	}
	visit(pod, func(volume string, index int, _ *corev1.PodCertificateProjection) {
		m.queue.Add(source{uid, volume, index})
	})
}

func projects(pod *corev1.Pod) (found bool) {
	visit(pod, func(string, int, *corev1.PodCertificateProjection) { found = true })
	return found
}

func visit(pod *corev1.Pod, f func(volume string, index int, p *corev1.PodCertificateProjection)) {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Projected == nil {
			continue
		}
		for j := range v.Projected.Sources {
			if p := v.Projected.Sources[j].PodCertificate; p != nil {
				f(v.Name, j, p)
			}
		}
	}
}

// find returns the pod that has a source, and the source; nil when it is gone.
func (m *Manager) find(s source) (pod *corev1.Pod, spec *corev1.PodCertificateProjection) {
	m.mu.Lock()
	defer m.mu.Unlock()
	pod = m.pods[s.pod]
	if pod == nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil, nil
	}
	visit(pod, func(volume string, index int, p *corev1.PodCertificateProjection) {
		if volume == s.volume && index == s.index {
			spec = p
		}
	})
	return pod, spec
}

// request makes a key and asks the signer for a certificate of it.
func (m *Manager) request(ctx context.Context, pod *corev1.Pod, p *corev1.PodCertificateProjection) (*asked, error) {
	account, err := client.Of[*corev1.ServiceAccount](m.c.API).Get(ctx, pod.Namespace, pod.Spec.ServiceAccountName)
	if err != nil {
		return nil, fmt.Errorf("get service account: %w", err)
	}
	node, err := m.c.Node()
	if err != nil {
		return nil, err
	}
	key, stub, err := newKey(p.KeyType)
	if err != nil {
		return nil, err
	}
	r := &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, GenerateName: "req-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: p.SignerName, PodName: pod.Name, PodUID: pod.UID,
			ServiceAccountName: account.Name, ServiceAccountUID: account.UID,
			NodeName: types.NodeName(m.c.NodeName), NodeUID: node.UID,
			MaxExpirationSeconds: p.MaxExpirationSeconds, StubPKCS10Request: stub,
			UnverifiedUserAnnotations: p.UserAnnotations,
		},
	}
	// Written through the informer: from here on, a request that it lacks was deleted.
	if r, err = m.requests.Create(ctx, r); err != nil {
		return nil, fmt.Errorf("create PodCertificateRequest: %w", err)
	}
	return &asked{name: r.Name, key: key}, nil
}
