package resourceclaim

import (
	"context"
	"fmt"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers"
)

// reconcileClaim takes off the claim's consumers that are gone. Without any left it
// loses its devices, so that the next consumer is free to run elsewhere, and is
// deleted if nobody can use it any more.
func (c *Controller) reconcileClaim(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	claim, ok := c.claims.Cached(key.Namespace, key.Name)
	if !ok {
		return controllers.Result{}, nil
	}
	left, err := c.consumers(ctx, claim)
	if err != nil {
		return controllers.Result{}, err
	}
	leaving := claim.DeletionTimestamp != nil && len(left) == 0 && slices.Contains(claim.Finalizers, resourcev1.Finalizer)
	if len(left) < len(claim.Status.ReservedFor) || leaving {
		if claim, err = c.release(ctx, claim, left); err != nil {
			return controllers.Result{}, ignoreGone(err)
		}
	}
	if len(left) > 0 {
		return controllers.Result{}, nil
	}
	return controllers.Result{}, c.deleteUseless(ctx, claim)
}

// consumers are those for which the claim stays reserved: pods that may run, and
// what is none of this controller's business.
func (c *Controller) consumers(ctx context.Context, claim *resourcev1.ResourceClaim) ([]resourcev1.ResourceClaimConsumerReference, error) {
	left := make([]resourcev1.ResourceClaimConsumerReference, 0, len(claim.Status.ReservedFor))
	for _, consumer := range claim.Status.ReservedFor {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			gone, err := c.gone(ctx, claim.Namespace, consumer)
			if err != nil {
				return nil, err
			}
			if gone {
				continue
			}
		}
		left = append(left, consumer)
	}
	return left, nil
}

// gone tells whether a pod will not run any more. One that the informer has not
// got may be too new for it: only the API may say that there is none.
func (c *Controller) gone(ctx context.Context, namespace string, consumer resourcev1.ResourceClaimConsumerReference) (bool, error) {
	if pod, ok := c.pods.Cached(namespace, consumer.Name); ok {
		return pod.UID != consumer.UID || done(pod), nil
	}
	pod, err := c.pods.Get(ctx, namespace, consumer.Name)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return err == nil && pod.UID != consumer.UID, err
}

// release leaves the claim to some consumers. Devices go with the last one, and
// with them the finalizer that guards them. These are updates, not patches: they
// must fail when anything has changed meanwhile.
func (c *Controller) release(ctx context.Context, claim *resourcev1.ResourceClaim, left []resourcev1.ResourceClaimConsumerReference) (*resourcev1.ResourceClaim, error) {
	held := slices.Contains(claim.Finalizers, resourcev1.Finalizer)
	claim = claim.DeepCopy()
	changed := len(left) != len(claim.Status.ReservedFor)
	claim.Status.ReservedFor = left
	if len(left) == 0 && held && claim.Status.Allocation != nil {
		claim.Status.Allocation, claim.Status.Devices = nil, nil
		changed = true
	}
	if changed {
		updated, err := c.claims.UpdateStatus(ctx, claim)
		if err != nil {
			return nil, err
		}
		claim = updated.DeepCopy()
	}
	if !held || claim.Status.Allocation != nil {
		return claim, nil
	}
	claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == resourcev1.Finalizer })
	return c.claims.Update(ctx, claim)
}

// deleteUseless deletes a claim that was made for a pod which is done or was
// replaced. With a pod that is gone the garbage collector takes it.
func (c *Controller) deleteUseless(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	owner := podOwner(claim)
	if owner == nil || claim.DeletionTimestamp != nil {
		return nil
	}
	pod, ok := c.pods.Cached(claim.Namespace, owner.Name)
	if !ok || pod.UID == owner.UID && !done(pod) {
		return nil
	}
	_, err := c.claims.Delete(ctx, claim.Namespace, claim.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(claim.UID))})
	if err = ignoreGone(err); err != nil {
		return fmt.Errorf("delete unused generated claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}

// ignoreGone drops the error of a claim that is not there any more.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
