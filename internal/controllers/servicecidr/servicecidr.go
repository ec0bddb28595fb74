// Package servicecidr says when a ServiceCIDR may be used, and keeps one that is
// being deleted until no address depends on it alone (KEP-1880).
package servicecidr

import (
	"context"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/controllers"
)

const (
	finalizer = "networking.k8s.io/service-cidr-finalizer"

	// grace is how long a ServiceCIDR is kept after it was marked as terminating:
	// an address may be on its way that was taken before.
	grace = 10 * time.Second
)

// Controller reconciles ServiceCIDRs.
type Controller struct {
	loop   *controllers.Loop
	cidrs  *client.Informer[*networkingv1.ServiceCIDR]
	ips    *client.Informer[*networkingv1.IPAddress]
	events controllers.EventRecorder
	clock  clock.PassiveClock
}

// New returns the ServiceCIDR controller.
func New(c controllers.Config) *Controller {
	s := &Controller{
		cidrs:  client.Shared[*networkingv1.ServiceCIDR](c.Cache),
		ips:    client.Shared[*networkingv1.IPAddress](c.Cache),
		events: c.Events("service-cidr-controller"),
		clock:  c.Clock,
	}
	s.loop = controllers.NewLoop("ipaddresses", c, s.reconcile)
	s.cidrs.OnChange(s.cidrChanged)
	s.ips.OnChange(func(old, ip *networkingv1.IPAddress) {
		if ip == nil { // one less to hold ranges back
			s.enqueueContaining(old.Name)
		}
	})
	return s
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// cidrChanged looks at a range and at those that overlap it: they may take over
// its addresses, or it theirs.
func (c *Controller) cidrChanged(old, cidr *networkingv1.ServiceCIDR) {
	if cidr == nil {
		cidr = old
	}
	c.loop.EnqueueObject(cidr)
	ranges := prefixes(cidr)
	for _, other := range c.cidrs.Select("", labels.Everything()) {
		if other.Name != cidr.Name && slices.ContainsFunc(prefixes(other), func(p netip.Prefix) bool { return slices.ContainsFunc(ranges, p.Overlaps) }) {
			c.loop.EnqueueObject(other)
		}
	}
}

func (c *Controller) enqueueContaining(name string) {
	ip, err := netip.ParseAddr(name)
	if err != nil {
		return
	}
	for _, cidr := range c.cidrs.Select("", labels.Everything()) {
		if contains(cidr, ip) {
			c.loop.EnqueueObject(cidr)
		}
	}
}

func prefixes(cidr *networkingv1.ServiceCIDR) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range cidr.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p.Masked())
		}
	}
	return all
}

func contains(cidr *networkingv1.ServiceCIDR, ip netip.Addr) bool {
	return slices.ContainsFunc(prefixes(cidr), func(p netip.Prefix) bool { return p.Contains(ip) })
}

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	cidr, ok := c.cidrs.Cached("", key.Name)
	if !ok {
		return controllers.Result{}, nil
	}
	if cidr.DeletionTimestamp != nil {
		return c.terminate(ctx, cidr)
	}
	cidr, err := c.hold(ctx, cidr)
	if err != nil || meta.IsStatusConditionTrue(cidr.Status.Conditions, networkingv1.ServiceCIDRConditionReady) {
		return controllers.Result{}, err
	}
	return controllers.Result{}, c.condition(ctx, cidr, metav1.Condition{
		Status: metav1.ConditionTrue, Message: "Kubernetes Service CIDR is ready",
	})
}

// hold adds the finalizer.
func (c *Controller) hold(ctx context.Context, cidr *networkingv1.ServiceCIDR) (*networkingv1.ServiceCIDR, error) {
	if slices.Contains(cidr.Finalizers, finalizer) {
		return cidr, nil
	}
	cidr = cidr.DeepCopy()
	cidr.Finalizers = append(cidr.Finalizers, finalizer)
	return c.cidrs.Update(ctx, cidr)
}

// terminate lets a range go that is being deleted once nothing depends on it. No
// new address is taken from it any more.
func (c *Controller) terminate(ctx context.Context, cidr *networkingv1.ServiceCIDR) (controllers.Result, error) {
	if !slices.Contains(cidr.Finalizers, finalizer) {
		return controllers.Result{}, nil
	}
	if c.needed(cidr) {
		return controllers.Result{}, c.condition(ctx, cidr, metav1.Condition{
			Status: metav1.ConditionFalse, Reason: networkingv1.ServiceCIDRReasonTerminating,
			Message: "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR",
		})
	}
	if left := cidr.DeletionTimestamp.Add(grace).Sub(c.clock.Now()); left > 0 {
		return controllers.Result{After: left}, nil
	}
	cidr = cidr.DeepCopy()
	cidr.Finalizers = slices.DeleteFunc(cidr.Finalizers, func(f string) bool { return f == finalizer })
	_, err := c.cidrs.Update(ctx, cidr)
	return controllers.Result{}, err
}

// needed tells whether an address is in no other range than this one.
func (c *Controller) needed(cidr *networkingv1.ServiceCIDR) bool {
	var others []*networkingv1.ServiceCIDR
	for _, other := range c.cidrs.Select("", labels.Everything()) {
		if other.Name != cidr.Name && other.DeletionTimestamp == nil {
			others = append(others, other)
		}
	}
	return slices.ContainsFunc(c.ips.Select("", labels.Everything()), func(address *networkingv1.IPAddress) bool {
		ip, err := netip.ParseAddr(address.Name)
		return err == nil && contains(cidr, ip) &&
			!slices.ContainsFunc(others, func(other *networkingv1.ServiceCIDR) bool { return contains(other, ip) })
	})
}

// condition writes the Ready condition, with an event, if it says something new.
func (c *Controller) condition(ctx context.Context, cidr *networkingv1.ServiceCIDR, ready metav1.Condition) error {
	ready.Type, ready.LastTransitionTime = networkingv1.ServiceCIDRConditionReady, metav1.NewTime(c.clock.Now())
	next := cidr.DeepCopy()
	if !meta.SetStatusCondition(&next.Status.Conditions, ready) {
		return nil
	}
	reason := "KubernetesServiceCIDRReady"
	if ready.Status == metav1.ConditionFalse {
		reason = "KubernetesServiceCIDRNotReady"
	}
	if _, err := c.cidrs.UpdateStatus(ctx, next); err != nil {
		return err
	}
	c.events.Event(cidr, corev1.EventTypeNormal, reason, ready.Message)
	return nil
}
