// Package validatingadmissionpolicy checks the expressions of every
// ValidatingAdmissionPolicy against the kinds that the policy matches and writes
// what it finds into the policy's status (KEP-3488). A finding keeps no policy
// from working: expressions are evaluated on whatever objects there are.
package validatingadmissionpolicy

import (
	"context"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"proa/internal/apis"
	"proa/internal/client"
	"proa/internal/controllers"
)

// Controller keeps the status of policies.
type Controller struct {
	loop     *controllers.Loop
	policies *client.Informer[*admissionregistrationv1.ValidatingAdmissionPolicy]
	checker  checker
}

// New returns a controller that knows the kinds of a catalogue.
func New(c controllers.Config, catalogue *apis.Catalogue) *Controller {
	r := &Controller{
		policies: client.Shared[*admissionregistrationv1.ValidatingAdmissionPolicy](c.Cache),
		checker:  checker{catalogue},
	}
	r.loop = controllers.NewLoop("validatingadmissionpolicy-status", c, r.reconcile)
	r.policies.OnChange(func(_, p *admissionregistrationv1.ValidatingAdmissionPolicy) {
		if p != nil {
			r.loop.EnqueueObject(p)
		}
	})
	return r
}

// Run works until ctx ends.
func (r *Controller) Run(ctx context.Context) error { return r.loop.Run(ctx) }

func (r *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	p, ok := r.policies.Cached("", key.Name)
	if !ok || p.Generation <= p.Status.ObservedGeneration {
		return controllers.Result{}, nil
	}
	p = p.DeepCopy()
	p.Status.ObservedGeneration = p.Generation
	p.Status.TypeChecking = &admissionregistrationv1.TypeChecking{ExpressionWarnings: r.checker.check(&p.Spec)}
	_, err := r.policies.UpdateStatus(ctx, p)
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return controllers.Result{}, err
}
