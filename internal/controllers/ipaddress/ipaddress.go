// Package ipaddress keeps the IPAddress objects of Services to what the Services
// say: an address that lost its object gets it again, an object that no Service
// stands behind goes, and what only a user can mend is told by an event (KEP-1880).
//
// Allocation writes both in one transaction, so that there is something to repair
// only after somebody else wrote: a user, or another server before this one.
package ipaddress

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/controllers"
)

const (
	// Interval is how often a Service is looked at again that only its user can mend.
	Interval = 3 * time.Minute

	// grace is how old an address without a Service must be before it goes: with
	// upstream's servers on the same store it is written before its Service.
	grace = 60 * time.Second

	allocator = "ipallocator.k8s.io"
)

// Controller reconciles Services and IPAddresses with one another.
type Controller struct {
	serviceLoop, addressLoop *controllers.Loop

	services  *client.Informer[*corev1.Service]
	addresses *client.Informer[*networkingv1.IPAddress]
	cidrs     *client.Informer[*networkingv1.ServiceCIDR]
	events    controllers.EventRecorder
	clock     clock.PassiveClock
	found     *prometheus.CounterVec
	failed    prometheus.Counter
}

// New returns the controller.
func New(c controllers.Config) *Controller {
	r := &Controller{
		services:  client.Shared[*corev1.Service](c.Cache),
		addresses: client.Shared[*networkingv1.IPAddress](c.Cache),
		cidrs:     client.Shared[*networkingv1.ServiceCIDR](c.Cache),
		events:    c.Events("ipallocator-repair-controller"),
		clock:     c.Clock,
		found: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_clusterip_repair_ip_errors_total",
			Help: "[ALPHA] Cluster IPs that were found wrong, by kind: leak, repair, outOfRange, duplicate, unknown, invalid.",
		}, []string{"type"}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "apiserver_clusterip_repair_reconcile_errors_total",
			Help: "[ALPHA] Repairs of cluster IPs that failed.",
		}),
	}
	c.Register(r.found, r.failed)
	r.serviceLoop = controllers.NewLoop("services", c, r.counted(r.reconcileService))
	r.addressLoop = controllers.NewLoop("ipaddresses", c, r.counted(r.reconcileAddress))
	r.services.OnChange(r.serviceChanged)
	r.addresses.OnChange(r.addressChanged)
	return r
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.serviceLoop.Run(ctx) })
	g.Go(func() error { return c.addressLoop.Run(ctx) })
	return g.Wait()
}

func (c *Controller) counted(reconcile func(context.Context, controllers.Key) (controllers.Result, error)) func(context.Context, controllers.Key) (controllers.Result, error) {
	return func(ctx context.Context, key controllers.Key) (controllers.Result, error) {
		result, err := reconcile(ctx, key)
		if err != nil && !apierrors.IsConflict(err) {
			c.failed.Inc()
		}
		return result, err
	}
}

// serviceChanged looks at a Service, and at the addresses that it had.
func (c *Controller) serviceChanged(old, svc *corev1.Service) {
	if svc != nil {
		c.serviceLoop.EnqueueObject(svc)
	}
	if old == nil {
		return
	}
	for _, ip := range clusterIPs(old) {
		c.addressLoop.Enqueue(controllers.Key{Name: ip})
	}
}

// addressChanged looks at an address, and at the Service that it is or was of.
func (c *Controller) addressChanged(old, address *networkingv1.IPAddress) {
	for _, a := range []*networkingv1.IPAddress{old, address} {
		if a == nil {
			continue
		}
		if ref := a.Spec.ParentRef; ofService(ref) {
			c.serviceLoop.Enqueue(controllers.Key{Namespace: ref.Namespace, Name: ref.Name})
		}
	}
	if address != nil {
		c.addressLoop.EnqueueObject(address)
	}
}

func ofService(ref *networkingv1.ParentReference) bool {
	return ref != nil && ref.Group == "" && ref.Resource == "services"
}

// clusterIPs are the addresses that a Service says it has.
func clusterIPs(svc *corev1.Service) []string {
	if svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.ClusterIP == corev1.ClusterIPNone || svc.Spec.ClusterIP == "" {
		return nil
	}
	return svc.Spec.ClusterIPs
}

// holds tells whether an address, as it names its object, is one of the Service's.
func holds(svc *corev1.Service, name string) bool {
	return slices.ContainsFunc(clusterIPs(svc), func(text string) bool {
		ip, err := netip.ParseAddr(text)
		return err == nil && ip.String() == name
	})
}

// view is where objects are read: the informers, which may be a moment late with
// one kind, or the API.
type view struct {
	service func(namespace, name string) (*corev1.Service, error)
	address func(name string) (*networkingv1.IPAddress, error)
}

func (c *Controller) cached() view {
	return view{
		service: func(namespace, name string) (*corev1.Service, error) {
			svc, _ := c.services.Cached(namespace, name)
			return svc, nil
		},
		address: func(name string) (*networkingv1.IPAddress, error) {
			address, _ := c.addresses.Cached("", name)
			return address, nil
		},
	}
}

func (c *Controller) current(ctx context.Context) view {
	return view{
		service: func(namespace, name string) (*corev1.Service, error) {
			return there(c.services.Get(ctx, namespace, name))
		},
		address: func(name string) (*networkingv1.IPAddress, error) {
			return there(c.addresses.Get(ctx, "", name))
		},
	}
}

// there makes nil of what is not found.
func there[T client.Object](obj T, err error) (T, error) {
	var none T
	if apierrors.IsNotFound(err) {
		return none, nil
	}
	return obj, err
}

// inRange tells whether an address is in any ServiceCIDR.
func (c *Controller) inRange(ip netip.Addr) bool {
	for _, cidr := range c.cidrs.Select("", labels.Everything()) {
		for _, text := range cidr.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil && p.Contains(ip) {
				return true
			}
		}
	}
	return false
}

func familyOf(ip netip.Addr) corev1.IPFamily {
	if ip.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// addressOf is the object of a Service's address.
func addressOf(svc *corev1.Service, ip netip.Addr) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: ip.String(), Labels: labelsOf(ip)},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: svc.Namespace, Name: svc.Name,
		}},
	}
}

func labelsOf(ip netip.Addr) map[string]string {
	return map[string]string{
		networkingv1.LabelIPAddressFamily: string(familyOf(ip)),
		networkingv1.LabelManagedBy:       allocator,
	}
}

// remove deletes an address if it is still the one that was looked at.
func (c *Controller) remove(ctx context.Context, address *networkingv1.IPAddress) error {
	_, err := c.addresses.Delete(ctx, "", address.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &address.UID}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
