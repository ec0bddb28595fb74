// Package tokencleaner deletes bootstrap tokens that have expired.
package tokencleaner

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"proa/internal/auth/bootstraptoken"
	"proa/internal/client"
	"proa/internal/controllers"
)

// Controller deletes expired tokens.
type Controller struct {
	loop    *controllers.Loop
	secrets *client.Informer[*corev1.Secret]
	clock   clock.PassiveClock
}

// New returns a controller that reads through c.Cache.
func New(c controllers.Config) *Controller {
	t := &Controller{secrets: client.Shared[*corev1.Secret](c.Cache), clock: c.Clock}
	t.loop = controllers.NewLoop("token_cleaner", c, t.reconcile)
	t.secrets.OnChange(func(_, s *corev1.Secret) {
		if s != nil && s.Namespace == metav1.NamespaceSystem && s.Type == corev1.SecretTypeBootstrapToken {
			t.loop.EnqueueObject(s)
		}
	})
	return t
}

// Run works until ctx ends.
func (t *Controller) Run(ctx context.Context) error { return t.loop.Run(ctx) }

func (t *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	s, ok := t.secrets.Cached(key.Namespace, key.Name)
	if !ok || s.DeletionTimestamp != nil || len(s.Data[bootstraptoken.KeyExpiration]) == 0 {
		return controllers.Result{}, nil
	}
	// A time that cannot be read is over, as it is to who checks the token.
	expiry, err := time.Parse(time.RFC3339, string(s.Data[bootstraptoken.KeyExpiration]))
	if left := expiry.Sub(t.clock.Now()); err == nil && left > 0 {
		return controllers.Result{After: left}, nil
	}
	_, err = t.secrets.Delete(ctx, s.Namespace, s.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		err = nil
	}
	return controllers.Result{}, err
}
