package connect

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"proa/internal/store"
)

var (
	podsResource     = schema.GroupResource{Resource: "pods"}
	nodesResource    = schema.GroupResource{Resource: "nodes"}
	servicesResource = schema.GroupResource{Resource: "services"}
	slicesResource   = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
)

// target is where a request goes and how.
type target struct {
	url       *url.URL
	transport http.RoundTripper
}

func find[T any](s *store.Snapshot, gr schema.GroupResource, namespace, name string) (T, error) {
	var none T
	item, err := s.Get(store.Key{Resource: gr, Namespace: namespace, Name: name})
	if errors.Is(err, store.ErrNotFound) {
		return none, apierrors.NewNotFound(gr, name)
	}
	if err != nil {
		return none, apierrors.NewInternalError(err)
	}
	obj, ok := item.Object.(T)
	if !ok {
		return none, apierrors.NewInternalError(fmt.Errorf("%s is a %T", item.Key, item.Object))
	}
	return obj, nil
}

// kubelet finds the node agent of a pod's node.
func (c *Connector) kubelet(s *store.Snapshot, nodeName string) (target, error) {
	node, err := find[*corev1.Node](s, nodesResource, "", nodeName)
	if err != nil {
		return target{}, err
	}
	host := nodeAddress(node)
	if host == "" {
		return target{}, apierrors.NewInternalError(fmt.Errorf("no preferred addresses found; known addresses: %v", node.Status.Addresses))
	}
	port := node.Status.DaemonEndpoints.KubeletEndpoint.Port
	if port == 0 {
		port = c.config.KubeletPort
	}
	u := &url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(int(port)))}
	return target{u, c.kubeletTransport}, nil
}

// nodeAddress prefers the internal IP; names are for nodes that tell none.
func nodeAddress(node *corev1.Node) string {
	for _, want := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalIP, corev1.NodeExternalDNS} {
		for _, a := range node.Status.Addresses {
			if a.Type == want && a.Address != "" {
				return a.Address
			}
		}
	}
	return ""
}

// container checks the container that a request names, or picks the only one.
func container(pod *corev1.Pod, name string) (string, error) {
	if name != "" {
		if !hasContainer(pod, name) {
			return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, pod.Name))
		}
		return name, nil
	}
	switch len(pod.Spec.Containers) {
	case 0:
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s", pod.Name))
	case 1:
		return pod.Spec.Containers[0].Name, nil
	}
	text := fmt.Sprintf("a container name must be specified for pod %s, choose one of: %s", pod.Name, names(pod.Spec.Containers))
	if len(pod.Spec.InitContainers) > 0 {
		text += fmt.Sprintf(" or one of the init containers: %s", names(pod.Spec.InitContainers))
	}
	return "", apierrors.NewBadRequest(text)
}

func names(containers []corev1.Container) []string {
	list := make([]string, len(containers))
	for i := range containers {
		list[i] = containers[i].Name
	}
	return list
}

func hasContainer(pod *corev1.Pod, name string) bool {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return true
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			return true
		}
	}
	return false
}

// podTarget reads [scheme:]name[:port] of a proxy request. Without a port it is
// the first that a container declares.
func (c *Connector) podTarget(s *store.Snapshot, namespace, id string) (target, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return target{}, apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q", id))
	}
	pod, err := find[*corev1.Pod](s, podsResource, namespace, name)
	if err != nil {
		return target{}, err
	}
	if port == "" {
		for i := range pod.Spec.Containers {
			if ports := pod.Spec.Containers[i].Ports; len(ports) > 0 {
				port = strconv.Itoa(int(ports[0].ContainerPort))
				break
			}
		}
	}
	if !number(port) {
		return target{}, apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q", id))
	}
	host := pod.Status.PodIP
	if host == "" && len(pod.Status.PodIPs) > 0 {
		host = pod.Status.PodIPs[0].IP
	}
	if err := c.proxyable(s, host); err != nil {
		return target{}, err
	}
	return target{&url.URL{Scheme: scheme, Host: hostPort(host, port)}, c.proxyTransport}, nil
}

// number says that a port has no name: names are a Service's alone. Empty is the
// scheme's own.
func number(port string) bool {
	_, err := strconv.ParseUint(port, 10, 16)
	return port == "" || err == nil
}

// nodeTarget reads [scheme:]name[:port]; the kubelet's own port, the default, is
// reached as the kubelet's client.
func (c *Connector) nodeTarget(s *store.Snapshot, id string) (target, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return target{}, apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", id))
	}
	k, err := c.kubelet(s, name)
	if err != nil {
		return target{}, err
	}
	if port == "" || port == k.url.Port() {
		return k, nil
	}
	if !number(port) {
		return target{}, apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", id))
	}
	if err := c.proxyable(s, k.url.Hostname()); err != nil {
		return target{}, err
	}
	return target{&url.URL{Scheme: scheme, Host: net.JoinHostPort(k.url.Hostname(), port)}, c.proxyTransport}, nil
}

// serviceTarget reads [scheme:]name[:port] and picks a ready endpoint at random.
func (c *Connector) serviceTarget(s *store.Snapshot, namespace, id string) (target, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return target{}, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", id))
	}
	svc, err := find[*corev1.Service](s, servicesResource, namespace, name)
	if err != nil {
		return target{}, err
	}
	portName, err := servicePort(svc, port)
	if err != nil {
		return target{}, err
	}
	hosts := c.readyEndpoints(s, svc, portName)
	if len(hosts) == 0 {
		return target{}, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", id))
	}
	return target{&url.URL{Scheme: scheme, Host: hosts[rand.IntN(len(hosts))]}, c.proxyTransport}, nil
}

// servicePort is the name of the port that a request means: by name, by number,
// or the only one's.
func servicePort(svc *corev1.Service, port string) (string, error) {
	if number, err := strconv.ParseInt(port, 10, 32); err == nil {
		for _, p := range svc.Spec.Ports {
			if int64(p.Port) == number {
				return p.Name, nil
			}
		}
		return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", number, svc.Name))
	}
	return port, nil
}

func (c *Connector) readyEndpoints(s *store.Snapshot, svc *corev1.Service, portName string) []string {
	var hosts []string
	s.Range(slicesResource, svc.Namespace, store.Key{}, func(item *store.Item) bool {
		slice, ok := item.Object.(*discoveryv1.EndpointSlice)
		if !ok || slice.Labels[discoveryv1.LabelServiceName] != svc.Name {
			return true
		}
		for _, p := range slice.Ports {
			if p.Port == nil || p.Name != nil && *p.Name != portName || p.Name == nil && portName != "" {
				continue
			}
			for _, e := range slice.Endpoints {
				if e.Conditions.Ready != nil && !*e.Conditions.Ready || len(e.Addresses) == 0 {
					continue
				}
				if c.proxyable(s, e.Addresses[0]) == nil {
					hosts = append(hosts, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*p.Port))))
				}
			}
		}
		return true
	})
	return hosts
}

func hostPort(host, port string) string {
	if port != "" {
		return net.JoinHostPort(host, port)
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is6() {
		return "[" + host + "]"
	}
	return host
}

// proxyable refuses addresses that only mean something on this machine: a pod or
// endpoint that claims one would turn the proxy onto the server's own ports. An
// address of a Node object is the node's business.
func (c *Connector) proxyable(s *store.Snapshot, host string) error {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid IP address %q", host))
	}
	if !localOnly(ip) || c.config.AllowLoopback && ip.IsLoopback() && isNodeAddress(s, host) {
		return nil
	}
	return apierrors.NewBadRequest("address not allowed")
}

func localOnly(ip netip.Addr) bool {
	ip = ip.Unmap()
	return ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsLinkLocalMulticast() || ip.IsInterfaceLocalMulticast() ||
		ip.IsMulticast() || ip.IsUnspecified() || ip == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

func isNodeAddress(s *store.Snapshot, host string) bool {
	found := false
	s.Range(nodesResource, "", store.Key{}, func(item *store.Item) bool {
		if node, ok := item.Object.(*corev1.Node); ok {
			for _, a := range node.Status.Addresses {
				found = found || a.Address == host
			}
		}
		return !found
	})
	return found
}
