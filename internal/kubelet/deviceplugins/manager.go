// Package deviceplugins gives pods the devices of device plugins (KEP-3573). A plugin
// registers the extended resource it serves, lists its devices and their health, and
// says what a container needs to use those it was given.
//
// Devices are given when a pod is admitted and taken back when it has ended. What was
// given, and which resources there were, is kept in a file, so that a new life of the
// node agent gives no device twice.
package deviceplugins

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/clock"

	"proa/internal/kubelet/criconfig"
)

const (
	// grace is how long a resource whose plugin is gone stays in the node's capacity.
	grace       = 5 * time.Minute
	graceCheck  = 10 * time.Second
	callTimeout = 30 * time.Second
)

// Config of a Manager. RootDir is required.
type Config struct {
	RootDir string           // the kubelet's directory; device-plugins/ lies in it
	Clock   clock.WithTicker // default: the wall clock
	Log     *slog.Logger
	// Changed is called when the node's capacity changed, and with the pods that
	// have a device whose health did. Optional.
	Changed func(pods ...types.UID)
}

// Manager of the devices of this node's plugins. It is safe for concurrent use.
type Manager struct {
	c    Config
	dir  string
	file string
	work sync.Mutex // one pod at a time is given devices

	mu        sync.Mutex // guards what follows
	resources map[string]*plugin
	given     map[types.UID]map[string]map[string]*grant // by pod, container, resource
	closed    bool
	wg        sync.WaitGroup
}

// grant is what a container was given of one resource.
type grant struct {
	Devices []string                             `json:"devices"`
	Use     *pluginapi.ContainerAllocateResponse `json:"use,omitempty"`
}

// New reads what an earlier life of the agent left.
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
	dir := filepath.Join(c.RootDir, "device-plugins")
	m := &Manager{
		c: c, dir: dir, file: filepath.Join(dir, "kubelet_internal_checkpoint"),
		resources: map[string]*plugin{}, given: map[types.UID]map[string]map[string]*grant{},
	}
	return m, m.load()
}

// Capacity of the node in resources of plugins, and how much of it is healthy. A
// resource whose plugin has been gone for long has none.
func (m *Manager) Capacity() (capacity, allocatable corev1.ResourceList) {
	m.mu.Lock()
	defer m.mu.Unlock()
	capacity, allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	for name, p := range m.resources {
		all, healthy := len(p.devices), len(p.healthy())
		if p.expired(m.c.Clock.Now()) {
			all, healthy = 0, 0
		}
		capacity[corev1.ResourceName(name)] = *resource.NewQuantity(int64(all), resource.DecimalSI)
		allocatable[corev1.ResourceName(name)] = *resource.NewQuantity(int64(healthy), resource.DecimalSI)
	}
	return capacity, allocatable
}

// Allocate gives a pod that is being admitted the devices of its limits. Containers
// use again what init containers before them had.
func (m *Manager) Allocate(ctx context.Context, pod *corev1.Pod) error {
	m.work.Lock()
	defer m.work.Unlock()
	again := map[string]sets.Set[string]{} // by resource
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if err := m.allocate(ctx, pod, c, again); err != nil {
			return m.undo(pod.UID, err)
		}
		sidecar := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		for name, g := range m.grants(pod.UID, c.Name) {
			if again[name] == nil {
				again[name] = sets.New[string]()
			}
			if sidecar { // it goes on using them
				again[name].Delete(g.Devices...)
			} else {
				again[name].Insert(g.Devices...)
			}
		}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if err := m.allocate(ctx, pod, c, again); err != nil {
			return m.undo(pod.UID, err)
		}
		for name, g := range m.grants(pod.UID, c.Name) {
			again[name].Delete(g.Devices...)
		}
	}
	if !m.knows(pod.UID) {
		return nil
	}
	return m.save()
}

func (m *Manager) undo(pod types.UID, err error) error {
	m.mu.Lock()
	delete(m.given, pod)
	m.mu.Unlock()
	return err
}

func (m *Manager) knows(pod types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.given[pod] != nil
}

func (m *Manager) grants(pod types.UID, container string) map[string]*grant {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.given[pod][container])
}

// allocate gives one container what it lacks of each resource.
func (m *Manager) allocate(ctx context.Context, pod *corev1.Pod, c *corev1.Container, again map[string]sets.Set[string]) error {
	has := m.grants(pod.UID, c.Name)
	for _, name := range slices.Sorted(maps.Keys(c.Resources.Limits)) {
		need := c.Resources.Limits[name]
		count := int(need.Value())
		m.mu.Lock()
		p := m.resources[string(name)]
		m.mu.Unlock()
		if p == nil || count == 0 || has[string(name)] != nil {
			continue
		}
		ids, err := m.choose(ctx, string(name), p, count, again[string(name)])
		if err != nil {
			return err
		}
		use, err := p.allocate(ctx, ids)
		if err != nil {
			return err
		}
		m.mu.Lock()
		if m.given[pod.UID] == nil {
			m.given[pod.UID] = map[string]map[string]*grant{}
		}
		if m.given[pod.UID][c.Name] == nil {
			m.given[pod.UID][c.Name] = map[string]*grant{}
		}
		m.given[pod.UID][c.Name][string(name)] = &grant{Devices: ids, Use: use}
		m.mu.Unlock()
	}
	return nil
}

// choose picks devices that are healthy and free: first those to be used again, then
// those that the plugin prefers.
func (m *Manager) choose(ctx context.Context, name string, p *plugin, count int, again sets.Set[string]) ([]string, error) {
	m.mu.Lock()
	used := sets.New[string]()
	for _, containers := range m.given {
		for _, grants := range containers {
			if g := grants[name]; g != nil {
				used.Insert(g.Devices...)
			}
		}
	}
	healthy := sets.New(p.healthy()...)
	m.mu.Unlock()
	must := sets.List(again.Intersection(healthy))
	if len(must) >= count {
		return must[:count], nil
	}
	free := sets.List(healthy.Difference(used))
	if len(must)+len(free) < count {
		return nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", name, count-len(must), len(free))
	}
	preferred, err := p.prefer(ctx, slices.Concat(must, free), must, count)
	if err != nil {
		return nil, err
	}
	picked := sets.New(must...)
	for _, id := range slices.Concat(preferred, free) {
		if picked.Len() < count && slices.Contains(free, id) {
			picked.Insert(id)
		}
	}
	return sets.List(picked), nil
}

// Give is what a container needs to use its devices. It is called before each start,
// which the plugin may have asked to be told of.
func (m *Manager) Give(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (criconfig.Grant, error) {
	var out criconfig.Grant
	grants := m.grants(pod.UID, c.Name)
	for _, name := range slices.Sorted(maps.Keys(grants)) {
		g := grants[name]
		m.mu.Lock()
		p := m.resources[name]
		m.mu.Unlock()
		if p != nil {
			if err := p.start(ctx, g.Devices); err != nil {
				return out, err
			}
		}
		add(&out, g.Use)
	}
	return out, nil
}

func add(out *criconfig.Grant, use *pluginapi.ContainerAllocateResponse) {
	for _, key := range slices.Sorted(maps.Keys(use.GetEnvs())) {
		out.Env = append(out.Env, &runtimeapi.KeyValue{Key: key, Value: []byte(use.Envs[key])})
	}
	for _, m := range use.GetMounts() {
		out.Mounts = append(out.Mounts, &runtimeapi.Mount{ContainerPath: m.ContainerPath, HostPath: m.HostPath, Readonly: m.ReadOnly})
	}
	for _, d := range use.GetDevices() {
		out.Devices = append(out.Devices, &runtimeapi.Device{ContainerPath: d.ContainerPath, HostPath: d.HostPath, Permissions: d.Permissions})
	}
	for _, d := range use.GetCdiDevices() {
		out.CDI = append(out.CDI, d.Name)
	}
	if out.Annotations == nil && len(use.GetAnnotations()) > 0 {
		out.Annotations = map[string]string{}
	}
	maps.Copy(out.Annotations, use.GetAnnotations())
}

// Release takes the devices of a pod back.
func (m *Manager) Release(pod types.UID) error {
	if !m.knows(pod) {
		return nil
	}
	m.mu.Lock()
	delete(m.given, pod)
	m.mu.Unlock()
	return m.save()
}

// Health of the devices that a container has, for its status (KEP-4680).
func (m *Manager) Health(pod *corev1.Pod, c *corev1.Container) []corev1.ResourceStatus {
	grants := m.grants(pod.UID, c.Name)
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []corev1.ResourceStatus
	for _, name := range slices.Sorted(maps.Keys(grants)) {
		s := corev1.ResourceStatus{Name: corev1.ResourceName(name)}
		for _, id := range grants[name].Devices {
			s.Resources = append(s.Resources, corev1.ResourceHealth{ResourceID: corev1.ResourceID(id), Health: m.healthLocked(name, id)})
		}
		out = append(out, s)
	}
	return out
}

func (m *Manager) healthLocked(name, id string) corev1.ResourceHealthStatus {
	p := m.resources[name]
	if p == nil || !p.gone.IsZero() {
		return corev1.ResourceHealthStatusUnknown
	}
	switch d := p.devices[id]; {
	case d == nil:
		return corev1.ResourceHealthStatusUnknown
	case d.Health == pluginapi.Healthy:
		return corev1.ResourceHealthStatusHealthy
	}
	return corev1.ResourceHealthStatusUnhealthy
}

// Pods are those that have devices.
func (m *Manager) Pods() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Keys(m.given), func(a, b types.UID) int { return cmp.Compare(a, b) })
}
