package ipaddress_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
	"proa/internal/controllers/ipaddress"
	"proa/internal/controllers/servicecidr"
)

func run(t *testing.T, test func(w *controllertest.World)) {
	t.Helper()
	controllertest.Run(t, func(w *controllertest.World) {
		addRange(w, "kubernetes", "10.96.0.0/12")
		defer w.Start(start)()
		service(w, "web", "10.96.0.7")
		test(w)
	})
}

func start(c controllers.Config) []controllertest.Runner {
	return []controllertest.Runner{ipaddress.New(c), servicecidr.New(c)}
}

func addRange(w *controllertest.World, name, cidr string) {
	w.T.Helper()
	_, err := client.Of[*networkingv1.ServiceCIDR](w.API).Create(w.T.Context(), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}},
	})
	if err != nil {
		w.T.Fatal(err)
	}
	w.Settle()
}

func service(w *controllertest.World, name, ip string) {
	w.T.Helper()
	w.Create(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Port: 80}}},
	})
	w.Settle()
}

// parent is of an address of the allocator.
func parent(resource, name string) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
			"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io", "ipaddress.kubernetes.io/ip-family": "IPv4",
		}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: resource, Namespace: controllertest.Namespace, Name: name}},
	}
}

func add(w *controllertest.World, ip string, a *networkingv1.IPAddress) {
	w.T.Helper()
	a.Name = ip
	if _, err := client.Of[*networkingv1.IPAddress](w.API).Create(w.T.Context(), a); err != nil {
		w.T.Fatal(err)
	}
	w.Settle()
}

func remove(w *controllertest.World, ip string) {
	w.T.Helper()
	if _, err := client.Of[*networkingv1.IPAddress](w.API).Delete(w.T.Context(), "", ip, metav1.DeleteOptions{}); err != nil {
		w.T.Fatal(err)
	}
}

// addresses are all, as "address name-of-the-parent".
func addresses(w *controllertest.World) string {
	w.T.Helper()
	var all []string
	for _, a := range controllertest.List[*networkingv1.IPAddress](w) {
		all = append(all, a.Name+" "+a.Spec.ParentRef.Name)
	}
	return strings.Join(all, ", ")
}

func expect(w *controllertest.World, want string) {
	w.T.Helper()
	if got := addresses(w); got != want {
		w.T.Errorf("addresses: %s, want %s", got, want)
	}
}

func expectEvent(w *controllertest.World, want string) {
	w.T.Helper()
	if events := w.Events(); !slices.Contains(events, want) {
		w.T.Errorf("no event %q, only\n%s", want, strings.Join(events, "\n"))
	}
}

func TestAMissingAddressIsMadeAgain(t *testing.T) {
	run(t, func(w *controllertest.World) {
		remove(w, "10.96.0.7")
		w.Settle()
		expect(w, "10.96.0.7 web")
		expectEvent(w, "Warning ClusterIPNotAllocated Cluster IP [IPv4]: 10.96.0.7 is not allocated; repairing")
		made := controllertest.List[*networkingv1.IPAddress](w)[0]
		if made.Labels["ipaddress.kubernetes.io/managed-by"] != "ipallocator.k8s.io" || made.Labels["ipaddress.kubernetes.io/ip-family"] != "IPv4" {
			t.Errorf("labels %v", made.Labels)
		}
	})
}

func TestAnAddressThatRefersElsewhereIsMadeAnew(t *testing.T) {
	for name, other := range map[string]*networkingv1.IPAddress{
		"to a Service that is not there": parent("services", "nobody"), "to something else": parent("gateways", "web"),
	} {
		t.Run(name, func(t *testing.T) {
			controllertest.Run(t, func(w *controllertest.World) {
				addRange(w, "kubernetes", "10.96.0.0/12")
				service(w, "web", "10.96.0.7")
				remove(w, "10.96.0.7")
				other.Labels["ipaddress.kubernetes.io/managed-by"] = "somebody" // else it goes as an orphan
				add(w, "10.96.0.7", other)
				defer w.Start(start)()
				expect(w, "10.96.0.7 web")
				expectEvent(w, "Warning ClusterIPNotAllocated the ClusterIP [IPv4]: 10.96.0.7 for Service default/web has a wrong reference; repairing")
			})
		})
	}
}

func TestLabelsOfTheAllocatorAreRestored(t *testing.T) {
	run(t, func(w *controllertest.World) {
		a := controllertest.List[*networkingv1.IPAddress](w)[0].DeepCopy()
		a.Labels = nil
		if _, err := client.Of[*networkingv1.IPAddress](w.API).Update(w.T.Context(), a); err != nil {
			t.Fatal(err)
		}
		w.Settle()
		if a = controllertest.List[*networkingv1.IPAddress](w)[0]; a.Labels["ipaddress.kubernetes.io/managed-by"] != "ipallocator.k8s.io" {
			t.Errorf("labels %v", a.Labels)
		}
	})
}

func TestAnAddressWithoutAServiceGoesAfterAMinute(t *testing.T) {
	run(t, func(w *controllertest.World) {
		add(w, "10.96.0.9", parent("services", "gone"))
		time.Sleep(59 * time.Second)
		w.Settle()
		expect(w, "10.96.0.7 web, 10.96.0.9 gone")
		time.Sleep(2 * time.Second)
		w.Settle()
		expect(w, "10.96.0.7 web")
		expectEvent(w, "Warning IPAddressNotAllocated IPAddress: 10.96.0.9 for Service default/gone appears to have leaked: cleaning up")
	})
}

func TestAddressesThatTheirServiceDoesNotHaveGo(t *testing.T) {
	run(t, func(w *controllertest.World) {
		add(w, "10.96.0.9", parent("services", "web"))
		expect(w, "10.96.0.7 web")
		expectEvent(w, "Warning IPAddressWrongReference IPAddress: 10.96.0.9 for Service default/web has a wrong reference; cleaning up")
		add(w, "10.96.0.9", parent("gateways", "web"))
		expect(w, "10.96.0.7 web")
	})
}

func TestAddressesOfOthersStay(t *testing.T) {
	run(t, func(w *controllertest.World) {
		a := parent("gateways", "front")
		a.Labels["ipaddress.kubernetes.io/managed-by"] = "gateways.example"
		add(w, "192.0.2.1", a)
		time.Sleep(time.Hour)
		w.Settle()
		expect(w, "10.96.0.7 web, 192.0.2.1 front")
	})
}

func TestAServiceOutsideEveryRangeIsTold(t *testing.T) {
	run(t, func(w *controllertest.World) {
		const told = "Warning ClusterIPOutOfRange Cluster IP [IPv4]: 10.200.0.7 is not within any configured Service CIDR; please recreate service"
		addRange(w, "more", "10.200.0.0/24")
		service(w, "far", "10.200.0.7")
		if slices.Contains(w.Events(), told) {
			t.Fatal("an address of a range is out of range")
		}
		if _, err := client.Of[*networkingv1.ServiceCIDR](w.API).Delete(w.T.Context(), "", "more", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.Settle()
		cidr, err := client.Of[*networkingv1.ServiceCIDR](w.API).Get(w.T.Context(), "", "more")
		if err != nil {
			t.Fatal(err)
		}
		cidr = cidr.DeepCopy()
		cidr.Finalizers = nil // by force
		if _, err := client.Of[*networkingv1.ServiceCIDR](w.API).Update(w.T.Context(), cidr); err != nil {
			t.Fatal(err)
		}
		controllertest.Change(w, "far", func(s *corev1.Service) { s.Labels = map[string]string{"looked": "at"} })
		expectEvent(w, told)
		before := len(w.Events())
		time.Sleep(ipaddress.Interval + time.Second)
		w.Settle()
		if len(w.Events()) != before+1 {
			t.Errorf("told %d times more after the interval, want once", len(w.Events())-before)
		}
	})
}

func TestAServiceThatGoesLeavesNothing(t *testing.T) {
	run(t, func(w *controllertest.World) {
		w.Writes()
		controllertest.Delete[*corev1.Service](w, "web")
		time.Sleep(time.Hour)
		w.Settle()
		expect(w, "")
		if writes := w.Writes(); len(writes) > 0 {
			t.Errorf("writes %v", writes)
		}
	})
}
