package controlplane

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"proa/internal/apiserver/registry"
	"proa/internal/store"
	"proa/internal/store/etcd"
)

// Upstream's times: how often a server says where it is, and for how long that holds.
const (
	announceEvery = 10 * time.Second
	announceTTL   = 15 * time.Second
)

// whereabouts leads the kubernetes Service to all API servers on one store. Each of
// those that share an etcd keeps its address there, where it expires without the
// server; each makes the endpoints of the Service those that have not, so that it does
// not matter who is left. Upstream's servers on the same etcd take part.
type whereabouts struct {
	registry *registry.Registry
	shared   *etcd.Engine // nil: no other server has this store
	codec    store.Codec  // of what is kept in etcd
	self     netip.Addr
	clock    clock.WithTicker
}

// Run follows the other servers until ctx ends, and then takes this one away.
func (w *whereabouts) Run(ctx context.Context) error {
	ticker := w.clock.NewTicker(announceEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C():
			if err := w.announce(ctx); err != nil && ctx.Err() == nil {
				slog.Error("Publish the servers of the kubernetes Service", "err", err)
			}
		case <-ctx.Done():
			if w.shared == nil {
				return nil
			}
			return w.leave(context.WithoutCancel(ctx))
		}
	}
}

// announce says where this server is, and publishes where all are.
func (w *whereabouts) announce(ctx context.Context) error {
	if w.shared == nil {
		return w.registry.PublishServers(ctx, []netip.Addr{w.self})
	}
	value, err := w.codec.Encode(masterLease, &corev1.Endpoints{ //nolint:staticcheck // upstream's form
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Time{Time: w.clock.Now()}},
		Subsets:    []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: w.self.String()}}}}, //nolint:staticcheck // as above
	})
	if err != nil {
		return fmt.Errorf("announce this server: %w", err)
	}
	if err := w.shared.Announce(ctx, w.self.String(), value, announceTTL); err != nil {
		return err
	}
	return w.publish(ctx)
}

// masterLease is the kind of what a server announces.
var masterLease = store.Key{Resource: schema.GroupResource{Resource: "endpoints"}}

func (w *whereabouts) publish(ctx context.Context) error {
	values, err := w.shared.Announced(ctx)
	if err != nil {
		return err
	}
	var servers []netip.Addr
	for _, value := range values {
		obj, err := w.codec.Decode(masterLease, value)
		if err != nil {
			return fmt.Errorf("read where another server is: %w", err)
		}
		e, ok := obj.(*corev1.Endpoints) //nolint:staticcheck // upstream's form
		if !ok || len(e.Subsets) == 0 || len(e.Subsets[0].Addresses) == 0 {
			continue
		}
		if addr, err := netip.ParseAddr(e.Subsets[0].Addresses[0].IP); err == nil {
			servers = append(servers, addr.Unmap())
		}
	}
	return w.registry.PublishServers(ctx, servers)
}

// leave takes this server out of the Service.
func (w *whereabouts) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, announceTTL/3)
	defer cancel()
	err := w.shared.Withdraw(ctx, w.self.String())
	if err == nil {
		err = w.publish(ctx)
	}
	if err != nil {
		slog.Warn("This server stays an endpoint of the kubernetes Service until its lease ends", "err", err)
	}
	return nil
}
