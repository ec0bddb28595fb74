package endpointslicemirroring

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func subset(port int32, addresses ...string) corev1.EndpointSubset {
	s := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Name: "p", Port: port, Protocol: corev1.ProtocolTCP}}}
	for _, a := range addresses {
		if ip, unready := strings.CutPrefix(a, "-"); unready {
			s.NotReadyAddresses = append(s.NotReadyAddresses, corev1.EndpointAddress{IP: ip})
		} else {
			s.Addresses = append(s.Addresses, corev1.EndpointAddress{IP: a})
		}
	}
	return s
}

func want(w *controllertest.World, texts ...string) {
	w.T.Helper()
	var got []string
	for _, s := range controllertest.List[*discoveryv1.EndpointSlice](w) {
		var words []string
		for _, e := range s.Endpoints {
			ip := e.Addresses[0]
			if !*e.Conditions.Ready {
				ip = "-" + ip
			}
			words = append(words, ip)
		}
		got = append(got, fmt.Sprintf("%s %v :%d", s.AddressType, words, *s.Ports[0].Port))
	}
	slices.Sort(got)
	if !slices.Equal(got, texts) {
		w.T.Errorf("got %v, want %v", got, texts)
	}
}

func TestEndpointsAreMirrored(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner { return []controllertest.Runner{New(c)} })()
		w.Create(&corev1.Endpoints{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"team": "a"}},
			Subsets:    []corev1.EndpointSubset{subset(80, "10.0.0.1", "-10.0.0.2", "fd00::1")},
		})
		w.Settle()
		want(w) // no Service
		w.Create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}})
		w.Settle()
		want(w, "IPv4 [10.0.0.1 -10.0.0.2] :80", "IPv6 [fd00::1] :80")
		s := controllertest.List[*discoveryv1.EndpointSlice](w)[0]
		if s.Labels["team"] != "a" || s.Labels[discoveryv1.LabelServiceName] != "web" || s.Labels[discoveryv1.LabelManagedBy] != name || s.OwnerReferences[0].Kind != "Endpoints" {
			t.Errorf("metadata %+v", s.ObjectMeta)
		}
		controllertest.Change(w, "web", func(ep *corev1.Endpoints) { ep.Subsets = []corev1.EndpointSubset{subset(81, "10.0.0.1")} })
		want(w, "IPv4 [10.0.0.1] :81")
		w.Writes()
		controllertest.Change(w, "web", func(s *corev1.Service) { s.Labels = map[string]string{"a": "b"} })
		if got := w.Writes(); len(got) != 0 {
			t.Errorf("wrote %v", got)
		}
		if _, err := w.API.Delete(w.T.Context(), sliceRef(controllertest.List[*discoveryv1.EndpointSlice](w)[0].Name), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.Settle()
		want(w, "IPv4 [10.0.0.1] :81")
		controllertest.Change(w, "web", func(s *corev1.Service) { s.Spec.Selector = map[string]string{"a": "b"} })
		want(w)
		controllertest.Change(w, "web", func(s *corev1.Service) { s.Spec.Selector = nil })
		want(w, "IPv4 [10.0.0.1] :81")
		controllertest.Delete[*corev1.Endpoints](w, "web")
		want(w)
	})
}

func TestOnlyWhatSlicesMayHoldIsMirrored(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			c.Metrics = w.Registry()
			return []controllertest.Runner{New(c)}
		})()
		many := func(n int) corev1.EndpointSubset {
			var addresses []string
			for i := range 700 {
				addresses = append(addresses, fmt.Sprintf("10.%d.%d.%d", n, i/100, i%100))
			}
			return subset(80, addresses...)
		}
		tooMany := many(0)
		tooMany.NotReadyAddresses = many(1).Addresses
		w.Create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}})
		w.Create(&corev1.Endpoints{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{corev1.IsHeadlessService: ""}, Annotations: map[string]string{
				"a": "b", corev1.EndpointsLastChangeTriggerTime: "2020-01-01T00:00:00Z", corev1.LastAppliedConfigAnnotation: "{}",
			}},
			Subsets: []corev1.EndpointSubset{
				tooMany, many(2), // of the same ports: one slice, which holds 1000
				subset(81, "10.0.0.1", "10.0.0.2", "10.0.0.3"), subset(81, "-10.0.0.3"),
			},
		})
		w.Settle()
		all := controllertest.List[*discoveryv1.EndpointSlice](w)
		sizes := map[int32]int{}
		for _, s := range all {
			sizes[*s.Ports[0].Port] = len(s.Endpoints)
			if _, headless := s.Labels[corev1.IsHeadlessService]; !headless || len(s.Annotations) != 1 || s.Annotations["a"] != "b" {
				t.Errorf("metadata %+v", s.ObjectMeta)
			}
		}
		if len(all) != 2 || sizes[80] != 1000 || sizes[81] != 3 {
			t.Errorf("endpoints by port %v", sizes)
		}
		if got := w.Events(); !slices.Equal(got, []string{"Warning TooManyAddressesToMirror A max of 1000 addresses can be mirrored to EndpointSlices per Endpoints subset. 400 addresses were skipped"}) {
			t.Errorf("events %v", got)
		}
		w.Measured("endpoint_slice_mirroring_controller_endpoints_desired 1003", "endpoint_slice_mirroring_controller_num_endpoint_slices 2",
			"endpoint_slice_mirroring_controller_addresses_skipped_per_sync_sum 400", `endpoint_slice_mirroring_controller_changes{operation="create"} 2`)
		controllertest.Change(w, "web", func(ep *corev1.Endpoints) { ep.Subsets = ep.Subsets[2:] })
		want(w, "IPv4 [10.0.0.1 10.0.0.2 -10.0.0.3] :81")
		w.Measured("endpoint_slice_mirroring_controller_endpoints_removed_per_sync_sum 1000", "endpoint_slice_mirroring_controller_desired_endpoint_slices 1")
	})
}

// Older servers took addresses that slices must not have.
func TestAddressesAreWrittenInTheirUsualForm(t *testing.T) {
	m := mirror(&corev1.Endpoints{Subsets: []corev1.EndpointSubset{subset(80, "010.0.0.1", "::ffff:10.0.0.2", "FD00::0:1", "host")}})
	var got []string
	for _, s := range m.slices {
		for _, e := range s.Endpoints {
			got = append(got, string(s.AddressType)+" "+e.Addresses[0])
		}
	}
	if want := []string{"IPv4 10.0.0.1", "IPv4 10.0.0.2", "IPv6 fd00::1"}; !slices.Equal(got, want) || m.invalid != 1 || m.skipped != 1 {
		t.Errorf("%v, want %v; %d invalid, %d skipped", got, want, m.invalid, m.skipped)
	}
}

func TestEndpointsThatAskForItAreNotMirrored(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner { return []controllertest.Runner{New(c)} })()
		for name, meta := range map[string]metav1.ObjectMeta{
			"skip":  {Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"}},
			"elect": {Annotations: map[string]string{leaderAnnotation: "{}"}},
		} {
			meta.Name = name
			w.Create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}})
			w.Create(&corev1.Endpoints{ObjectMeta: meta, Subsets: []corev1.EndpointSubset{subset(80, "10.0.0.1")}})
		}
		w.Settle()
		want(w)
	})
}

func sliceRef(name string) client.Ref {
	return client.Ref{Resource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), Namespace: "default", Name: name}
}
