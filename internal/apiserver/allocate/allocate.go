// Package allocate gives Services what must be unique in a cluster: cluster IPs,
// node ports and health check ports.
//
// Every allocation is part of the transaction that writes the Service. A cluster
// IP is an IPAddress object with the address as its name, so that two servers
// cannot create the same one; the node ports in use are one RangeAllocation object
// (a bitmap, upstream's form), which every allocation reads and writes.
package allocate

import (
	"fmt"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"

	"proa/internal/apis"
	"proa/internal/store"
)

// Config says what there is to allocate.
type Config struct {
	Store     *store.Store
	CIDRs     []netip.Prefix // the first one's family is the default; at most one per family
	NodePorts utilnet.PortRange
	Clock     clock.PassiveClock
	Metrics   prometheus.Registerer // nil: nobody asks
}

// Services allocates for Services. Its methods run inside a transaction and
// change the Service they are given.
type Services struct {
	store    *store.Store
	cidrs    []netip.Prefix
	families []corev1.IPFamily // of cidrs
	ports    utilnet.PortRange
	clock    clock.PassiveClock
	measures *measures
}

// NewServices checks the config.
func NewServices(c Config) (*Services, error) {
	s := &Services{store: c.Store, ports: c.NodePorts, clock: c.Clock, measures: newMeasures()}
	for _, cidr := range c.CIDRs {
		family := familyOf(cidr.Addr())
		if !cidr.IsValid() || s.serves(family) {
			return nil, fmt.Errorf("service CIDRs %v: want at most one for each IP family", c.CIDRs)
		}
		s.cidrs = append(s.cidrs, cidr.Masked())
		s.families = append(s.families, family)
	}
	if len(s.cidrs) == 0 {
		return nil, fmt.Errorf("service CIDRs: at least one is required")
	}
	if c.Metrics != nil {
		if err := c.Metrics.Register(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Services) serves(family corev1.IPFamily) bool {
	for _, f := range s.families {
		if f == family {
			return true
		}
	}
	return false
}

func familyOf(addr netip.Addr) corev1.IPFamily {
	if addr.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// Create allocates what a new Service needs.
func (s *Services) Create(tx *store.Tx, obj apis.Object) error {
	svc := obj.(*corev1.Service)
	if err := s.setFamilies(svc, nil); err != nil {
		return err
	}
	if err := s.assignIPs(tx, svc, nil); err != nil {
		return err
	}
	return s.assignPorts(tx, svc, &corev1.Service{})
}

// Update allocates what a changed Service needs now and releases what it no longer does.
func (s *Services) Update(tx *store.Tx, obj, old apis.Object) error {
	svc, before := obj.(*corev1.Service), old.(*corev1.Service)
	if err := s.setFamilies(svc, before); err != nil {
		return err
	}
	if err := s.assignIPs(tx, svc, before); err != nil {
		return err
	}
	return s.assignPorts(tx, svc, before)
}

// Remove releases everything a Service held.
func (s *Services) Remove(tx *store.Tx, obj apis.Object) error {
	svc := obj.(*corev1.Service)
	for _, ip := range clusterIPs(svc) {
		if err := s.releaseIP(tx, ip); err != nil {
			return err
		}
	}
	held := heldPorts(svc)
	if len(held) == 0 {
		return nil
	}
	m, err := s.openPorts(tx)
	if err != nil {
		return err
	}
	for _, port := range held {
		m.release(port)
	}
	return m.save(tx)
}

func invalid(svc *corev1.Service, errs ...*field.Error) error {
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), svc.Name, errs)
}
