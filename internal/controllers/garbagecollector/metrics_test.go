package garbagecollector

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

// hidden is an API that does not show Secrets.
type hidden struct{ client.API }

func (h hidden) Watch(ctx context.Context, ref client.Ref, opts metav1.ListOptions) (client.Watch, error) {
	if ref.Resource.Resource == "secrets" {
		return nil, apierrors.NewServiceUnavailable("not now")
	}
	return h.API.Watch(ctx, ref, opts)
}

func TestAKindThatIsNotListedInTimeIsCountedOnce(t *testing.T) {
	const name = "garbagecollector_controller_resources_sync_error_total"
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			c.Metrics, c.Cache = w.Registry(), c.Cache.As(hidden{c.Cache.API()})
			return []controllertest.Runner{New(c, w.Catalogue)}
		})()
		time.Sleep(29 * time.Second)
		w.Settle()
		w.Measured(name + " 0")
		time.Sleep(time.Hour)
		w.Settle()
		w.Measured(name + " 1")
	})
}
