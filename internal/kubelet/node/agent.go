// Package node is the node's own voice in the API: it registers the Node, keeps
// its status and conditions current, and renews its lease. It says Ready only
// when the runtime and its network are.
package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/kubelet/config"
	"proa/internal/kubelet/cri"
)

// Config makes an Agent.
type Config struct {
	API      client.API
	Runtime  *cri.Runtime
	Name     string
	IPs      []string // the primary first
	Labels   map[string]string
	PodCIDRs []string
	// Configuration says how often the node reports, and what of it. Nil: the
	// defaults.
	Configuration *config.Configuration
	// Cloud leaves addresses to a cloud controller manager, which is told CloudIPs.
	Cloud    bool
	CloudIPs []string
	RootDir  string
	MaxPods  int64
	Reserved corev1.ResourceList // what is not for pods
	KeptFree corev1.ResourceList // what eviction keeps free besides
	// Devices are the extended resources of this node's plugins: all, and those that
	// pods can have. Nil: none.
	Devices func() (capacity, allocatable corev1.ResourceList)
	// Pressure names what the node is short of: its pressure conditions. Nil: nothing.
	Pressure func() []corev1.NodeConditionType
	Version  string // of the agent, such as v1.37.2
	Machine  Machine
	Recorder record.EventRecorder
	Clock    clock.WithTicker
	Log      *slog.Logger
}

const (
	runtimeCheck = 5 * time.Second // how often a healthy runtime is asked
	runtimeRetry = 100 * time.Millisecond
)

// Agent speaks for one node.
type Agent struct {
	c     Config
	nodes client.Resource[*corev1.Node]
	ref   *corev1.ObjectReference
	poke  chan struct{} // something changed that the API shall see at once

	mu      sync.Mutex
	node    *corev1.Node               // guarded by mu: as last read or written
	runtime *runtimeapi.StatusResponse // guarded by mu: nil before the first answer
	down    error                      // guarded by mu: why the runtime does not answer
	version *runtimeapi.VersionResponse
}

// New makes an Agent.
func New(c Config) *Agent {
	if c.Configuration == nil {
		c.Configuration = config.New()
	}
	return &Agent{c: c, nodes: client.Of[*corev1.Node](c.API), poke: make(chan struct{}, 1),
		ref: &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: c.Name, UID: types.UID(c.Name)}}
}

// Reference is what the node's events are about.
func (a *Agent) Reference() *corev1.ObjectReference { return a.ref }

// HostIPs are the node's addresses.
func (a *Agent) HostIPs() []string { return a.c.IPs }

// Node is the node as last read or written, or an error before it registered.
func (a *Agent) Node() (*corev1.Node, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.node == nil {
		return nil, errors.New("node is not registered yet")
	}
	return a.node, nil
}

// Read asks the API for the node: others change its labels and taints.
func (a *Agent) Read(ctx context.Context) (*corev1.Node, error) {
	n, err := a.nodes.Get(ctx, "", a.c.Name)
	if err != nil {
		return nil, err
	}
	a.setNode(n)
	return n, nil
}

// NetworkReady is nil when the runtime can give pods a network.
func (a *Agent) NetworkReady() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down != nil {
		return a.down
	}
	return conditionError(a.runtime, runtimeapi.NetworkReady, "container runtime network not ready")
}

// Run registers the node and keeps it current until ctx ends.
func (a *Agent) Run(ctx context.Context) error {
	a.c.Recorder.Event(a.ref, corev1.EventTypeNormal, "Starting", "Starting kubelet.")
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.watchRuntime(ctx) })
	g.Go(func() error { return a.keepStatus(ctx) })
	g.Go(func() error { return a.keepLease(ctx) })
	return g.Wait()
}

// watchRuntime asks the runtime how it is: often until it is ready, then rarely.
func (a *Agent) watchRuntime(ctx context.Context) error {
	wait := runtimeRetry
	for {
		changed, ready := a.checkRuntime(ctx)
		if changed {
			a.Changed()
		}
		if ready {
			wait = runtimeCheck
		} else {
			wait = min(max(runtimeRetry, wait*5/4), time.Second)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.c.Clock.After(wait):
		}
	}
}

func (a *Agent) checkRuntime(ctx context.Context) (changed, ready bool) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	resp, err := a.c.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
	var version *runtimeapi.VersionResponse
	if err == nil {
		version, err = a.c.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	before := readiness(a.runtime, a.down)
	if err != nil {
		a.down = fmt.Errorf("container runtime is down: %s", cri.Message(err))
	} else {
		a.down, a.runtime, a.version = nil, resp, version
	}
	after := readiness(a.runtime, a.down)
	return before != after, after == ""
}

func (a *Agent) pressure() []corev1.NodeConditionType {
	if a.c.Pressure == nil {
		return nil
	}
	return a.c.Pressure()
}

// Changed makes the agent report soon: something in its status is different.
func (a *Agent) Changed() {
	select {
	case a.poke <- struct{}{}:
	default:
	}
}

// keepStatus registers the node when the runtime has answered once, then writes
// its status when it changed, at least every nodeStatusReportFrequency.
func (a *Agent) keepStatus(ctx context.Context) error {
	look, write := a.c.Configuration.NodeStatusUpdateFrequency.Duration, a.c.Configuration.NodeStatusReportFrequency.Duration
	tick := a.c.Clock.NewTicker(look)
	defer tick.Stop()
	var reported time.Time
	wait := time.Duration(0)
	for {
		var retry <-chan time.Time
		if wrote, err := a.report(ctx, a.c.Clock.Since(reported) >= write); err != nil {
			if ctx.Err() == nil {
				a.c.Log.Warn("report node status", "err", err)
			}
			wait = min(max(2*wait, 200*time.Millisecond), look)
			retry = a.c.Clock.After(wait)
		} else {
			wait = 0
			if wrote {
				reported = a.c.Clock.Now()
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.poke:
		case <-tick.C():
		case <-retry:
		}
	}
}

// report brings the API up to date. Forced, it writes an unchanged status too.
func (a *Agent) report(ctx context.Context, force bool) (wrote bool, err error) {
	a.mu.Lock()
	asked := a.runtime != nil || a.down != nil
	known := a.node != nil
	a.mu.Unlock()
	if !asked {
		return false, nil // the first answer pokes
	}
	if !known {
		if err := a.register(ctx); err != nil {
			return false, fmt.Errorf("register node: %w", err)
		}
	}
	cur, err := a.nodes.Get(ctx, "", a.c.Name)
	if apierrors.IsNotFound(err) {
		// Someone deleted the node; it comes back, as a new object.
		if err := a.register(ctx); err != nil {
			return false, fmt.Errorf("register node again: %w", err)
		}
		cur, err = a.nodes.Get(ctx, "", a.c.Name)
	}
	if err != nil {
		return false, err
	}
	next := cur.DeepCopy()
	a.fill(ctx, next)
	if !force && sameStatus(&cur.Status, &next.Status) {
		a.setNode(cur)
		return false, nil
	}
	a.events(&cur.Status, &next.Status)
	patch, err := statusPatch(cur, next)
	if err != nil {
		return false, err
	}
	out, err := a.nodes.Patch(ctx, "", a.c.Name, types.StrategicMergePatchType, patch, "status")
	if err != nil {
		return false, err
	}
	a.setNode(out)
	return true, nil
}

// statusPatch is what turns the status of one state of a node into that of
// another, and nothing else: conditions that others keep, and what they do to
// the rest of the Node meanwhile, stay. Addresses are replaced whole, since two
// may have the same type, by which a merge would take them for one.
func statusPatch(from, to *corev1.Node) ([]byte, error) {
	old, err := json.Marshal(&corev1.Node{Status: from.Status})
	if err != nil {
		return nil, err
	}
	current := corev1.Node{Status: *to.Status.DeepCopy()}
	current.Status.Addresses = from.Status.Addresses
	next, err := json.Marshal(&current)
	if err != nil {
		return nil, err
	}
	data, err := strategicpatch.CreateTwoWayMergePatch(old, next, &corev1.Node{})
	if err != nil || equality.Semantic.DeepEqual(from.Status.Addresses, to.Status.Addresses) {
		return data, err
	}
	var patch map[string]any
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, err
	}
	status, ok := patch["status"].(map[string]any)
	if !ok {
		status = map[string]any{}
		patch["status"] = status
	}
	addresses := []any{map[string]any{"$patch": "replace"}}
	for _, a := range to.Status.Addresses {
		addresses = append(addresses, a)
	}
	status["addresses"] = addresses
	return json.Marshal(patch)
}

func (a *Agent) setNode(n *corev1.Node) {
	a.mu.Lock()
	a.node = n
	a.mu.Unlock()
}

// sameStatus compares without the heartbeat times, which change always.
func sameStatus(x, y *corev1.NodeStatus) bool {
	strip := func(s *corev1.NodeStatus) *corev1.NodeStatus {
		out := s.DeepCopy()
		for i := range out.Conditions {
			out.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
		return out
	}
	return equality.Semantic.DeepEqual(strip(x), strip(y))
}
