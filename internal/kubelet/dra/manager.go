// Package dra prepares the devices of ResourceClaims on this node (KEP-4381). The
// scheduler has allocated them; their drivers, which register as plugins, make them
// usable and say by which CDI names the runtime adds them to containers.
//
// A claim is prepared once, before the first of its pods starts, and given back
// after the last of them has ended. What is prepared is kept in a file, so that
// neither is forgotten when the node agent starts anew.
package dra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	draapi "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/clock"

	"proa/internal/client"
)

// Config of a Manager. API, NodeName and RootDir are required.
type Config struct {
	API      client.API
	NodeName string
	RootDir  string           // the kubelet's directory, where the state is kept
	Clock    clock.WithTicker // default: the wall clock
	Log      *slog.Logger
	// Changed is told of pods with a device whose health changed. Optional.
	Changed func(pods ...types.UID)
}

// Manager of the devices of this node's claims. It is safe for concurrent use.
type Manager struct {
	c    Config
	file string

	mu      sync.Mutex // guards what follows
	claims  map[types.UID]*claim
	drivers map[string][]*driver          // by name, the newest last
	wipes   map[string]context.CancelFunc // of drivers that are gone
	health  map[identity]health
	closed  bool
	wg      sync.WaitGroup // health streams and wipes
}

// New reads the state that an earlier life of the agent left.
func New(c Config) (*Manager, error) {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Changed == nil {
		c.Changed = func(...types.UID) {}
	}
	m := &Manager{
		c: c, file: filepath.Join(c.RootDir, "dra_manager_state"),
		drivers: map[string][]*driver{}, wipes: map[string]context.CancelFunc{}, health: map[identity]health{},
	}
	return m, m.load()
}

// Run ends what the manager does beside its calls when ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	m.wipeLeftovers(ctx)
	tick := m.c.Clock.NewTicker(staleCheck)
	defer tick.Stop()
	for {
		select {
		case <-tick.C():
			m.expire()
			continue
		case <-ctx.Done():
		}
		break
	}
	m.mu.Lock()
	m.closed = true
	for _, list := range m.drivers {
		for _, d := range list {
			d.cancel()
		}
	}
	for _, cancel := range m.wipes {
		cancel()
	}
	m.mu.Unlock()
	m.wg.Wait()
	return ctx.Err()
}

// Prepare makes the devices of a pod's claims usable. It may be called again: what
// is prepared stays as it is.
func (m *Manager) Prepare(ctx context.Context, pod *corev1.Pod) error {
	objects, err := m.objects(ctx, pod)
	if err != nil || len(objects) == 0 {
		return err
	}
	held := make([]*claim, len(objects))
	for i, obj := range objects {
		held[i] = m.hold(obj)
	}
	defer func() {
		for _, c := range held {
			c.work.Unlock()
		}
	}()
	batches, undone := map[string][]*claim{}, map[*claim][]string{}
	for i, c := range held {
		m.use(c, pod.UID)
		if c.Prepared {
			continue
		}
		undone[c] = driversOf(objects[i], resourcev1.SkipNodeOperationNodeUnprepareResources)
		for _, name := range driversOf(objects[i], resourcev1.SkipNodeOperationNodePrepareResources) {
			batches[name] = append(batches[name], c)
		}
	}
	prepared := map[*claim][]device{}
	for _, name := range slices.Sorted(maps.Keys(batches)) {
		d, err := m.driver(name)
		if err != nil {
			return err
		}
		for _, c := range batches[name] {
			if slices.Contains(undone[c], name) {
				m.attempt(c, name)
			}
		}
		if err := m.prepare(ctx, d, batches[name], prepared); err != nil {
			return err
		}
	}
	for _, c := range held {
		m.settle(c, prepared[c])
	}
	return m.save()
}

// objects are the pod's claims in the order of their uids, which is that of their locks.
func (m *Manager) objects(ctx context.Context, pod *corev1.Pod) ([]*resourcev1.ResourceClaim, error) {
	for i := range pod.Spec.ResourceClaims {
		if _, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i]); err != nil {
			return nil, err
		}
	}
	var out []*resourcev1.ResourceClaim
	for name, owned := range resourceclaim.PodClaims(pod) {
		c, err := client.Of[*resourcev1.ResourceClaim](m.c.API).Get(ctx, pod.Namespace, name)
		if err != nil {
			return nil, fmt.Errorf("fetch ResourceClaim %s: %w", name, err)
		}
		if owned {
			if err := resourceclaim.IsForPod(pod, c, true); err != nil {
				return nil, err
			}
		}
		if !resourceclaim.IsReservedForPod(pod, c, true) {
			return nil, fmt.Errorf("pod %s (%s) is not allowed to use ResourceClaim %s (%s)", pod.Name, pod.UID, name, c.UID)
		}
		if c.Status.Allocation == nil {
			return nil, fmt.Errorf("ResourceClaim %s: claim is not allocated", name)
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b *resourcev1.ResourceClaim) int { return cmp.Compare(a.UID, b.UID) })
	return slices.CompactFunc(out, func(a, b *resourcev1.ResourceClaim) bool { return a.UID == b.UID }), nil
}

// driversOf a claim are those that must be asked for an operation: a driver whose
// devices all skip it is left alone.
func driversOf(c *resourcev1.ResourceClaim, operation resourcev1.SkipNodeOperation) []string {
	var names []string
	for _, r := range c.Status.Allocation.Devices.Results {
		if !slices.Contains(r.SkipNodeOperations, operation) && !slices.Contains(r.SkipNodeOperations, resourcev1.SkipNodeOperationAll) {
			names = append(names, r.Driver)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// prepare asks one driver for some claims and adds their devices to prepared.
func (m *Manager) prepare(ctx context.Context, d *driver, claims []*claim, prepared map[*claim][]device) error {
	if err := m.save(); err != nil { // before the driver has anything to give back
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := d.client.NodePrepareResources(ctx, &draapi.NodePrepareResourcesRequest{Claims: named(claims)})
	if err != nil {
		return fmt.Errorf("NodePrepareResources: %w", err)
	}
	for _, c := range claims {
		result := answer.Claims[string(c.UID)]
		if result == nil {
			return fmt.Errorf("NodePrepareResources skipped ResourceClaim %s", c.Name)
		}
		if result.Error != "" {
			return fmt.Errorf("NodePrepareResources failed for ResourceClaim %s: %s", c.Name, result.Error)
		}
		for _, dev := range result.Devices {
			prepared[c] = append(prepared[c], device{identity{d.plugin.Name, dev.PoolName, dev.DeviceName}, dev.RequestNames, dev.CdiDeviceIds})
		}
	}
	return nil
}

func named(claims []*claim) []*draapi.Claim {
	var out []*draapi.Claim
	for _, c := range claims {
		out = append(out, &draapi.Claim{Namespace: c.Namespace, Uid: string(c.UID), Name: c.Name})
	}
	return out
}

// Release gives back what no other pod uses of a pod's claims, once its containers
// have ended. It may be called again until it succeeds.
func (m *Manager) Release(ctx context.Context, pod types.UID) error {
	var errs []error
	for _, uid := range m.used(pod) {
		errs = append(errs, m.release(ctx, uid, pod))
	}
	return errors.Join(errs...)
}

func (m *Manager) release(ctx context.Context, uid, pod types.UID) error {
	c := m.held(uid)
	if c == nil {
		return nil
	}
	defer c.work.Unlock()
	if len(c.Pods) == 1 && c.Pods[0] == pod {
		for _, name := range slices.Clone(c.Drivers) {
			if err := m.unprepare(ctx, name, c); err != nil {
				return err
			}
		}
	}
	m.drop(c, pod)
	return m.save()
}

func (m *Manager) unprepare(ctx context.Context, name string, c *claim) error {
	d, err := m.driver(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := d.client.NodeUnprepareResources(ctx, &draapi.NodeUnprepareResourcesRequest{Claims: named([]*claim{c})})
	if err != nil {
		return fmt.Errorf("NodeUnprepareResources: %w", err)
	}
	result, ok := answer.Claims[string(c.UID)]
	if !ok {
		return fmt.Errorf("NodeUnprepareResources skipped ResourceClaim %s", c.Name)
	}
	if result.GetError() != "" {
		return fmt.Errorf("NodeUnprepareResources failed for ResourceClaim %s: %s", c.Name, result.Error)
	}
	return nil
}

// CDI returns the names of the devices that a container gets of the pod's claims:
// all of a claim, or those of one request.
func (m *Manager) CDI(pod *corev1.Pod, spec *corev1.Container) ([]string, error) {
	var names []string
	err := m.visit(pod, spec, func(_ corev1.ResourceName, _ *claim, d *device) { names = append(names, d.CDI...) })
	slices.Sort(names)
	return slices.Compact(names), err
}

// visit calls f with the devices of a container and the name under which its
// status tells of them: the claim and request that it names, or the resource.
func (m *Manager) visit(pod *corev1.Pod, spec *corev1.Container, f func(corev1.ResourceName, *claim, *device)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	each := func(label, name, request string) error {
		c := m.findLocked(pod, name)
		if c == nil || !c.Prepared {
			return fmt.Errorf("ResourceClaim %s is not prepared", name)
		}
		for i := range c.Devices {
			if c.Devices[i].isFor(request) {
				f(corev1.ResourceName(label), c, &c.Devices[i])
			}
		}
		return nil
	}
	for _, used := range spec.Resources.Claims {
		for i := range pod.Spec.ResourceClaims {
			if pod.Spec.ResourceClaims[i].Name != used.Name {
				continue
			}
			name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
			if err != nil {
				return err
			}
			if name == nil {
				continue
			}
			label := "claim:" + used.Name
			if used.Request != "" {
				label += "/" + used.Request
			}
			if err := each(label, *name, used.Request); err != nil {
				return err
			}
		}
	}
	if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil {
		for _, r := range extended.RequestMappings {
			if r.ContainerName == spec.Name {
				if err := each(r.ResourceName, extended.ResourceClaimName, r.RequestName); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// callTimeout of the drivers' calls.
const callTimeout = 45 * time.Second
