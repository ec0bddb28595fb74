// Package customresource takes CustomResourceDefinitions through their life: it
// gives them their names, says when their kind is served, and when one is deleted
// removes the objects of its kind before it goes.
package customresource

import (
	"context"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"

	"proa/internal/apiextensions"
	"proa/internal/apis"
	"proa/internal/client"
	"proa/internal/controllers"
)

type (
	definition = apiextensionsv1.CustomResourceDefinition
	condition  = apiextensionsv1.CustomResourceDefinitionCondition
)

// Controller keeps the status of definitions.
type Controller struct {
	loop        *controllers.Loop
	api         client.API
	clock       clock.PassiveClock
	served      *apiextensions.Definitions
	catalogue   *apis.Catalogue
	definitions *client.Informer[*definition]
}

// New returns a controller of the kinds that served puts into catalogue.
func New(c controllers.Config, served *apiextensions.Definitions, catalogue *apis.Catalogue) *Controller {
	d := &Controller{
		api: c.Cache.API(), clock: c.Clock, served: served, catalogue: catalogue,
		definitions: client.Shared[*definition](c.Cache),
	}
	c.Workers = 1 // names are given to one at a time
	d.loop = controllers.NewLoop("customresource", c, d.reconcile)
	d.definitions.OnChange(func(old, crd *definition) {
		if crd != nil {
			d.loop.EnqueueObject(crd)
		} else {
			d.enqueueGroup(old.Spec.Group, old.Name)
		}
	})
	return d
}

// Run works until ctx ends.
func (d *Controller) Run(ctx context.Context) error { return d.loop.Run(ctx) }

// enqueueGroup looks again at those who may have waited for the names of one.
func (d *Controller) enqueueGroup(group, but string) {
	for _, crd := range d.definitions.Select("", labels.Everything()) {
		if crd.Spec.Group == group && crd.Name != but {
			d.loop.EnqueueObject(crd)
		}
	}
}

func (d *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	current, ok := d.definitions.Cached("", key.Name)
	if !ok {
		return controllers.Result{}, nil
	}
	if current.DeletionTimestamp != nil {
		return d.finish(ctx, current)
	}
	crd := current.DeepCopy()
	d.name(crd)
	d.establish(crd)
	if c := approval(crd); c != nil {
		d.setCondition(crd, *c)
	}
	if equality.Semantic.DeepEqual(crd.Status, current.Status) {
		return controllers.Result{}, nil
	}
	if apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
		d.served.Install(crd) // who reads Established can use the kind
	}
	if err := d.write(ctx, crd); err != nil {
		return controllers.Result{}, err
	}
	if !equality.Semantic.DeepEqual(crd.Status.AcceptedNames, current.Status.AcceptedNames) {
		d.enqueueGroup(crd.Spec.Group, crd.Name)
	}
	return controllers.Result{}, nil
}

// write stores a status; who changed or deleted the definition meanwhile has
// enqueued it.
func (d *Controller) write(ctx context.Context, crd *definition) error {
	_, err := d.definitions.UpdateStatus(ctx, crd)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// setCondition sets a condition, with the time of its last change of status.
func (d *Controller) setCondition(crd *definition, c condition) {
	c.ObservedGeneration = 0
	c.LastTransitionTime = metav1.NewTime(d.clock.Now()).Rfc3339Copy()
	old := apihelpers.FindCRDCondition(crd, c.Type)
	if old == nil {
		crd.Status.Conditions = append(crd.Status.Conditions, c)
		return
	}
	if old.Status == c.Status && !old.LastTransitionTime.IsZero() {
		c.LastTransitionTime = old.LastTransitionTime
	}
	c.ObservedGeneration = old.ObservedGeneration
	*old = c
}

// approval judges a definition in a group that belongs to the Kubernetes community.
func approval(crd *definition) *condition {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return nil
	}
	state, message := apihelpers.GetAPIApprovalState(crd.Annotations)
	c := &condition{
		Type: apiextensionsv1.KubernetesAPIApprovalPolicyConformant, Status: apiextensionsv1.ConditionFalse, Message: message,
	}
	switch state {
	case apihelpers.APIApprovalInvalid:
		c.Reason = "InvalidAnnotation"
	case apihelpers.APIApprovalMissing:
		c.Reason = "MissingAnnotation"
	case apihelpers.APIApproved:
		c.Status, c.Reason = apiextensionsv1.ConditionTrue, "ApprovedAnnotation"
	case apihelpers.APIApprovalBypassed:
		c.Reason = "UnapprovedAnnotation"
	default:
		c.Status, c.Reason = apiextensionsv1.ConditionUnknown, "UnknownAnnotation"
	}
	return c
}
