package dra

import (
	"context"
	"fmt"
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	draapi "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"google.golang.org/grpc"

	"proa/internal/client"
	"proa/internal/kubelet/plugins"
)

// wipeDelay is how long a driver may be away before what it offers on this node is
// withdrawn.
const wipeDelay = 30 * time.Second

// driver is one running process of a driver. While a driver is updated there may be two.
type driver struct {
	plugin plugins.Plugin
	conn   *grpc.ClientConn
	client draapi.DRAPluginClient
	health healthapi.DRAResourceHealthClient // nil: it tells nothing of health
	cancel context.CancelFunc                // of its health stream
}

// Register implements plugins.Handler.
func (m *Manager) Register(p plugins.Plugin) error {
	if reasons := validation.IsDNS1123Subdomain(p.Name); len(reasons) > 0 {
		return fmt.Errorf("invalid driver name %q: %s", p.Name, reasons[0])
	}
	conn, err := plugins.Dial(p.Endpoint)
	if err != nil {
		return err
	}
	d := &driver{plugin: p, conn: conn}
	switch {
	case slices.Contains(p.Versions, draapi.DRAPluginService):
		d.client = draapi.NewDRAPluginClient(conn)
	case slices.Contains(p.Versions, drav1beta1.DRAPluginService):
		d.client = drav1beta1.V1Beta1ClientWrapper{DRAPluginClient: drav1beta1.NewDRAPluginClient(conn)}
	default:
		_ = conn.Close()
		return fmt.Errorf("none of the versions %v of driver %s is supported by this node", p.Versions, p.Name)
	}
	switch {
	case slices.Contains(p.Versions, healthapi.DRAResourceHealthService):
		d.health = healthapi.NewDRAResourceHealthClient(conn)
	case slices.Contains(p.Versions, healthv1alpha1.DRAResourceHealthService):
		d.health = healthapi.V1Alpha1ClientWrapper{Client: healthv1alpha1.NewDRAResourceHealthClient(conn)}
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		cancel()
		return conn.Close()
	}
	if stop := m.wipes[p.Name]; stop != nil {
		stop()
		delete(m.wipes, p.Name)
	}
	m.drivers[p.Name] = append(m.drivers[p.Name], d)
	if d.health != nil {
		m.wg.Go(func() { m.follow(ctx, d) })
	}
	return nil
}

// Unregister implements plugins.Handler.
func (m *Manager) Unregister(p plugins.Plugin) {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := m.drivers[p.Name]
	i := slices.IndexFunc(list, func(d *driver) bool { return d.plugin.Endpoint == p.Endpoint })
	if i < 0 {
		return
	}
	list[i].cancel()
	if err := list[i].conn.Close(); err != nil {
		m.c.Log.Warn("close connection", "driver", p.Name, "err", err)
	}
	if list = slices.Delete(list, i, i+1); len(list) > 0 {
		m.drivers[p.Name] = list
		return
	}
	delete(m.drivers, p.Name)
	if m.closed {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.wipes[p.Name] = cancel
	m.wg.Go(func() {
		defer cancel()
		m.wipe(ctx, p.Name)
	})
}

// driver returns the newest process of a driver.
func (m *Manager) driver(name string) (*driver, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := m.drivers[name]
	if len(list) == 0 {
		return nil, fmt.Errorf("DRA driver %s is not registered", name)
	}
	return list[len(list)-1], nil
}

// wipe withdraws what a driver offers on this node unless it comes back in time.
func (m *Manager) wipe(ctx context.Context, name string) {
	for wait := wipeDelay; ; wait = retryAfter {
		select {
		case <-ctx.Done():
			return
		case <-m.c.Clock.After(wait):
		}
		err := client.Of[*resourcev1.ResourceSlice](m.c.API).DeleteCollection(ctx, "", metav1.DeleteOptions{}, m.offered(name))
		if err == nil || ctx.Err() != nil {
			return
		}
		m.c.Log.Warn("withdraw ResourceSlices", "driver", name, "err", err)
	}
}

// offered selects this node's ResourceSlices, of one driver or of all.
func (m *Manager) offered(driver string) metav1.ListOptions {
	set := fields.Set{resourcev1.ResourceSliceSelectorNodeName: m.c.NodeName}
	if driver != "" {
		set[resourcev1.ResourceSliceSelectorDriver] = driver
	}
	return metav1.ListOptions{FieldSelector: set.String()}
}

// wipeLeftovers withdraws what drivers that do not register again left from before
// this process started.
func (m *Manager) wipeLeftovers(ctx context.Context) {
	slices, err := client.Of[*resourcev1.ResourceSlice](m.c.API).List(ctx, "", m.offered(""))
	if err != nil {
		m.c.Log.Warn("list ResourceSlices", "err", err)
		return
	}
	if len(slices) == 0 {
		return
	}
	m.wg.Go(func() {
		select {
		case <-ctx.Done():
			return
		case <-m.c.Clock.After(wipeDelay):
		}
		for _, s := range slices {
			if _, err := m.driver(s.Spec.Driver); err == nil {
				continue
			}
			opts := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.UID))}
			_, err := client.Of[*resourcev1.ResourceSlice](m.c.API).Delete(ctx, "", s.Name, opts)
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
				m.c.Log.Warn("withdraw ResourceSlice", "name", s.Name, "err", err)
			}
		}
	})
}
