package customresource

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"proa/internal/client"
	"proa/internal/controllers"
)

const (
	// recheck is how long objects with finalizers are left alone.
	recheck = 250 * time.Millisecond
	// patience is how long their removal may take before that is reported.
	patience = time.Minute
)

// finish removes the objects of a deleted definition's kind, then lets it go.
func (d *Controller) finish(ctx context.Context, current *definition) (controllers.Result, error) {
	if !apihelpers.CRDHasFinalizer(current, apiextensionsv1.CustomResourceCleanupFinalizer) {
		return controllers.Result{}, nil
	}
	crd := current.DeepCopy()
	c, left, err := d.empty(ctx, crd)
	before := apihelpers.FindCRDCondition(current, apiextensionsv1.Terminating)
	d.setCondition(crd, c)
	if err == nil && !left {
		apihelpers.CRDRemoveFinalizer(crd, apiextensionsv1.CustomResourceCleanupFinalizer)
		return controllers.Result{}, d.write(ctx, crd)
	}
	if !apihelpers.IsCRDConditionEquivalent(&c, before) {
		if writeErr := d.write(ctx, crd); writeErr != nil {
			return controllers.Result{}, writeErr
		}
	}
	return controllers.Result{After: recheck}, err
}

// empty deletes all objects of a definition's kind. Left says that some are not
// gone yet.
func (d *Controller) empty(ctx context.Context, crd *definition) (c condition, left bool, err error) {
	c = condition{Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionFalse}
	if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
		c.Reason, c.Message = "NeverEstablished", "resource was never established"
		return c, false, nil
	}
	d.served.Install(crd) // from here on nothing is created
	gr := schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Status.AcceptedNames.Plural}
	r, ok := d.catalogue.Stored(gr)
	if !ok || r.Custom == nil || r.Custom.UID != crd.UID {
		c.Reason, c.Message = "OverlappingBuiltInResource", "instances overlap with built-in resources in storage"
		return c, false, nil
	}
	ref := client.Ref{Resource: r.GroupVersionResource()}
	list, err := d.api.List(ctx, ref, metav1.ListOptions{})
	if err == nil && len(list.Items) == 0 {
		c.Reason, c.Message = "InstanceDeletionCompleted", "removed all instances"
		return c, false, nil
	}
	c.Status = apiextensionsv1.ConditionTrue
	c.Reason, c.Message = "InstanceDeletionInProgress", "CustomResource deletion is in progress"
	if err != nil {
		c.Reason, c.Message = "InstanceDeletionFailed", fmt.Sprintf("could not list instances: %v", err)
		return c, true, err
	}
	if err := d.deleteAll(ctx, ref, list.Items); err != nil {
		c.Reason, c.Message = "InstanceDeletionFailed", fmt.Sprintf("could not issue all deletes: %v", err)
		return c, true, err
	}
	if list, err = d.api.List(ctx, ref, metav1.ListOptions{}); err == nil && len(list.Items) == 0 {
		c.Status, c.Reason, c.Message = apiextensionsv1.ConditionFalse, "InstanceDeletionCompleted", "removed all instances"
		return c, false, nil
	}
	if d.clock.Since(crd.DeletionTimestamp.Time) > patience {
		c.Reason, c.Message = "InstanceDeletionCheck", "could not confirm zero CustomResources remaining: timed out waiting for the condition"
	}
	return c, true, err
}

func (d *Controller) deleteAll(ctx context.Context, ref client.Ref, objs []client.Object) error {
	var errs []error
	for _, obj := range objs {
		if obj.GetDeletionTimestamp() != nil {
			continue
		}
		one := ref
		one.Namespace, one.Name = obj.GetNamespace(), obj.GetName()
		if _, err := d.api.Delete(ctx, one, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return utilerrors.NewAggregate(errs)
}
