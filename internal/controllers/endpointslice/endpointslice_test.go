package endpointslice

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func run(t *testing.T, test func(w *controllertest.World)) {
	t.Helper()
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner { return []controllertest.Runner{New(c)} })()
		w.Create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}},
		}})
		test(w)
	})
}

func pod(w *controllertest.World, name, ip string) {
	w.Create(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	})
	controllertest.ChangeStatus(w, name, func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		}
	})
}

// addresses are the ready ones of all slices, sorted.
func addresses(w *controllertest.World) string {
	var out []string
	for _, s := range controllertest.List[*discoveryv1.EndpointSlice](w) {
		for _, e := range s.Endpoints {
			if *e.Conditions.Ready {
				out = append(out, e.Addresses...)
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestSlicesFollowPods(t *testing.T) {
	run(t, func(w *controllertest.World) {
		w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
		pod(w, "a", "10.0.0.1")
		pod(w, "b", "10.0.0.2")
		if got := addresses(w); got != "10.0.0.1 10.0.0.2" {
			t.Errorf("addresses %q", got)
		}
		w.Writes()
		controllertest.ChangeStatus(w, "a", func(p *corev1.Pod) { p.Status.Message = "hello" })
		if got := w.Writes(); len(got) != 0 {
			t.Errorf("wrote %v for a change that does not matter", got)
		}
		controllertest.ChangeStatus(w, "a", func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse })
		if got := addresses(w); got != "10.0.0.2" {
			t.Errorf("addresses %q", got)
		}
		controllertest.Delete[*corev1.Pod](w, "b")
		if got := addresses(w); got != "" {
			t.Errorf("addresses %q", got)
		}
	})
}

func TestSlicesAreFilledAndRestored(t *testing.T) {
	run(t, func(w *controllertest.World) {
		w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
		for i := range maxEndpointsPerSlice + 20 {
			pod(w, fmt.Sprint("p", i), fmt.Sprintf("10.0.%d.%d", i/200, i%200+1))
		}
		found := controllertest.List[*discoveryv1.EndpointSlice](w)
		if len(found) != 2 || len(found[0].Endpoints)+len(found[1].Endpoints) != maxEndpointsPerSlice+20 {
			t.Fatalf("%d slices", len(found))
		}
		controllertest.Delete[*discoveryv1.EndpointSlice](w, found[0].Name)
		if got := len(strings.Fields(addresses(w))); got != maxEndpointsPerSlice+20 {
			t.Errorf("%d addresses after a slice was deleted", got)
		}
	})
}
