// Package probe asks containers how they are: liveness, readiness and startup
// probes over exec, HTTP, TCP and gRPC. One goroutine serves one probe of one
// running container and ends with it. Results are kept by container id, so a
// new container of the same name starts afresh.
package probe

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"proa/internal/kubelet/cri"
)

// Kind of a probe, as event texts spell it.
type Kind string

const (
	Liveness  Kind = "Liveness"
	Readiness Kind = "Readiness"
	Startup   Kind = "Startup"
)

// Result of a probe after its thresholds.
type Result int

const (
	Unknown Result = iota // not decided yet
	Success
	Failure
)

// Config makes a Manager.
type Config struct {
	Exec     ExecFunc
	Recorder record.EventRecorder
	Clock    clock.WithTicker
	Log      *slog.Logger
	// HostIP is where pods on the host's network are reached.
	HostIP func() string
	// Changed is called when a result of a pod's container changed.
	Changed func(types.UID)
}

// ExecFunc runs a command in a container.
type ExecFunc func(ctx context.Context, containerID string, cmd []string, timeout time.Duration) (out []byte, code int32, err error)

// Manager runs the probes of the node's containers.
type Manager struct {
	c      Config
	counts *prometheus.CounterVec
	wg     sync.WaitGroup

	mu      sync.Mutex
	workers map[key]*worker // guarded by mu
	closed  bool            // guarded by mu
}

type key struct {
	containerID string
	kind        Kind
}

// New makes a Manager.
func New(c Config) *Manager {
	return &Manager{c: c, counts: newCounts(), workers: map[key]*worker{}}
}

// Run keeps the probes going until ctx ends and waits for them to stop.
func (m *Manager) Run(ctx context.Context) error {
	<-ctx.Done()
	m.mu.Lock()
	m.closed = true
	for k, w := range m.workers {
		w.cancel()
		delete(m.workers, k)
	}
	m.mu.Unlock()
	m.wg.Wait()
	return ctx.Err()
}

// Sync starts the probes of the pod's running containers and stops those of
// containers that ended. A terminating pod keeps only its readiness probes.
func (m *Manager) Sync(pod *corev1.Pod, rt *cri.Pod) {
	host := ""
	if ips := rt.IPs(); len(ips) > 0 {
		host = ips[0]
	} else {
		host = m.c.HostIP()
	}
	want := map[key]bool{}
	for _, spec := range probed(pod) {
		c := rt.Container(spec.Name)
		if !c.Running() {
			continue
		}
		for kind, p := range map[Kind]*corev1.Probe{Liveness: spec.LivenessProbe, Readiness: spec.ReadinessProbe, Startup: spec.StartupProbe} {
			if p == nil || (pod.DeletionTimestamp != nil && kind != Readiness) {
				continue
			}
			k := key{c.ID, kind}
			want[k] = true
			m.start(k, target{pod: pod, spec: spec, container: c, host: host}, p)
		}
	}
	m.keep(pod.UID, want)
}

// probed lists the containers that may have probes: regular ones and sidecars.
func probed(pod *corev1.Pod) []*corev1.Container {
	var out []*corev1.Container
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out = append(out, c)
		}
	}
	for i := range pod.Spec.Containers {
		out = append(out, &pod.Spec.Containers[i])
	}
	return out
}

// Stop ends all probes of a pod.
func (m *Manager) Stop(uid types.UID) { m.keep(uid, nil) }

func (m *Manager) keep(uid types.UID, want map[key]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, w := range m.workers {
		if w.target.pod.UID == uid && !want[k] {
			w.cancel()
			delete(m.workers, k)
		}
	}
}

func (m *Manager) start(k key, t target, p *corev1.Probe) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || m.workers[k] != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &worker{m: m, kind: k.kind, target: t, probe: p, cancel: cancel, trigger: make(chan struct{}, 1)}
	m.workers[k] = w
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		defer cancel()
		defer w.forget()
		w.run(ctx)
	}()
}

// Result of one kind of probe of a container; false when no such probe runs.
func (m *Manager) Result(kind Kind, containerID string) (Result, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.workers[key{containerID, kind}]
	if w == nil {
		return Unknown, false
	}
	return w.result, true
}

// set records a result and wakes the pod if it is news.
func (m *Manager) set(w *worker, r Result) {
	m.mu.Lock()
	news := w.result != r
	w.result = r
	if news && w.kind == Startup && r == Success {
		// Readiness and liveness wait for startup; let them go at once.
		for _, kind := range []Kind{Readiness, Liveness} {
			if other := m.workers[key{w.target.container.ID, kind}]; other != nil {
				other.wake()
			}
		}
	}
	m.mu.Unlock()
	if news && m.c.Changed != nil {
		m.c.Changed(w.target.pod.UID)
	}
}

// startedUp reports whether the container's startup probe, if any, succeeded.
func (m *Manager) startedUp(containerID string) bool {
	r, has := m.Result(Startup, containerID)
	return !has || r == Success
}
