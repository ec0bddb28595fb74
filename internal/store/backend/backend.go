// Package backend finds who stands behind a Service, for the API server's own
// calls: the service proxy of nodes has no part in them.
package backend

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"proa/internal/egress"
	"proa/internal/store"
)

var (
	services       = schema.GroupResource{Resource: "services"}
	endpointSlices = schema.GroupResource{Group: discoveryv1.GroupName, Resource: "endpointslices"}
)

// Resolver finds them in a store.
type Resolver struct {
	Store *store.Store
	// ByAddress leads calls to the Service's own address, which this host has to be
	// able to reach, instead of to one of its endpoints.
	ByAddress bool
	// Egress opens the connections: Cluster those to Services, ControlPlane others.
	Egress egress.Dialers
}

// Pick returns host:port of a Service's port: that of one ready endpoint, at random.
// The error is NotFound or ServiceUnavailable, in upstream's words.
func (r Resolver) Pick(namespace, name string, port int32) (string, error) {
	sn := r.Store.Snapshot()
	item, err := sn.Get(store.Key{Resource: services, Namespace: namespace, Name: name})
	if errors.Is(err, store.ErrNotFound) {
		return "", apierrors.NewNotFound(schema.GroupResource{Resource: "service"}, name)
	}
	if err != nil {
		return "", err
	}
	svc := item.Object.(*corev1.Service)
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return net.JoinHostPort(svc.Spec.ExternalName, strconv.Itoa(int(port))), nil
	}
	i := slices.IndexFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == port })
	if i < 0 {
		return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", port, name))
	}
	if r.ByAddress {
		if ip := svc.Spec.ClusterIP; ip != "" && ip != corev1.ClusterIPNone {
			return net.JoinHostPort(ip, strconv.Itoa(int(port))), nil
		}
		return "", fmt.Errorf("cannot route to service with ClusterIP %q", svc.Spec.ClusterIP)
	}
	hosts := readyHosts(sn, svc, svc.Spec.Ports[i].Name)
	if len(hosts) == 0 {
		return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", name))
	}
	return hosts[rand.IntN(len(hosts))], nil
}

func readyHosts(sn *store.Snapshot, svc *corev1.Service, portName string) []string {
	var hosts []string
	sn.Range(endpointSlices, svc.Namespace, store.Key{}, func(item *store.Item) bool {
		slice, ok := item.Object.(*discoveryv1.EndpointSlice)
		if !ok || slice.Labels[discoveryv1.LabelServiceName] != svc.Name || slice.AddressType == discoveryv1.AddressTypeFQDN {
			return true
		}
		for _, p := range slice.Ports {
			if p.Port == nil || ptr.Deref(p.Name, "") != portName {
				continue
			}
			for _, e := range slice.Endpoints {
				if len(e.Addresses) > 0 && ptr.Deref(e.Conditions.Ready, true) {
					hosts = append(hosts, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*p.Port))))
				}
			}
		}
		return true
	})
	return hosts
}
