package apiservice

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func TestAServerThatFailsIsProbedAgain(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		var probes atomic.Int32
		var down atomic.Bool
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			return []controllertest.Runner{NewAvailability(c, func(context.Context, *apiregistrationv1.APIService) error {
				probes.Add(1)
				if down.Load() {
					return errors.New("no")
				}
				return nil
			})}
		})()
		w.Create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "ext"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "ext.example.com"}})
		w.Settle() // the Service's own event asks for a probe of what it serves
		w.Create(&apiService{ObjectMeta: metav1.ObjectMeta{Name: "v1.ext.example.com"}, Spec: apiregistrationv1.APIServiceSpec{
			Group: "ext.example.com", Version: "v1", GroupPriorityMinimum: 1, VersionPriority: 1,
			Service: &apiregistrationv1.ServiceReference{Namespace: controllertest.Namespace, Name: "ext"},
		}})
		reason := func() string {
			w.Settle()
			return controllertest.Get[*apiService](w, "v1.ext.example.com").Status.Conditions[0].Reason
		}
		if got := reason(); got != "Passed" || probes.Load() != 1 {
			t.Errorf("%s after %d probes", got, probes.Load())
		}
		down.Store(true)
		time.Sleep(recheck) // virtual
		if got := reason(); got != "FailedDiscoveryCheck" || probes.Load() != 2 {
			t.Errorf("%s after %d probes", got, probes.Load())
		}
		down.Store(false)
		time.Sleep(retryMax)
		if got := reason(); got != "Passed" {
			t.Error(got)
		}
		w.Writes()
		time.Sleep(10 * recheck)
		w.Settle()
		if writes := w.Writes(); len(writes) > 0 {
			t.Errorf("writes while nothing changes: %v", writes)
		}
	})
}
