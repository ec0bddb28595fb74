// Package podcertificatecleaner deletes PodCertificateRequests that nobody can be
// waiting for any more (KEP-4317).
package podcertificatecleaner

import (
	"context"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/controllers"
)

// kept is for how long a request stays, whatever became of it.
const kept = 15 * time.Minute

// Controller deletes old requests.
type Controller struct {
	loop     *controllers.Loop
	requests *client.Informer[*certificatesv1.PodCertificateRequest]
	clock    clock.PassiveClock
}

// New returns a controller that reads through c.Cache.
func New(c controllers.Config) *Controller {
	p := &Controller{requests: client.Shared[*certificatesv1.PodCertificateRequest](c.Cache), clock: c.Clock}
	p.loop = controllers.NewLoop("podcertificaterequest-cleaner", c, p.reconcile)
	p.requests.OnChange(func(old, request *certificatesv1.PodCertificateRequest) {
		if old == nil {
			p.loop.EnqueueObject(request)
		}
	})
	return p
}

// Run works until ctx ends.
func (p *Controller) Run(ctx context.Context) error { return p.loop.Run(ctx) }

func (p *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	request, ok := p.requests.Cached(key.Namespace, key.Name)
	if !ok || request.DeletionTimestamp != nil {
		return controllers.Result{}, nil
	}
	if left := request.CreationTimestamp.Add(kept).Sub(p.clock.Now()); left > 0 {
		return controllers.Result{After: left}, nil
	}
	_, err := p.requests.Delete(ctx, key.Namespace, key.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(request.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		err = nil
	}
	return controllers.Result{}, err
}
