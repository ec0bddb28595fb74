// Package clusterdns makes the DNS servers of the nodes found: it keeps the
// Service kube-system/kube-dns and, for every node, an EndpointSlice that leads
// to the server there. Nodes do not announce themselves: who may write these
// objects answers the questions of every pod.
package clusterdns

import (
	"context"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"proa/internal/client"
	"proa/internal/controllers"
)

const (
	namespace = metav1.NamespaceSystem
	service   = "kube-dns"
	managedBy = "dns.proa.dev"
	port      = 53
)

// Controller keeps the DNS Service.
type Controller struct {
	loop     *controllers.Loop
	address  netip.Addr
	nodes    *client.Informer[*corev1.Node]
	services *client.Informer[*corev1.Service]
	slices   *client.Informer[*discoveryv1.EndpointSlice]
}

// New returns a controller for the Service with the ClusterIP address.
func New(c controllers.Config, address netip.Addr) *Controller {
	d := &Controller{
		address:  address,
		nodes:    client.Shared[*corev1.Node](c.Cache),
		services: client.Shared[*corev1.Service](c.Cache),
		slices:   client.Shared[*discoveryv1.EndpointSlice](c.Cache),
	}
	d.loop = controllers.NewLoop("cluster-dns", c, d.reconcile)
	d.nodes.OnChange(func(old, node *corev1.Node) {
		if node != nil && (old == nil || d.want(old) == nil || !sameSlice(d.want(old), d.want(node))) {
			d.loop.EnqueueObject(node)
		}
	})
	d.services.OnChange(func(old, svc *corev1.Service) {
		if svc == nil {
			svc = old
		}
		if svc.Namespace == namespace && svc.Name == service {
			d.everyNode()
		}
	})
	d.slices.OnChange(func(old, slice *discoveryv1.EndpointSlice) {
		if old != nil && old.Namespace == namespace && old.Labels[discoveryv1.LabelManagedBy] == managedBy && len(old.Endpoints) > 0 {
			d.loop.Enqueue(controllers.Key{Name: ptr.Deref(old.Endpoints[0].NodeName, "")})
		}
	})
	d.loop.Enqueue(controllers.Key{}) // the Service is there before any node
	return d
}

// Run works until ctx ends.
func (d *Controller) Run(ctx context.Context) error { return d.loop.Run(ctx) }

func (d *Controller) everyNode() {
	d.loop.Enqueue(controllers.Key{})
	for _, node := range d.nodes.Select("", labels.Everything()) {
		d.loop.EnqueueObject(node)
	}
}

// reconcile makes the Service exist and, if the key names a node, lead to it. A
// Service of that name with a selector is someone else's DNS and stays as it is.
func (d *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	svc, ok := d.services.Cached(namespace, service)
	if !ok {
		_, err := d.services.Create(ctx, d.serviceObject())
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
		return controllers.Result{}, err // the new Service brings every node here
	}
	node, ok := d.nodes.Cached("", key.Name)
	if !ok || len(svc.Spec.Selector) > 0 || node.DeletionTimestamp != nil {
		return controllers.Result{}, nil
	}
	want := d.want(node)
	if want == nil {
		return controllers.Result{}, nil
	}
	have, ok := d.slices.Cached(namespace, want.Name)
	if !ok {
		_, err := d.slices.Create(ctx, want)
		return controllers.Result{}, err
	}
	if sameSlice(have, want) {
		return controllers.Result{}, nil
	}
	changed := have.DeepCopy()
	changed.Endpoints, changed.Ports, changed.OwnerReferences = want.Endpoints, want.Ports, want.OwnerReferences
	_, err := d.slices.Update(ctx, changed)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		err = nil // the change that came first brings the node back here
	}
	return controllers.Result{}, err
}

func sameSlice(a, b *discoveryv1.EndpointSlice) bool {
	return b == nil || equality.Semantic.DeepEqual(a.Endpoints, b.Endpoints) && equality.Semantic.DeepEqual(a.Ports, b.Ports) &&
		equality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences)
}

func (d *Controller) serviceObject() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: service, Labels: map[string]string{
			"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"}},
		Spec: corev1.ServiceSpec{ClusterIP: d.address.String(), Ports: []corev1.ServicePort{
			{Name: "dns", Protocol: corev1.ProtocolUDP, Port: port},
			{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: port},
		}},
	}
}

// want is the slice of a node, nil while it has no range of pod addresses. The
// server listens at the range's first address. Pods use that of their own node
// as long as it is there.
func (d *Controller) want(node *corev1.Node) *discoveryv1.EndpointSlice {
	cidr, err := netip.ParsePrefix(node.Spec.PodCIDR)
	if err != nil {
		return nil
	}
	here := !gone(node)
	entry := func(name string, proto corev1.Protocol) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: ptr.To(name), Protocol: ptr.To(proto), Port: ptr.To[int32](port)}
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: service + "-" + node.Name,
			Labels:          map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: managedBy},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{entry("dns", corev1.ProtocolUDP), entry("dns-tcp", corev1.ProtocolTCP)},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses:  []string{cidr.Masked().Addr().Next().String()},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(here), Serving: ptr.To(here), Terminating: ptr.To(false)},
			NodeName:   ptr.To(node.Name),
			Hints:      &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: node.Name}}},
		}},
	}
}

// gone says that nothing is heard of a node any more. One that is there but not
// Ready still answers.
func gone(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionUnknown
		}
	}
	return false
}
