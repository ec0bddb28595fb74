package network

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"proa/internal/client"
	"proa/internal/network/dns"
)

const (
	dnsNamespace = metav1.NamespaceSystem
	dnsService   = "kube-dns"
	dnsRetryMin  = 50 * time.Millisecond
	dnsRetryMax  = 30 * time.Second
)

// announceDNS makes the DNS service exist, trying until it does. A new cluster
// has no kube-system for a moment: only what lasts is worth a log line.
func (n *Network) announceDNS(ctx context.Context) error {
	for wait := dnsRetryMin; ; wait = min(2*wait, dnsRetryMax) {
		err := n.EnsureService(ctx, n.c.API)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if wait > time.Second {
			slog.WarnContext(ctx, "announce DNS", "err", err)
		}
		select {
		case <-n.c.Clock.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// EnsureService makes kube-system/kube-dns lead to this node's DNS server. A
// Service of that name that has a selector is someone else's DNS and stays as it is.
func (n *Network) EnsureService(ctx context.Context, api client.API) error {
	services := client.Of[*corev1.Service](api)
	have, err := services.Get(ctx, dnsNamespace, dnsService)
	if apierrors.IsNotFound(err) {
		have, err = services.Create(ctx, dnsServiceObject(n.c.DNSAddress))
	}
	if err != nil {
		return err
	}
	if len(have.Spec.Selector) > 0 {
		return nil
	}
	return ensureSlice(ctx, client.Of[*discoveryv1.EndpointSlice](api), dnsSlice(n.c.NodeName, n.Gateway()))
}

func ensureSlice(ctx context.Context, slices client.Resource[*discoveryv1.EndpointSlice], want *discoveryv1.EndpointSlice) error {
	have, err := slices.Get(ctx, want.Namespace, want.Name)
	if apierrors.IsNotFound(err) {
		_, err = slices.Create(ctx, want)
		return err
	}
	if err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) && equality.Semantic.DeepEqual(have.Ports, want.Ports) {
		return nil
	}
	changed := have.DeepCopy()
	changed.Endpoints, changed.Ports = want.Endpoints, want.Ports
	_, err = slices.Update(ctx, changed)
	return err
}

func dnsServiceObject(address netip.Addr) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: dnsNamespace, Name: dnsService, Labels: map[string]string{
			"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"}},
		Spec: corev1.ServiceSpec{ClusterIP: address.String(), Ports: []corev1.ServicePort{
			{Name: "dns", Protocol: corev1.ProtocolUDP, Port: dns.Port},
			{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: dns.Port},
		}},
	}
}

func dnsSlice(node string, gateway netip.Addr) *discoveryv1.EndpointSlice {
	port := func(name string, proto corev1.Protocol) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: ptr.To(name), Protocol: ptr.To(proto), Port: ptr.To[int32](dns.Port)}
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: dnsNamespace, Name: dnsService + "-" + node, Labels: map[string]string{
			discoveryv1.LabelServiceName: dnsService, discoveryv1.LabelManagedBy: "dns.proa.dev"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP)},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses:  []string{gateway.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
			NodeName:   ptr.To(node),
		}},
	}
}
