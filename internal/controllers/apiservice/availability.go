package apiservice

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"proa/internal/apis/apiregistration"
	"proa/internal/client"
	"proa/internal/controllers"
)

const (
	// recheck is how often a server that answers is probed again: what is between
	// it and this server cannot be watched.
	recheck = 30 * time.Second
	// retryMin and retryMax bound the time until one that failed is probed again.
	retryMin = time.Second
	retryMax = 30 * time.Second

	byService = "apiservice.service" // APIServices by the Service they name
	slicesOf  = "apiservice.slices"  // EndpointSlices by their Service
)

// Probe asks a server behind an APIService for its discovery document.
type Probe func(ctx context.Context, s *apiregistrationv1.APIService) error

// Availability keeps the Available condition of every APIService.
type Availability struct {
	loop     *controllers.Loop
	clock    clock.PassiveClock
	probe    Probe
	services *client.Informer[*apiService]
	backends *client.Informer[*corev1.Service]
	slices   *client.Informer[*discoveryv1.EndpointSlice]
}

// NewAvailability returns a controller that goes by probe and by the Service and
// EndpointSlices that an APIService leads to.
func NewAvailability(c controllers.Config, probe Probe) *Availability {
	a := &Availability{
		clock: c.Clock, probe: probe, services: client.Shared[*apiService](c.Cache),
		backends: client.Shared[*corev1.Service](c.Cache), slices: client.Shared[*discoveryv1.EndpointSlice](c.Cache),
	}
	a.loop = controllers.NewLoop("apiservice-availability", c, a.reconcile)
	a.services.AddIndex(byService, func(s *apiService) []string {
		if ref := s.Spec.Service; ref != nil {
			return []string{ref.Namespace + "/" + ref.Name}
		}
		return nil
	})
	a.slices.AddIndex(slicesOf, func(s *discoveryv1.EndpointSlice) []string {
		return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}
	})
	a.services.OnChange(func(old, s *apiService) {
		if s == nil {
			return
		}
		// A status of another server is this controller's own writing, whose text
		// may differ every time.
		local := s.Spec.Service == nil
		if old == nil || !equality.Semantic.DeepEqual(old.Spec, s.Spec) || local && !equality.Semantic.DeepEqual(old.Status, s.Status) {
			a.loop.EnqueueObject(s)
		}
	})
	a.backends.OnChange(func(old, svc *corev1.Service) {
		if svc == nil {
			svc = old
		}
		a.enqueueFor(svc.Namespace, svc.Name)
	})
	a.slices.OnChange(func(old, s *discoveryv1.EndpointSlice) {
		for _, one := range []*discoveryv1.EndpointSlice{old, s} {
			if one != nil && one.Labels[discoveryv1.LabelServiceName] != "" {
				a.enqueueFor(one.Namespace, one.Labels[discoveryv1.LabelServiceName])
			}
		}
	})
	return a
}

// Run works until ctx ends.
func (a *Availability) Run(ctx context.Context) error { return a.loop.Run(ctx) }

func (a *Availability) enqueueFor(namespace, service string) {
	for _, s := range a.services.ByIndex(byService, namespace+"/"+service) {
		a.loop.EnqueueObject(s)
	}
}

func (a *Availability) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	current, ok := a.services.Cached("", key.Name)
	if !ok {
		return controllers.Result{}, nil
	}
	now := metav1.NewTime(a.clock.Now())
	if current.Spec.Service == nil {
		return controllers.Result{}, a.write(ctx, current, apiregistration.LocalCondition(now))
	}
	c := a.judge(ctx, current)
	if ctx.Err() != nil {
		return controllers.Result{}, nil
	}
	c.Type, c.LastTransitionTime = apiregistrationv1.Available, now
	if err := a.write(ctx, current, c); err != nil {
		return controllers.Result{}, err
	}
	switch c.Reason {
	case "Passed":
		return controllers.Result{After: recheck}, nil
	case "FailedDiscoveryCheck":
		return controllers.Result{After: a.patience(current)}, nil
	}
	return controllers.Result{}, nil // a change of Service or EndpointSlices tells
}

// patience grows with the time for which a server has failed.
func (a *Availability) patience(s *apiService) time.Duration {
	c := helper.GetAPIServiceConditionByType(s, apiregistrationv1.Available)
	if c == nil || c.Status == apiregistrationv1.ConditionTrue {
		return retryMin
	}
	return min(max(a.clock.Since(c.LastTransitionTime.Time), retryMin), retryMax)
}

// judge looks at everything between an APIService and its servers' answer.
func (a *Availability) judge(ctx context.Context, s *apiService) apiregistrationv1.APIServiceCondition {
	ref := s.Spec.Service
	svc, ok := a.backends.Cached(ref.Namespace, ref.Name)
	if !ok {
		return failed("ServiceNotFound", "service/%s in %q is not present", ref.Name, ref.Namespace)
	}
	if svc.Spec.Type == corev1.ServiceTypeClusterIP {
		if c := a.judgeEndpoints(svc, ptr.Deref(ref.Port, 443)); c != nil {
			return *c
		}
	}
	if err := a.probe(ctx, s); err != nil {
		return failed("FailedDiscoveryCheck", "%s", err)
	}
	return apiregistrationv1.APIServiceCondition{Status: apiregistrationv1.ConditionTrue, Reason: "Passed", Message: "all checks passed"}
}

func (a *Availability) judgeEndpoints(svc *corev1.Service, port int32) *apiregistrationv1.APIServiceCondition {
	i := slices.IndexFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == port })
	if i < 0 {
		return ptr.To(failed("ServicePortError", "service/%s in %q is not listening on port %d", svc.Name, svc.Namespace, port))
	}
	list := a.slices.ByIndex(slicesOf, svc.Namespace+"/"+svc.Name)
	if len(list) == 0 {
		return ptr.To(failed("EndpointsNotFound", "cannot find endpointslices for service/%s in %q", svc.Name, svc.Namespace))
	}
	name := svc.Spec.Ports[i].Name
	if !slices.ContainsFunc(list, func(s *discoveryv1.EndpointSlice) bool { return ready(s, name) }) {
		return ptr.To(failed("MissingEndpoints", "endpointslices for service/%s in %q have no addresses with port name %q", svc.Name, svc.Namespace, name))
	}
	return nil
}

func ready(s *discoveryv1.EndpointSlice, port string) bool {
	return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return ptr.Deref(e.Conditions.Ready, true) }) &&
		slices.ContainsFunc(s.Ports, func(p discoveryv1.EndpointPort) bool { return p.Name != nil && *p.Name == port && p.Port != nil })
}

func failed(reason, format string, args ...any) apiregistrationv1.APIServiceCondition {
	return apiregistrationv1.APIServiceCondition{
		Status: apiregistrationv1.ConditionFalse, Reason: reason, Message: fmt.Sprintf(format, args...),
	}
}

// write stores a condition that differs from the one that is there.
func (a *Availability) write(ctx context.Context, current *apiService, c apiregistrationv1.APIServiceCondition) error {
	next := current.DeepCopy()
	helper.SetAPIServiceCondition(next, c)
	if equality.Semantic.DeepEqual(next.Status, current.Status) {
		return nil
	}
	_, err := a.services.UpdateStatus(ctx, next)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
