package ipaddress

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"proa/internal/controllers"
)

// flaw is what is wrong with an address.
type flaw struct {
	kind            string // of the metric
	reason, message string // of the event; no reason: there is none
	mends           bool   // the object is to be made, anew where there is one
}

// reconcileService gives every address of a Service its object. Two informers do
// not move together, so that a suspicion is looked into at the API.
func (c *Controller) reconcileService(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	if svc, ok := c.services.Cached(key.Namespace, key.Name); !ok || c.sound(svc) {
		return controllers.Result{}, nil
	}
	now := c.current(ctx)
	svc, err := now.service(key.Namespace, key.Name)
	if svc == nil || err != nil {
		return controllers.Result{}, err
	}
	var again controllers.Result
	for _, text := range clusterIPs(svc) {
		f, err := c.examine(svc, text, now)
		if err != nil {
			return controllers.Result{}, err
		}
		if f == nil {
			continue
		}
		if f.reason != "" {
			c.found.WithLabelValues(f.kind).Inc()
			c.events.Event(svc, corev1.EventTypeWarning, f.reason, f.message)
		}
		if !f.mends {
			again.After = Interval
			continue
		}
		if err := c.mend(ctx, svc, text, now); err != nil {
			return controllers.Result{}, fmt.Errorf("repair the address %s: %w", text, err)
		}
	}
	return again, nil
}

func (c *Controller) sound(svc *corev1.Service) bool {
	return !slices.ContainsFunc(clusterIPs(svc), func(text string) bool {
		f, _ := c.examine(svc, text, c.cached())
		return f != nil
	})
}

// examine returns what is wrong with one address of a Service; nil: nothing.
func (c *Controller) examine(svc *corev1.Service, text string, in view) (*flaw, error) {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return &flaw{kind: "invalid", reason: "ClusterIPNotValid", message: fmt.Sprintf("Cluster IP %s is not a valid IP; please recreate Service", text)}, nil
	}
	family := familyOf(ip)
	if !c.inRange(ip) {
		return &flaw{kind: "outOfRange", reason: "ClusterIPOutOfRange", message: fmt.Sprintf(
			"Cluster IP [%v]: %s is not within any configured Service CIDR; please recreate service", family, ip)}, nil
	}
	address, err := in.address(ip.String())
	if err != nil {
		return nil, err
	}
	if address == nil {
		return &flaw{kind: "repair", reason: "ClusterIPNotAllocated", mends: true,
			message: fmt.Sprintf("Cluster IP [%v]: %s is not allocated; repairing", family, ip)}, nil
	}
	return judgeReference(svc, address, ip, in)
}

func judgeReference(svc *corev1.Service, address *networkingv1.IPAddress, ip netip.Addr, in view) (*flaw, error) {
	wrong := &flaw{kind: "repair", reason: "ClusterIPNotAllocated", mends: true, message: fmt.Sprintf(
		"the ClusterIP [%v]: %s for Service %s/%s has a wrong reference; repairing", familyOf(ip), ip, svc.Namespace, svc.Name)}
	ref := address.Spec.ParentRef
	if !ofService(ref) {
		return wrong, nil
	}
	if ref.Namespace != svc.Namespace || ref.Name != svc.Name {
		other, err := in.service(ref.Namespace, ref.Name)
		switch {
		case err != nil:
			return nil, err
		case other == nil:
			return wrong, nil
		case holds(other, address.Name):
			return &flaw{kind: "duplicate", reason: "ClusterIPAlreadyAllocated", message: fmt.Sprintf(
				"Cluster IP [%v]:%s was assigned to multiple services; please recreate service", familyOf(ip), ip)}, nil
		}
		return nil, nil // the other Service's address goes first
	}
	for name, value := range labelsOf(ip) {
		if address.Labels[name] != value {
			return &flaw{kind: "repair", mends: true}, nil
		}
	}
	return nil, nil
}

// mend makes the object of an address; one that is there and wrong goes first.
func (c *Controller) mend(ctx context.Context, svc *corev1.Service, text string, in view) error {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return err
	}
	old, err := in.address(ip.String())
	if err != nil {
		return err
	}
	if old != nil {
		if err := c.remove(ctx, old); err != nil {
			return err
		}
	}
	_, err = c.addresses.Create(ctx, addressOf(svc, ip))
	return err
}
