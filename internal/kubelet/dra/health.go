package dra

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1"
	"k8s.io/utils/ptr"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// defaultLease is how long a device's health is believed that names no time.
	defaultLease = 30 * time.Second
	staleCheck   = 5 * time.Second
	retryAfter   = 5 * time.Second
)

// health is what a driver last said of a device.
type health struct {
	status  corev1.ResourceHealthStatus
	message string
	until   time.Time // from then on it is unknown
}

// follow takes in what a driver says of its devices until ctx ends.
func (m *Manager) follow(ctx context.Context, d *driver) {
	defer m.forget(d.plugin.Name)
	for ctx.Err() == nil {
		err := m.listen(ctx, d)
		switch {
		case ctx.Err() != nil:
			return
		case status.Code(err) == codes.Unimplemented:
			return
		case err != nil && !errors.Is(err, io.EOF):
			m.c.Log.Warn("watch health of devices", "driver", d.plugin.Name, "err", err)
		}
		select {
		case <-ctx.Done():
		case <-m.c.Clock.After(retryAfter):
		}
	}
}

func (m *Manager) listen(ctx context.Context, d *driver) error {
	stream, err := d.health.NodeWatchResources(ctx, &healthapi.NodeWatchResourcesRequest{})
	if err != nil {
		return err
	}
	for {
		report, err := stream.Recv()
		if err != nil {
			return err
		}
		m.take(d.plugin.Name, report.Devices)
	}
}

var statuses = map[healthapi.HealthStatus]corev1.ResourceHealthStatus{
	healthapi.HealthStatus_HEALTHY:   corev1.ResourceHealthStatusHealthy,
	healthapi.HealthStatus_UNHEALTHY: corev1.ResourceHealthStatusUnhealthy,
}

func (m *Manager) take(driver string, reports []*healthapi.DeviceHealth) {
	now := m.c.Clock.Now()
	m.mu.Lock()
	changed := sets.New[identity]()
	for _, r := range reports {
		lease := defaultLease
		if r.HealthCheckTimeoutSeconds > 0 {
			lease = time.Duration(r.HealthCheckTimeoutSeconds) * time.Second
		}
		h := health{status: corev1.ResourceHealthStatusUnknown, message: shortened(r.Message), until: now.Add(lease)}
		if s, ok := statuses[r.Health]; ok {
			h.status = s
		}
		id := identity{driver, r.Device.GetPoolName(), r.Device.GetDeviceName()}
		if old := m.health[id]; old.status != h.status || old.message != h.message {
			changed.Insert(id)
		}
		m.health[id] = h
	}
	pods := m.podsOfLocked(changed)
	m.mu.Unlock()
	m.tell(pods)
}

// shortened keeps a message within what a status takes.
func shortened(message string) string {
	if len(message) <= corev1.ResourceHealthMessageMaxLength {
		return message
	}
	return message[:corev1.ResourceHealthMessageMaxLength-len("...")] + "..."
}

// expire drops what has not been said again in time.
func (m *Manager) expire() {
	now := m.c.Clock.Now()
	m.dropHealth(func(_ identity, h health) bool { return !now.Before(h.until) })
}

// forget drops all that a driver said, when it is gone.
func (m *Manager) forget(driver string) {
	m.dropHealth(func(id identity, _ health) bool { return id.Driver == driver })
}

func (m *Manager) dropHealth(is func(identity, health) bool) {
	m.mu.Lock()
	gone := sets.New[identity]()
	for id, h := range m.health {
		if is(id, h) {
			gone.Insert(id)
			delete(m.health, id)
		}
	}
	pods := m.podsOfLocked(gone)
	m.mu.Unlock()
	m.tell(pods)
}

func (m *Manager) podsOfLocked(devices sets.Set[identity]) []types.UID {
	pods := sets.New[types.UID]()
	for _, c := range m.claims {
		if slices.ContainsFunc(c.Devices, func(d device) bool { return devices.Has(d.identity) }) {
			pods.Insert(c.Pods...)
		}
	}
	return sets.List(pods)
}

func (m *Manager) tell(pods []types.UID) {
	if len(pods) > 0 {
		m.c.Changed(pods...)
	}
}

// Health of the devices that a container has, for its status (KEP-4680).
func (m *Manager) Health(pod *corev1.Pod, spec *corev1.Container) []corev1.ResourceStatus {
	var out []corev1.ResourceStatus
	_ = m.visit(pod, spec, func(name corev1.ResourceName, _ *claim, d *device) { // one that is not prepared has no health
		i := slices.IndexFunc(out, func(s corev1.ResourceStatus) bool { return s.Name == name })
		if i < 0 {
			i = len(out)
			out = append(out, corev1.ResourceStatus{Name: name})
		}
		h := corev1.ResourceHealth{ResourceID: corev1.ResourceID(d.Driver + "/" + d.Pool + "/" + d.Device), Health: corev1.ResourceHealthStatusUnknown}
		if told, ok := m.health[d.identity]; ok && m.c.Clock.Now().Before(told.until) {
			h.Health = told.status
			if told.message != "" {
				h.Message = ptr.To(told.message)
			}
		}
		if !slices.ContainsFunc(out[i].Resources, func(o corev1.ResourceHealth) bool { return o.ResourceID == h.ResourceID }) { // two shares of it
			out[i].Resources = append(out[i].Resources, h)
		}
	})
	return out
}
