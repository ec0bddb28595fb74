package apiserveridentity

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func TestAServerKeepsItsLeaseAndRemovesThoseOfServersThatAreGone(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}})
		leases := client.Of[*coordinationv1.Lease](w.API)
		for name, labels := range map[string]map[string]string{"apiserver-gone": {Label: "kube-apiserver"}, "kube-scheduler": nil} {
			w.Create(&coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name, Labels: labels},
				Spec: coordinationv1.LeaseSpec{LeaseDurationSeconds: ptr.To[int32](3600), RenewTime: &metav1.MicroTime{Time: time.Now().Add(-2 * time.Hour)},
					HolderIdentity: ptr.To("nobody")},
			})
		}
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			return []controllertest.Runner{New(Config{API: w.API, Clock: c.Clock, Hostname: "host", Instance: "1"})}
		})()
		w.Settle()
		first, err := leases.Get(w.T.Context(), metav1.NamespaceSystem, ID("host"))
		if err != nil {
			t.Fatal(err)
		}
		if *first.Spec.HolderIdentity != ID("host")+"_1" || *first.Spec.LeaseDurationSeconds != 3600 ||
			first.Labels[Label] != "kube-apiserver" || first.Labels["kubernetes.io/hostname"] != "host" {
			t.Errorf("the lease is %v %v", first.Labels, first.Spec)
		}
		if _, err := leases.Get(w.T.Context(), metav1.NamespaceSystem, "apiserver-gone"); !apierrors.IsNotFound(err) {
			t.Errorf("the lease of a server that is gone: %v", err)
		}
		if _, err := leases.Get(w.T.Context(), metav1.NamespaceSystem, "kube-scheduler"); err != nil {
			t.Errorf("another lease: %v", err)
		}
		time.Sleep(renewEvery)
		w.Settle()
		second, err := leases.Get(w.T.Context(), metav1.NamespaceSystem, ID("host"))
		if err != nil || !second.Spec.RenewTime.After(first.Spec.RenewTime.Time) {
			t.Errorf("it is not renewed: %v, %v", second, err)
		}
	})
}

func TestIdentitiesAreUpstreams(t *testing.T) {
	if got := ID("host"); got == ID("host2") || len(got) != len("apiserver-")+26 {
		t.Errorf("%s", got)
	}
}
