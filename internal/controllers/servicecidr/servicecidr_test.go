package servicecidr_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
	"proa/internal/controllers/servicecidr"
)

func run(t *testing.T, test func(w *controllertest.World)) {
	t.Helper()
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			return []controllertest.Runner{servicecidr.New(c)}
		})()
		test(w)
	})
}

func add(w *controllertest.World, name, cidr string) {
	w.T.Helper()
	_, err := client.Of[*networkingv1.ServiceCIDR](w.API).Create(w.T.Context(), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}},
	})
	if err != nil {
		w.T.Fatal(err)
	}
	w.Settle()
}

func remove(w *controllertest.World, name string) {
	w.T.Helper()
	if _, err := client.Of[*networkingv1.ServiceCIDR](w.API).Delete(w.T.Context(), "", name, metav1.DeleteOptions{}); err != nil {
		w.T.Fatal(err)
	}
	w.Settle()
}

// state is the Ready condition of a range, "gone" when there is none.
func state(w *controllertest.World, name string) string {
	w.T.Helper()
	for _, c := range controllertest.List[*networkingv1.ServiceCIDR](w) {
		if c.Name != name {
			continue
		}
		ready := meta.FindStatusCondition(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
		if len(c.Finalizers) != 1 || c.Finalizers[0] != "networking.k8s.io/service-cidr-finalizer" || ready == nil {
			w.T.Fatalf("%s: finalizers %v, conditions %v", name, c.Finalizers, c.Status.Conditions)
		}
		return string(ready.Status) + " " + ready.Reason
	}
	return "gone"
}

func expect(w *controllertest.World, name, want string) {
	w.T.Helper()
	if got := state(w, name); got != want {
		w.T.Errorf("%s is %q, want %q", name, got, want)
	}
}

// service takes an address; the registry makes its IPAddress.
func service(w *controllertest.World, name, ip string) {
	w.T.Helper()
	w.Create(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Port: 80}}},
	})
	w.Settle()
}

func TestARangeIsReadyAndGoesOnceUnused(t *testing.T) {
	run(t, func(w *controllertest.World) {
		add(w, "more", "10.200.0.0/24")
		expect(w, "more", "True ")
		service(w, "web", "10.200.0.7")
		remove(w, "more")
		time.Sleep(time.Minute)
		w.Settle()
		expect(w, "more", "False Terminating")
		if got, want := w.Events()[1], "Normal KubernetesServiceCIDRNotReady There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR"; got != want {
			t.Errorf("event %q, want %q", got, want)
		}
		controllertest.Delete[*corev1.Service](w, "web")
		expect(w, "more", "gone")
	})
}

func TestAnUnusedRangeIsKeptForAMoment(t *testing.T) {
	run(t, func(w *controllertest.World) {
		add(w, "more", "10.200.0.0/24")
		remove(w, "more")
		expect(w, "more", "True ")
		time.Sleep(11 * time.Second)
		w.Settle()
		expect(w, "more", "gone")
	})
}

func TestARangeWhoseAddressesAreInAnotherGoes(t *testing.T) {
	run(t, func(w *controllertest.World) {
		add(w, "more", "10.200.0.0/24")
		service(w, "web", "10.200.0.7")
		remove(w, "more")
		time.Sleep(time.Minute)
		w.Settle()
		expect(w, "more", "False Terminating")
		add(w, "wider", "10.200.0.0/16")
		expect(w, "more", "gone")
		expect(w, "wider", "True ")
		remove(w, "wider")
		time.Sleep(time.Minute)
		w.Settle()
		expect(w, "wider", "False Terminating")
	})
}

func TestANewServiceTakesNothingFromATerminatingRange(t *testing.T) {
	run(t, func(w *controllertest.World) {
		add(w, "more", "10.200.0.0/24")
		service(w, "web", "10.200.0.7")
		remove(w, "more")
		_, err := client.Of[*corev1.Service](w.API).Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "late", Namespace: controllertest.Namespace},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.200.0.8", Ports: []corev1.ServicePort{{Port: 80}}},
		})
		if err == nil {
			t.Error("an address of a range that goes was given out")
		}
	})
}
