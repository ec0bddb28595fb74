// Package podworker makes the runtime hold what the pods of this node say. Each
// pod has a goroutine with one job: read what the runtime has, plan (plan.go, a
// pure function), act, and look again until nothing is left to do. It is woken
// by a change of the pod, a runtime event or a probe; a lost wake-up costs time,
// not correctness. All it needs after a restart is in the API and on the
// containers.
//
// A pod goes one way:
//
//	running -> terminating -> terminated -> removed
//
// Deletion, eviction, a deadline, an ended phase in the API or a finished plan
// make it terminating; no container starts from then on. Terminated means that
// nothing of it runs and its volumes and cgroup are gone; it stays so while the
// API has the pod, for its logs. Removed takes the rest away.
package podworker

import (
	"cmp"
	"context"
	"log/slog"
	"sort"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"proa/internal/kubelet/cgroups"
	"proa/internal/kubelet/cri"
	"proa/internal/kubelet/criconfig"
	"proa/internal/kubelet/environment"
	"proa/internal/kubelet/images"
	"proa/internal/kubelet/probe"
	"proa/internal/kubelet/status"
)

// Volumes are the pods' volumes on this node.
type Volumes interface {
	Mount(ctx context.Context, pod *corev1.Pod) error
	ContainerMounts(ctx context.Context, pod *corev1.Pod, c *corev1.Container, vars []environment.Variable) ([]*runtimeapi.Mount, []*runtimeapi.Device, error)
	Unmount(ctx context.Context, uid types.UID) error
	PodDir(uid types.UID) string
	RemovePodDir(uid types.UID) error
}

// Devices are what this node's pods get of its devices.
type Devices interface {
	// Prepare makes the devices of a pod ready. It may be called again.
	Prepare(ctx context.Context, pod *corev1.Pod) error
	// Give is what a container that is about to be made gets of them.
	Give(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (criconfig.Grant, error)
	// Release takes the devices of a pod back whose containers have ended.
	Release(ctx context.Context, uid types.UID) error
	// Health of the devices that a container has.
	Health(pod *corev1.Pod, c *corev1.Container) []corev1.ResourceStatus
}

// Config makes Workers. All fields without a remark are needed.
type Config struct {
	Runtime     *cri.Runtime
	RuntimeName string // scheme of container ids: containerd
	Node        *criconfig.Node
	Volumes     Volumes
	Devices     Devices // nil: the node has none
	Images      *images.Puller
	Cgroups     *cgroups.Tree // nil: the runtime's own parents
	Probes      *probe.Manager
	Status      *status.Writer
	Recorder    record.EventRecorder
	Clock       clock.WithTicker
	Log         *slog.Logger

	// Variables of a container, podIPs being those of its sandbox.
	Variables func(ctx context.Context, pod *corev1.Pod, c *corev1.Container, podIPs []string) ([]environment.Variable, error)
	// Admit says why this node does not take a pod beside the others it runs,
	// or nil.
	Admit func(ctx context.Context, pod *corev1.Pod, others []*corev1.Pod) *status.End
	// Fits says why the node cannot give a running pod the resources of its
	// spec: Deferred or Infeasible, and a message; or nothing. Nil: it always can.
	Fits func(pod *corev1.Pod, others []*corev1.Pod) (reason, message string)
	// Handler is the runtime handler of the pod's RuntimeClass.
	Handler func(ctx context.Context, pod *corev1.Pod) (string, error)
	// NetworkReady is nil once pods with a network of their own can start.
	NetworkReady func() error
	HostIPs      func() []string
	// UserNamespace is the range of ids of a pod with hostUsers: false.
	// Nil: no such pod can start.
	UserNamespace func(pod *corev1.Pod) (*criconfig.UserNamespace, error)
	// LongestBackoff bounds the wait between two starts of a container. Default
	// 5 min.
	LongestBackoff time.Duration
	// Released is told when a pod is removed from the node. Optional.
	Released func(uid types.UID)
}

// Workers runs the pods of one node.
type Workers struct {
	c       Config
	backoff *flowcontrol.Backoff // between restarts of a container
	admit   sync.Mutex           // serializes admission, so that two pods cannot take the same room
	wg      sync.WaitGroup

	mu     sync.Mutex
	pods   map[types.UID]*worker // guarded by mu
	closed bool                  // guarded by mu
}

// New makes Workers.
func New(c Config) *Workers {
	longest := cmp.Or(c.LongestBackoff, 5*time.Minute)
	b := flowcontrol.NewBackOff(min(10*time.Second, longest), longest)
	b.Clock = c.Clock
	return &Workers{c: c, backoff: b, pods: map[types.UID]*worker{}}
}

// Run ends the workers when ctx ends and waits for them. The pods go on.
func (w *Workers) Run(ctx context.Context) error {
	<-ctx.Done()
	w.mu.Lock()
	w.closed = true
	for _, p := range w.pods {
		p.cancelRun()
	}
	w.mu.Unlock()
	w.wg.Wait()
	return ctx.Err()
}

// Update gives the newest object of a pod.
func (w *Workers) Update(pod *corev1.Pod) {
	w.with(pod, func(p *worker) { p.update(pod) })
}

// Remove says that the API has no such pod any more: its containers are stopped
// if need be and everything of it is taken away.
func (w *Workers) Remove(pod *corev1.Pod) {
	w.with(pod, func(p *worker) { p.terminate(ending{removed: true}) })
}

// Evict ends a pod for a reason of the node's. Grace, in seconds, replaces the
// pod's own; nil keeps it.
func (w *Workers) Evict(pod *corev1.Pod, end status.End, grace *int64) {
	w.with(pod, func(p *worker) { p.terminate(ending{end: &end, grace: grace}) })
}

// Wake makes a pod look again, after a runtime event or a probe's result.
func (w *Workers) Wake(uid types.UID) {
	w.mu.Lock()
	p := w.pods[uid]
	w.mu.Unlock()
	if p != nil {
		p.poke()
	}
}

// Known reports whether a pod has a worker.
func (w *Workers) Known(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pods[uid] != nil
}

// Runtime is what the runtime held of a pod when it was last looked at, or nil.
func (w *Workers) Runtime(uid types.UID) *cri.Pod {
	w.mu.Lock()
	p := w.pods[uid]
	w.mu.Unlock()
	if p == nil {
		return nil
	}
	return p.rt.Load()
}

// Pods are the pods with a worker, by namespace and name.
func (w *Workers) Pods() []*corev1.Pod {
	return w.list(func(*worker) bool { return true })
}

// Active are the pods that are admitted and have not ended, with all that they left.
func (w *Workers) Active() []*corev1.Pod {
	return w.list(func(p *worker) bool { return p.active() })
}

func (w *Workers) list(keep func(*worker) bool) []*corev1.Pod {
	w.mu.Lock()
	workers := make([]*worker, 0, len(w.pods))
	for _, p := range w.pods {
		workers = append(workers, p)
	}
	w.mu.Unlock()
	var out []*corev1.Pod
	for _, p := range workers {
		if keep(p) {
			out = append(out, p.allocated())
		}
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := out[i], out[j]
		if a.Namespace != b.Namespace {
			return a.Namespace < b.Namespace
		}
		return a.Name < b.Name
	})
	return out
}

// with finds or makes the pod's worker and runs f on it before it first looks.
func (w *Workers) with(pod *corev1.Pod, f func(*worker)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	p := w.pods[pod.UID]
	if p == nil {
		ctx, cancel := context.WithCancel(context.Background())
		p = &worker{w: w, cancelRun: cancel, pod: pod, wake: make(chan struct{}, 1),
			waiting: map[string]status.Waiting{}, messages: map[string]string{},
			retryAt: map[string]time.Time{}, misses: map[string]int{}}
		w.pods[pod.UID] = p
		f(p)
		w.wg.Add(1)
		go func() {
			defer w.wg.Done()
			defer cancel()
			p.run(ctx)
		}()
		return
	}
	f(p)
}

func (w *Workers) drop(uid types.UID) {
	w.mu.Lock()
	delete(w.pods, uid)
	w.mu.Unlock()
	w.c.Status.Forget(uid)
	if w.c.Released != nil {
		w.c.Released(uid)
	}
}
