// Package clusterroleaggregation fills ClusterRoles that aggregate others.
package clusterroleaggregation

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"proa/internal/auth/rbac"
	"proa/internal/client"
	"proa/internal/controllers"
)

// Controller keeps the rules of aggregated ClusterRoles.
type Controller struct {
	loop  *controllers.Loop
	roles *client.Informer[*rbacv1.ClusterRole]
}

// aggregating is the index of ClusterRoles that aggregate.
const aggregating = "aggregating"

// New returns a controller that reads through c.Cache.
func New(c controllers.Config) *Controller {
	a := &Controller{roles: client.Shared[*rbacv1.ClusterRole](c.Cache)}
	a.loop = controllers.NewLoop("ClusterRoleAggregator", c, a.reconcile)
	a.roles.AddIndex(aggregating, func(r *rbacv1.ClusterRole) []string {
		if r.AggregationRule == nil {
			return nil
		}
		return []string{""}
	})
	a.roles.OnChange(func(_, _ *rbacv1.ClusterRole) {
		for _, role := range a.roles.ByIndex(aggregating, "") {
			a.loop.EnqueueObject(role)
		}
	})
	return a
}

// Run works until ctx ends.
func (a *Controller) Run(ctx context.Context) error { return a.loop.Run(ctx) }

func (a *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	role, ok := a.roles.Cached("", key.Name)
	if !ok || role.AggregationRule == nil || role.DeletionTimestamp != nil {
		return controllers.Result{}, nil
	}
	rules, err := rbac.Aggregate(role, a.roles.Select("", labels.Everything()))
	if err != nil {
		return controllers.Result{}, fmt.Errorf("aggregate cluster role %s: %w", role.Name, err)
	}
	if equality.Semantic.DeepEqual(role.Rules, rules) {
		return controllers.Result{}, nil
	}
	updated := role.DeepCopy()
	updated.Rules = rules
	_, err = a.roles.Update(ctx, updated)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		err = nil // its change brings it back here
	}
	return controllers.Result{}, err
}
