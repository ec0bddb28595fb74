package clusterdns

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func run(t *testing.T, test func(w *controllertest.World)) {
	t.Helper()
	controllertest.Run(t, func(w *controllertest.World) {
		w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			return []controllertest.Runner{New(c, netip.MustParseAddr("10.96.0.10"))}
		})()
		test(w)
	})
}

// endpoints are the addresses DNS leads to, those that are not ready in parentheses.
func endpoints(w *controllertest.World) string {
	var out []string
	for _, s := range controllertest.List[*discoveryv1.EndpointSlice](w) {
		for _, e := range s.Endpoints {
			text := fmt.Sprintf("%s=%s", e.Hints.ForNodes[0].Name, e.Addresses[0])
			if !*e.Conditions.Ready {
				text = "(" + text + ")"
			}
			out = append(out, text)
		}
	}
	return strings.Join(out, " ")
}

func node(w *controllertest.World, name, cidr string) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if cidr != "" {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = cidr, []string{cidr}
	}
	w.Create(n)
	w.Settle()
}

func ready(w *controllertest.World, name string, status corev1.ConditionStatus) {
	nodes := client.Of[*corev1.Node](w.API)
	n, err := nodes.Get(w.T.Context(), "", name)
	if err != nil {
		w.T.Fatal(err)
	}
	n = n.DeepCopy()
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	if _, err := nodes.UpdateStatus(w.T.Context(), n); err != nil {
		w.T.Fatal(err)
	}
	w.Settle()
}

func TestDNSLeadsToEveryNodeThatIsThere(t *testing.T) {
	run(t, func(w *controllertest.World) {
		w.Settle()
		svc := controllertest.List[*corev1.Service](w)
		if len(svc) != 1 || svc[0].Name != service || svc[0].Spec.ClusterIP != "10.96.0.10" {
			t.Fatalf("services %v", svc)
		}
		node(w, "a", "10.244.0.0/24")
		node(w, "b", "10.244.1.0/24")
		node(w, "c", "")
		if got, want := endpoints(w), "a=10.244.0.1 b=10.244.1.1"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		ready(w, "a", corev1.ConditionFalse)
		ready(w, "b", corev1.ConditionUnknown)
		if got, want := endpoints(w), "a=10.244.0.1 (b=10.244.1.1)"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

func TestSomeoneElsesDNSStaysAsItIs(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
		w.Create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: service},
			Spec: corev1.ServiceSpec{Selector: map[string]string{"k8s-app": "coredns"}, Ports: []corev1.ServicePort{{Port: 53}}}})
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			return []controllertest.Runner{New(c, netip.MustParseAddr("10.96.0.10"))}
		})()
		node(w, "a", "10.244.0.0/24")
		if got := endpoints(w); got != "" {
			t.Errorf("leads to %s", got)
		}
	})
}

func TestWhatIsDeletedComesBack(t *testing.T) {
	run(t, func(w *controllertest.World) {
		node(w, "a", "10.244.0.0/24")
		if _, err := client.Of[*discoveryv1.EndpointSlice](w.API).Delete(w.T.Context(), namespace, "kube-dns-a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Of[*corev1.Service](w.API).Delete(w.T.Context(), namespace, service, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.Settle()
		if got := endpoints(w); got != "a=10.244.0.1" {
			t.Errorf("leads to %q", got)
		}
		if got := controllertest.List[*corev1.Service](w); len(got) != 1 {
			t.Errorf("services %v", got)
		}
	})
}
