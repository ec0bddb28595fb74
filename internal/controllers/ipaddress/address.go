package ipaddress

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"proa/internal/controllers"
)

// reconcileAddress removes an address of the allocator that no Service has.
// Those that others made are theirs.
func (c *Controller) reconcileAddress(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	address, ok := c.addresses.Cached("", key.Name)
	if !ok || address.Labels[networkingv1.LabelManagedBy] != allocator {
		return controllers.Result{}, nil
	}
	if f, err := orphaned(address, c.cached()); f == nil {
		return controllers.Result{}, err
	}
	now := c.current(ctx)
	address, err := now.address(key.Name)
	if address == nil || err != nil {
		return controllers.Result{}, err
	}
	f, err := orphaned(address, now)
	if f == nil || err != nil {
		return controllers.Result{}, err
	}
	if age := c.clock.Since(address.CreationTimestamp.Time); f.kind == "leak" && age <= grace {
		return controllers.Result{After: grace - age + 1}, nil
	}
	c.found.WithLabelValues(f.kind).Inc()
	c.events.Event(address, corev1.EventTypeWarning, f.reason, f.message)
	if err := c.remove(ctx, address); err != nil {
		return controllers.Result{}, fmt.Errorf("remove the address %s: %w", address.Name, err)
	}
	return controllers.Result{}, nil
}

// orphaned returns why an address of the allocator should not be there; nil: it should.
func orphaned(address *networkingv1.IPAddress, in view) (*flaw, error) {
	ref := address.Spec.ParentRef
	if !ofService(ref) {
		return &flaw{kind: "unknown", reason: "IPAddressNotAllocated", message: fmt.Sprintf(
			"IPAddress %s appears to have been modified, not referencing a Service %v: cleaning up", address.Name, ref)}, nil
	}
	svc, err := in.service(ref.Namespace, ref.Name)
	if err != nil {
		return nil, err
	}
	if svc == nil {
		return &flaw{kind: "leak", reason: "IPAddressNotAllocated", message: fmt.Sprintf(
			"IPAddress: %s for Service %s/%s appears to have leaked: cleaning up", address.Name, ref.Namespace, ref.Name)}, nil
	}
	if holds(svc, address.Name) {
		return nil, nil
	}
	return &flaw{kind: "unknown", reason: "IPAddressWrongReference", message: fmt.Sprintf(
		"IPAddress: %s for Service %s/%s has a wrong reference; cleaning up", address.Name, svc.Namespace, svc.Name)}, nil
}
