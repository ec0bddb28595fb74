// Package serviceaccount gives every namespace its default ServiceAccount.
package serviceaccount

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
)

const defaultName = "default"

// Controller makes the ServiceAccount "default" exist in every active namespace.
type Controller struct {
	loop       *controllers.Loop
	namespaces *client.Informer[*corev1.Namespace]
	accounts   *client.Informer[*corev1.ServiceAccount]
}

// New returns a controller that reads through c.Cache.
func New(c controllers.Config) *Controller {
	s := &Controller{
		namespaces: client.Shared[*corev1.Namespace](c.Cache),
		accounts:   client.Shared[*corev1.ServiceAccount](c.Cache),
	}
	s.loop = controllers.NewLoop("serviceaccount", c, s.reconcile)
	s.namespaces.OnChange(func(_, ns *corev1.Namespace) {
		if ns != nil {
			s.loop.EnqueueObject(ns)
		}
	})
	s.accounts.OnChange(func(old, account *corev1.ServiceAccount) {
		if account == nil && old.Name == defaultName {
			s.loop.Enqueue(controllers.Key{Name: old.Namespace})
		}
	})
	return s
}

// Run works until ctx ends.
func (s *Controller) Run(ctx context.Context) error { return s.loop.Run(ctx) }

func (s *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	ns, ok := s.namespaces.Cached("", key.Name)
	if !ok || ns.Status.Phase != corev1.NamespaceActive {
		return controllers.Result{}, nil
	}
	if _, ok := s.accounts.Cached(ns.Name, defaultName); ok {
		return controllers.Result{}, nil
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: defaultName, Namespace: ns.Name}}
	_, err := s.accounts.Create(ctx, account)
	if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		err = nil
	}
	return controllers.Result{}, err
}
