package endpoints

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

// pod is "ip" or "ip unready", with a container port named http where it is said.
func pod(text string) *corev1.Pod {
	f := strings.Fields(text)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod-" + f[0], Namespace: "default", UID: types.UID(f[0]), Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		Status: corev1.PodStatus{
			PodIP: f[0], PodIPs: []corev1.PodIP{{IP: f[0]}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, word := range f[1:] {
		switch word {
		case "unready":
			p.Status.Conditions[0].Status = corev1.ConditionFalse
		case "http":
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}}
		case "ended":
			p.Status.Phase = corev1.PodSucceeded
		case "going":
			now := metav1.Now()
			p.DeletionTimestamp = &now
		}
	}
	return p
}

func text(subsets []corev1.EndpointSubset) string {
	var out []string
	for _, s := range subsets {
		var words []string
		for _, a := range s.Addresses {
			words = append(words, a.IP)
		}
		for _, a := range s.NotReadyAddresses {
			words = append(words, "("+a.IP+")")
		}
		words = append(words, ":")
		for _, p := range s.Ports {
			words = append(words, fmt.Sprint(p.Port))
		}
		out = append(out, strings.Join(words, " "))
	}
	return strings.Join(out, "; ")
}

func port(number int32, target intstr.IntOrString) corev1.ServicePort {
	return corev1.ServicePort{Name: fmt.Sprint("p", number), Port: number, TargetPort: target, Protocol: corev1.ProtocolTCP}
}

func TestSubsets(t *testing.T) {
	tests := []struct {
		name    string
		ports   []corev1.ServicePort
		pods    []string
		publish bool
		ip      string
		want    string
	}{
		{"sorts addresses and tells the ready ones", []corev1.ServicePort{port(80, intstr.FromInt32(80))}, []string{"10.0.0.10", "10.0.0.9 unready", "10.0.0.2"}, false, "1.1.1.1", "10.0.0.2 10.0.0.10 (10.0.0.9) : 80"},
		{"leaves out pods that ended or are being deleted", []corev1.ServicePort{port(80, intstr.FromInt32(80))}, []string{"10.0.0.1 ended", "10.0.0.2 going", "10.0.0.3"}, false, "1.1.1.1", "10.0.0.3 : 80"},
		{"publishes pods that are not ready where the Service says so", []corev1.ServicePort{port(80, intstr.FromInt32(80))}, []string{"10.0.0.1 unready", "10.0.0.2 going"}, true, "1.1.1.1", "10.0.0.1 10.0.0.2 : 80"},
		{"has a subset for each set of pods that offers a port", []corev1.ServicePort{port(80, intstr.FromInt32(80)), port(81, intstr.FromString("http"))}, []string{"10.0.0.1 http", "10.0.0.2"}, false, "1.1.1.1", "10.0.0.1 10.0.0.2 : 80; 10.0.0.1 : 8080"},
		{"joins ports that the same pods offer", []corev1.ServicePort{port(80, intstr.FromInt32(80)), port(81, intstr.FromInt32(81))}, []string{"10.0.0.1", "10.0.0.2"}, false, "1.1.1.1", "10.0.0.1 10.0.0.2 : 80 81"},
		{"lists pods of a headless Service without ports", nil, []string{"10.0.0.1"}, false, "None", "10.0.0.1 :"},
		{"is empty without ports", nil, []string{"10.0.0.1"}, false, "1.1.1.1", ""},
		{"leaves out pods without an address of the Service's family", []corev1.ServicePort{port(80, intstr.FromInt32(80))}, []string{"10.0.0.1", "fd00::1"}, false, "fd00::99", "fd00::1 : 80"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			svc := &corev1.Service{Spec: corev1.ServiceSpec{Ports: test.ports, ClusterIP: test.ip, PublishNotReadyAddresses: test.publish}}
			var pods []*corev1.Pod
			for _, p := range test.pods {
				pods = append(pods, pod(p))
			}
			if got := text(subsetsOf(svc, pods)); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestTruncateKeepsReadyAddressesAndShares(t *testing.T) {
	subset := func(ready, unready int) corev1.EndpointSubset {
		return corev1.EndpointSubset{Addresses: make([]corev1.EndpointAddress, ready), NotReadyAddresses: make([]corev1.EndpointAddress, unready)}
	}
	tests := []struct {
		name      string
		in        []corev1.EndpointSubset
		want      [][2]int
		truncated bool
	}{
		{"what fits", []corev1.EndpointSubset{subset(500, 500)}, [][2]int{{500, 500}}, false},
		{"unready addresses first", []corev1.EndpointSubset{subset(900, 300)}, [][2]int{{900, 100}}, true},
		{"ready ones by share", []corev1.EndpointSubset{subset(1500, 10), subset(500, 0)}, [][2]int{{750, 0}, {250, 0}}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, truncated := truncate(test.in)
			if truncated != test.truncated || len(got) != len(test.want) {
				t.Fatalf("truncated %v, %d subsets", truncated, len(got))
			}
			for i, s := range got {
				if have := [2]int{len(s.Addresses), len(s.NotReadyAddresses)}; have != test.want[i] {
					t.Errorf("subset %d: %v, want %v", i, have, test.want[i])
				}
			}
		})
	}
}

func TestEndpointsFollowPodsAndTheService(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner { return []controllertest.Runner{New(c)} })()
		w.Create(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"team": "a"}},
			Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
		})
		w.Settle()
		ep := controllertest.Get[*corev1.Endpoints](w, "web")
		if len(ep.Subsets) != 0 || ep.Labels["team"] != "a" || ep.Labels[managedByLabel] != managedBy {
			t.Fatalf("without pods: %+v", ep)
		}
		p := pod("10.0.0.1")
		p.UID = ""
		w.Create(p)
		w.Settle()
		w.Writes()
		controllertest.ChangeStatus(w, p.Name, func(p *corev1.Pod) { p.Status = pod("10.0.0.1").Status })
		if got := text(controllertest.Get[*corev1.Endpoints](w, "web").Subsets); got != "10.0.0.1 : 80" {
			t.Fatalf("with a ready pod: %s", got)
		}
		controllertest.ChangeStatus(w, p.Name, func(p *corev1.Pod) { p.Status.Message = "hello" })
		if got := w.Writes(); got["update endpoints"] != 1 || len(got) != 1 {
			t.Errorf("wrote %v", got)
		}
		controllertest.Change(w, "web", func(ep *corev1.Endpoints) { ep.Subsets = nil })
		if got := text(controllertest.Get[*corev1.Endpoints](w, "web").Subsets); got != "10.0.0.1 : 80" {
			t.Errorf("after a foreign change: %s", got)
		}
		controllertest.Delete[*corev1.Service](w, "web")
		if left := controllertest.List[*corev1.Endpoints](w); len(left) != 0 {
			t.Errorf("left after the Service: %v", left)
		}
	})
}
