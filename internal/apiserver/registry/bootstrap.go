package registry

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"proa/internal/apis"
	"proa/internal/store"
)

const apiService = "kubernetes"

// Bootstrap makes the objects that a cluster has from its first moment: the four
// system namespaces, the system priority classes, the default ServiceCIDR and the
// kubernetes Service. What is there already stays. PublishServers says where that
// Service leads.
func (r *Registry) Bootstrap(ctx context.Context) error {
	for _, obj := range r.bootObjects() {
		if err := r.ensure(ctx, obj); err != nil {
			return err
		}
	}
	return r.readyCIDR(ctx)
}

func (r *Registry) bootObjects() []apis.Object {
	var objs []apis.Object
	for _, name := range []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, metav1.NamespaceDefault} {
		objs = append(objs, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	cidrs := make([]string, len(r.config.ServiceCIDRs))
	for i, c := range r.config.ServiceCIDRs {
		cidrs[i] = c.Masked().String()
	}
	return append(objs,
		&schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: "system-node-critical"}, Value: 2000001000,
			Description: "Used for system critical pods that must not be moved from their current node.",
		},
		&schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: "system-cluster-critical"}, Value: 2000000000,
			Description: "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
		},
		&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: apiService}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}},
		r.apiService(),
	)
}

// apiService is the Service through which pods reach the API server, at the first
// address of the range.
func (r *Registry) apiService() *corev1.Service {
	first := r.config.ServiceCIDRs[0].Masked().Addr().Next().String()
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: apiService, Namespace: metav1.NamespaceDefault,
			Labels: map[string]string{"provider": "kubernetes", "component": "apiserver"},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: first, SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{
				Name: "https", Port: 443, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt(r.config.SecurePort),
			}},
		},
	}
}

var system = &user.DefaultInfo{Name: "system:apiserver", Groups: []string{user.SystemPrivilegedGroup}}

// bootRequest addresses an object as the server itself. Kinds that are not served are left out.
func (r *Registry) bootRequest(obj apis.Object) (*Request, bool) {
	res, ok := r.catalogue.Of(obj)
	if !ok {
		return nil, false
	}
	return &Request{
		User: system, View: apis.View{Resource: res}, UserAgent: "kube-apiserver",
		Namespace: obj.GetNamespace(), Name: obj.GetName(),
	}, true
}

func (r *Registry) ensure(ctx context.Context, obj apis.Object) error {
	q, ok := r.bootRequest(obj)
	if !ok {
		return nil
	}
	if _, err := r.store.Get(q.key()); err == nil {
		return nil
	}
	if _, err := r.Create(ctx, q, obj, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("bootstrap %s: %w", q.key(), err)
	}
	return nil
}

// readyCIDR marks the default ServiceCIDR as ready.
func (r *Registry) readyCIDR(ctx context.Context) error {
	key := store.Key{Resource: schema.GroupResource{Group: networkingv1.GroupName, Resource: "servicecidrs"}, Name: apiService}
	_, err := r.store.Update(ctx, func(tx *store.Tx) error {
		item, err := tx.Get(key)
		if err != nil || len(item.Object.(*networkingv1.ServiceCIDR).Status.Conditions) > 0 {
			return nil //nolint:nilerr // the kind is not served
		}
		cidr := item.Object.(*networkingv1.ServiceCIDR).DeepCopy()
		cidr.Status.Conditions = []metav1.Condition{{
			Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: r.now(),
			Message: "Kubernetes default Service CIDR is ready",
		}}
		_, err = tx.Put(key, cidr)
		return err
	})
	return err
}

// PublishServers has the kubernetes Service lead to the API servers at these addresses,
// and to no others. Addresses of another family than this server's own are left out.
func (r *Registry) PublishServers(ctx context.Context, servers []netip.Addr) error {
	if err := r.ensure(ctx, r.apiService()); err != nil {
		return err
	}
	self, port := r.config.AdvertiseAddress.Unmap(), int32(r.config.SecurePort)
	servers = slices.DeleteFunc(slices.Clone(servers), func(a netip.Addr) bool { return a.Is4() != self.Is4() })
	slices.SortFunc(servers, netip.Addr.Compare)
	servers = slices.Compact(servers)
	endpoints := &corev1.Endpoints{ //nolint:staticcheck // upstream still publishes it
		ObjectMeta: metav1.ObjectMeta{
			Name: apiService, Namespace: metav1.NamespaceDefault,
			Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"},
		},
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: apiService, Namespace: metav1.NamespaceDefault,
			Labels: map[string]string{discoveryv1.LabelServiceName: apiService},
		},
		AddressType: addressType(self),
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: &port, Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	if len(servers) > 0 {
		endpoints.Subsets = []corev1.EndpointSubset{{ //nolint:staticcheck // as above
			Ports: []corev1.EndpointPort{{Name: "https", Port: port, Protocol: corev1.ProtocolTCP}}, //nolint:staticcheck // as above
		}}
	}
	for _, addr := range servers {
		endpoints.Subsets[0].Addresses = append(endpoints.Subsets[0].Addresses, corev1.EndpointAddress{IP: addr.String()}) //nolint:staticcheck // as above
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{addr.String()}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		})
	}
	if err := r.publish(ctx, endpoints); err != nil {
		return fmt.Errorf("publish endpoints: %w", err)
	}
	if err := r.publish(ctx, slice); err != nil {
		return fmt.Errorf("publish endpoint slice: %w", err)
	}
	return nil
}

func addressType(addr netip.Addr) discoveryv1.AddressType {
	if addr.Is4() {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

// publish makes the endpoints of an object that servers share those of obj.
func (r *Registry) publish(ctx context.Context, obj apis.Object) error {
	q, ok := r.bootRequest(obj)
	if !ok {
		return nil
	}
	for {
		item, err := r.store.Get(q.key())
		if err != nil {
			if _, err = r.Create(ctx, q, obj.DeepCopyObject().(apis.Object), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
				return err
			}
			continue
		}
		next := item.Object.DeepCopyObject().(apis.Object)
		if !setEndpoints(next, obj) { // the family of a slice stays
			if _, _, err = r.Delete(ctx, q, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			continue
		}
		if equality.Semantic.DeepEqual(next, item.Object) {
			return nil
		}
		if _, _, err = r.Update(ctx, q, next, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// setEndpoints gives an object the endpoints of another one; false when it cannot have
// them.
func setEndpoints(into, from apis.Object) bool {
	switch into := into.(type) {
	case *corev1.Endpoints: //nolint:staticcheck // upstream still publishes it
		into.Subsets = from.(*corev1.Endpoints).Subsets //nolint:staticcheck // as above
		mark(into, discoveryv1.LabelSkipMirror, "true")
	case *discoveryv1.EndpointSlice:
		from := from.(*discoveryv1.EndpointSlice)
		if into.AddressType != from.AddressType {
			return false
		}
		into.Endpoints, into.Ports = from.Endpoints, from.Ports
		mark(into, discoveryv1.LabelServiceName, apiService)
	}
	return true
}

func mark(obj apis.Object, label, value string) {
	labels := maps.Clone(obj.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	labels[label] = value
	obj.SetLabels(labels)
}
