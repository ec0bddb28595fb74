package objects

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"proa/pkg/proatest"
)

var networkKinds = []kind{
	{
		gvr: resourceOf("discovery.k8s.io", "v1", "endpointslices"), kind: "EndpointSlice", first: 1, counts: true,
		object: "{addressType: IPv4, endpoints: [{addresses: [10.1.2.3]}], ports: [{name: a, port: 80, protocol: TCP}]}",
		change: "ports: [{name: b, port: 8080, protocol: UDP}]",
	},
	{
		gvr: resourceOf("networking.k8s.io", "v1", "ingresses"), kind: "Ingress", first: 1, counts: true,
		object: "spec: {defaultBackend: {service: {name: web, port: {number: 80}}}}",
		change: "spec: {defaultBackend: {service: {name: web, port: {number: 8080}}}}",
		status: `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}}`,
	},
	{
		gvr: resourceOf("networking.k8s.io", "v1", "ingressclasses"), kind: "IngressClass", clustered: true, first: 1, counts: true,
		object: "spec: {controller: example.com/c, parameters: {kind: Parameters, name: a, scope: Cluster}}",
		change: "spec: {parameters: {name: b}}",
	},
	{
		gvr: resourceOf("networking.k8s.io", "v1", "ipaddresses"), kind: "IPAddress", clustered: true,
		object: "spec: {parentRef: {group: example.com, resource: things, namespace: ns, name: thing}}",
		names:  map[string]string{"one": "255.255.255.255", "two": "fe80::42:1dff:fe84:f9e2", "three": "203.0.113.3", "four": "203.0.113.4", "last": "203.0.113.5"},
	},
	{
		gvr: resourceOf("networking.k8s.io", "v1", "servicecidrs"), kind: "ServiceCIDR", clustered: true,
		object: "spec: {cidrs: [10.1.0.0/24]}",
		status: `{"status":{"conditions":[{"type":"Ready","status":"False","reason":"Test","message":"m","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`,
	},
	{
		gvr: resourceOf("", "v1", "services"), kind: "Service",
		object: "spec: {type: ClusterIP, ports: [{port: 80}], selector: {app: web}}",
		change: "spec: {publishNotReadyAddresses: true}",
		status: `{"status":{"conditions":[{"type":"Test","status":"True","reason":"Test","message":"m","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`,
	},
}

func TestEveryVerbOfNetworkKinds(t *testing.T) {
	t.Parallel()
	everyVerb(t, newServer(t, proatest.Options{}), networkKinds)
}

// TestTheFirstServiceCIDR is that every cluster has one, in its own words, with
// its status, and that watches show it.
func TestTheFirstServiceCIDR(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{ServiceCIDR: "10.7.0.0/16", Controllers: []string{"service-cidr-controller"}})
	ctx := within(t)
	w := must(s.NetworkingV1().ServiceCIDRs().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=kubernetes"}))(t)
	defer w.Stop()
	for {
		c := next(ctx, t, w).Object.(*networkingv1.ServiceCIDR)
		if len(c.Spec.CIDRs) != 1 || c.Spec.CIDRs[0] != "10.7.0.0/16" {
			t.Fatalf("the first is %v", c.Spec)
		}
		for _, condition := range c.Status.Conditions {
			if condition.Type == networkingv1.ServiceCIDRConditionReady && condition.Status == metav1.ConditionTrue {
				return
			}
		}
	}
}

// TestTheStatusOfAService goes by what a load balancer says of a Service of its
// class: each word of it is watched.
func TestTheStatusOfAService(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	ctx := within(t)
	services := s.CoreV1().Services(space)
	w := must(services.Watch(ctx, metav1.ListOptions{LabelSelector: "static=yes"}))(t)
	defer w.Stop()
	watched := func(want watch.EventType) *corev1.Service {
		t.Helper()
		e := next(ctx, t, w)
		if e.Type != want {
			t.Fatalf("watched %s of %v", e.Type, e.Object)
		}
		return e.Object.(*corev1.Service)
	}
	class := "example.com/internal-vip"
	created := must(services.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"static": "yes"}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class,
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(80)}},
		},
	}, metav1.CreateOptions{}))(t)
	if got := watched(watch.Added); got.UID != created.UID {
		t.Errorf("watched %v", got)
	}
	var status corev1.Service
	if err := s.CoreV1().RESTClient().Get().Namespace(space).Resource("services").Name("web").SubResource("status").Do(ctx).Into(&status); err != nil {
		t.Fatal(err)
	}
	if status.UID != created.UID || len(status.Status.LoadBalancer.Ingress) != 0 {
		t.Errorf("the status reads %v", status)
	}

	must(services.Patch(ctx, "web", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"patchedstatus":"true"}},"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.1"}]}}}`),
		metav1.PatchOptions{}, "status"))(t)
	patched := watched(watch.Modified)
	if patched.Annotations["patchedstatus"] != "true" || patched.Status.LoadBalancer.Ingress[0].IP != "203.0.113.1" {
		t.Errorf("after a patch of the status: %v, %v", patched.Annotations, patched.Status)
	}
	if mode := patched.Status.LoadBalancer.Ingress[0].IPMode; mode == nil || *mode != corev1.LoadBalancerIPModeVIP {
		t.Errorf("the mode of the address is %v", mode)
	}

	patched.Status.Conditions = append(patched.Status.Conditions, metav1.Condition{
		Type: "StatusUpdate", Status: metav1.ConditionTrue, Reason: "E2E", Message: "Set from a test", LastTransitionTime: metav1.Unix(1_800_000_000, 0),
	})
	must(services.UpdateStatus(ctx, patched, metav1.UpdateOptions{}))(t)
	updated := watched(watch.Modified)
	if len(updated.Status.Conditions) != 1 || updated.Status.Conditions[0].Type != "StatusUpdate" || len(updated.Status.LoadBalancer.Ingress) != 1 {
		t.Errorf("after an update of the status: %v", updated.Status)
	}

	must(services.Patch(ctx, "web", types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"patched":"yes"}}}`), metav1.PatchOptions{}))(t)
	if got := watched(watch.Modified); got.Labels["patched"] != "yes" || len(got.Status.Conditions) != 1 {
		t.Errorf("after a patch of the Service: %v, %v", got.Labels, got.Status)
	}
	if err := services.Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	watched(watch.Deleted)
}

// TestServicesOfALabelAreDeleted leaves those without it.
func TestServicesOfALabelAreDeleted(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	ctx := within(t)
	services := s.CoreV1().Services(space)
	for name, labels := range map[string]map[string]string{"one": {"set": "yes"}, "two": {"set": "yes"}, "three": {"set": "no"}} {
		must(services.Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{}))(t)
	}
	// The typed client of Services has no such call.
	if err := s.CoreV1().RESTClient().Delete().Namespace(space).Resource("services").Param("labelSelector", "set=yes").Do(ctx).Error(); err != nil {
		t.Fatal(err)
	}
	left := must(services.List(ctx, metav1.ListOptions{}))(t)
	if len(left.Items) != 1 || left.Items[0].Name != "three" {
		t.Errorf("left are %v", left.Items)
	}
}

func TestAllServicesIncludeKubernetes(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	for _, svc := range must(s.CoreV1().Services("").List(within(t), metav1.ListOptions{}))(t).Items {
		if svc.Name == "kubernetes" && svc.Namespace == "default" {
			return
		}
	}
	t.Error("no Service kubernetes in default")
}
