// Package endpointslicemirroring shows Endpoints that somebody wrote by hand, for
// a Service without a selector, as EndpointSlices: the only form that proxies and
// DNS read.
package endpointslicemirroring

import (
	"context"
	"errors"
	"maps"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/controllers"
)

const (
	name       = "endpointslicemirroring-controller.k8s.io"
	sliceIndex = "mirrored service"
	// leaderAnnotation marks Endpoints that only hold an election.
	leaderAnnotation = "control-plane.alpha.kubernetes.io/leader"
)

// Controller keeps mirrors in step with Endpoints.
type Controller struct {
	loop      *controllers.Loop
	services  *client.Informer[*corev1.Service]
	endpoints *client.Informer[*corev1.Endpoints]
	slices    *client.Informer[*discoveryv1.EndpointSlice]
	events    controllers.EventRecorder
	clock     clock.PassiveClock
	measures  *measures
}

// New returns a controller that reads through c.Cache.
func New(c controllers.Config) *Controller {
	m := &Controller{
		services:  client.Shared[*corev1.Service](c.Cache),
		endpoints: client.Shared[*corev1.Endpoints](c.Cache),
		slices:    client.Shared[*discoveryv1.EndpointSlice](c.Cache),
		events:    c.Events("endpoint-slice-mirroring-controller"),
		clock:     c.Clock,
		measures:  newMeasures(),
	}
	c.Register(append(m.measures.collectors(), gauge{m})...)
	m.slices.AddIndex(sliceIndex, func(s *discoveryv1.EndpointSlice) []string {
		if s.Labels[discoveryv1.LabelManagedBy] != name {
			return nil
		}
		return []string{ownerOf(s).String()}
	})
	m.loop = controllers.NewLoop("endpoint_slice_mirroring", c, m.reconcile)
	m.endpoints.OnChange(func(old, ep *corev1.Endpoints) {
		if ep == nil {
			ep = old
		}
		m.loop.EnqueueObject(ep)
	})
	m.services.OnChange(func(old, svc *corev1.Service) {
		switch {
		case old == nil:
			m.loop.EnqueueObject(svc)
		case svc == nil:
			m.loop.EnqueueObject(old)
		case (old.Spec.Selector == nil) != (svc.Spec.Selector == nil):
			m.loop.EnqueueObject(svc)
		}
	})
	m.slices.OnChange(func(old, slice *discoveryv1.EndpointSlice) {
		for _, s := range []*discoveryv1.EndpointSlice{old, slice} {
			if s != nil && s.Labels[discoveryv1.LabelManagedBy] == name {
				m.loop.Enqueue(ownerOf(s))
			}
		}
	})
	return m
}

func ownerOf(s *discoveryv1.EndpointSlice) controllers.Key {
	return controllers.Key{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
}

// Run works until ctx ends.
func (m *Controller) Run(ctx context.Context) error { return m.loop.Run(ctx) }

func (m *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	began := m.clock.Now()
	var want []*discoveryv1.EndpointSlice
	ep, ok := m.endpoints.Cached(key.Namespace, key.Name)
	if ok && m.mirrored(ep) {
		mirrors := mirror(ep)
		want = mirrors.slices
		if m.measures.wanted(key, ep.ResourceVersion, want) {
			m.report(ep, mirrors)
		}
	} else {
		m.measures.unwanted(key)
	}
	changed := &totals{}
	err := m.apply(ctx, m.slices.ByIndex(sliceIndex, key.String()), want, changed)
	m.measures.synced(changed, m.clock.Since(began))
	return controllers.Result{}, err
}

// report tells of addresses that are not mirrored.
func (m *Controller) report(ep *corev1.Endpoints, mirrors *mirrors) {
	m.measures.skipped.Observe(float64(mirrors.skipped))
	if mirrors.invalid > 0 {
		m.events.Eventf(ep, corev1.EventTypeWarning, "InvalidIPAddress", "Skipped %d invalid IP addresses when mirroring to EndpointSlices", mirrors.invalid)
	}
	if mirrors.skipped > mirrors.invalid {
		m.events.Eventf(ep, corev1.EventTypeWarning, "TooManyAddressesToMirror",
			"A max of %d addresses can be mirrored to EndpointSlices per Endpoints subset. %d addresses were skipped", maxPerSubset, mirrors.skipped)
	}
}

func (m *Controller) mirrored(ep *corev1.Endpoints) bool {
	if ep.DeletionTimestamp != nil || ep.Labels[discoveryv1.LabelSkipMirror] == "true" {
		return false
	}
	if _, elects := ep.Annotations[leaderAnnotation]; elects {
		return false
	}
	svc, ok := m.services.Cached(ep.Namespace, ep.Name)
	return ok && svc.Spec.Selector == nil
}

// apply makes the mirrors be the wanted ones: it writes what differs over one
// with the same ports, or any, and deletes what is left over.
func (m *Controller) apply(ctx context.Context, have, want []*discoveryv1.EndpointSlice, changed *totals) error {
	var missing []*discoveryv1.EndpointSlice
	var errs []error
	for _, w := range want {
		i := match(have, w, func(s *discoveryv1.EndpointSlice) bool { return samePorts(s, w) })
		if i < 0 {
			missing = append(missing, w)
			continue
		}
		errs = append(errs, m.update(ctx, have[i], w, changed))
		have = append(have[:i:i], have[i+1:]...)
	}
	for _, w := range missing {
		if i := match(have, w, func(*discoveryv1.EndpointSlice) bool { return true }); i >= 0 {
			errs = append(errs, m.update(ctx, have[i], w, changed))
			have = append(have[:i:i], have[i+1:]...)
			continue
		}
		_, err := m.slices.Create(ctx, w)
		if err == nil {
			changed.added += len(w.Endpoints)
			m.measures.changes.WithLabelValues("create").Inc()
		}
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			err = nil
		}
		errs = append(errs, err)
	}
	for _, s := range have {
		_, err := m.slices.Delete(ctx, s.Namespace, s.Name, metav1.DeleteOptions{})
		if err == nil {
			changed.removed += len(s.Endpoints)
			m.measures.changes.WithLabelValues("delete").Inc()
		}
		if !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func match(have []*discoveryv1.EndpointSlice, w *discoveryv1.EndpointSlice, ok func(*discoveryv1.EndpointSlice) bool) int {
	for i, s := range have {
		if s.DeletionTimestamp == nil && s.AddressType == w.AddressType && ok(s) {
			return i
		}
	}
	return -1
}

func samePorts(a, b *discoveryv1.EndpointSlice) bool {
	return equality.Semantic.DeepEqual(a.Ports, b.Ports)
}

func (m *Controller) update(ctx context.Context, have, want *discoveryv1.EndpointSlice, changed *totals) error {
	if samePorts(have, want) && equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) &&
		maps.Equal(have.Labels, want.Labels) && maps.Equal(have.Annotations, want.Annotations) &&
		equality.Semantic.DeepEqual(have.OwnerReferences, want.OwnerReferences) {
		return nil
	}
	updated := have.DeepCopy()
	updated.Labels, updated.Annotations, updated.OwnerReferences = want.Labels, want.Annotations, want.OwnerReferences
	updated.Endpoints, updated.Ports = want.Endpoints, want.Ports
	_, err := m.slices.Update(ctx, updated)
	if err == nil {
		changed.count(have.Endpoints, want.Endpoints)
		m.measures.changes.WithLabelValues("update").Inc()
	}
	return err
}
