package csr

import (
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Serving says for which names and addresses no node may get a serving
// certificate without a person's approval.
//
// A serving certificate of the cluster's authority is trusted by every client
// for every name in it, and a node chooses its own name and addresses. So a
// request is approved only if the node asks for itself, for nothing but its name
// and the addresses in its Node, and if none of them could be taken for the API
// server, a Service, a pod, another node, or the client's own host.
type Serving struct {
	Names  []string       // of the API server
	IPs    []netip.Addr   // of the API server
	Ranges []netip.Prefix // of Services and pods
}

const (
	nodePrefix = "system:node:"
	byAddress  = "csr/address"
)

// watchNodes looks at a node's pending requests again when its addresses change:
// a request may come before the node has told them.
func (c *Controller) watchNodes() {
	c.nodes.AddIndex(byAddress, func(n *corev1.Node) []string {
		var out []string
		for _, a := range n.Status.Addresses {
			out = append(out, a.Address)
		}
		return out
	})
	c.nodes.OnChange(func(old, n *corev1.Node) {
		if n == nil || old != nil && equality.Semantic.DeepEqual(old.Status.Addresses, n.Status.Addresses) {
			return
		}
		for _, csr := range c.requests.Select("", labels.Everything()) {
			if csr.Spec.Username == nodePrefix+n.Name && csr.Spec.SignerName == certificatesv1.KubeletServingSignerName {
				c.loop.EnqueueObject(csr)
			}
		}
	})
}

// refusal is why a request for a serving certificate is not approved, "" when it is.
func (c *Controller) refusal(csr *certificatesv1.CertificateSigningRequest, request *x509.CertificateRequest) string {
	if err := validateKubeletServing(request, csr.Spec.Usages); err != nil {
		return err.Error()
	}
	if csr.Spec.Username != request.Subject.CommonName || !slices.Contains(csr.Spec.Groups, user.NodesGroup) {
		return fmt.Sprintf("%s asks for a certificate of %s", csr.Spec.Username, request.Subject.CommonName)
	}
	name := strings.TrimPrefix(csr.Spec.Username, nodePrefix)
	node, ok := c.nodes.Cached("", name)
	if !ok {
		return fmt.Sprintf("node %s has not registered", name)
	}
	for _, dns := range request.DNSNames {
		if dns != name {
			return fmt.Sprintf("%s is not the name of node %s", dns, name)
		}
		if slices.ContainsFunc(c.serving.Names, func(reserved string) bool { return strings.EqualFold(reserved, dns) }) {
			return dns + " is a name of the API server"
		}
	}
	for _, ip := range request.IPAddresses {
		if why := c.refuseIP(node, ip); why != "" {
			return why
		}
	}
	return ""
}

func (c *Controller) refuseIP(node *corev1.Node, ip net.IP) string {
	addr, ok := netip.AddrFromSlice(ip)
	if addr = addr.Unmap(); !ok || addr.IsLoopback() || addr.IsUnspecified() || addr.IsMulticast() {
		return ip.String() + " is no address of one host"
	}
	if slices.Contains(c.serving.IPs, addr) {
		return addr.String() + " is an address of the API server"
	}
	for _, r := range c.serving.Ranges {
		if r.Contains(addr) {
			return fmt.Sprintf("%s is in the range %s of Services or pods", addr, r)
		}
	}
	text, its := addr.String(), false
	for _, a := range node.Status.Addresses {
		its = its || a.Address == text && (a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP)
	}
	if !its {
		return fmt.Sprintf("node %s does not report the address %s", node.Name, text)
	}
	for _, other := range c.nodes.ByIndex(byAddress, text) {
		if other.Name != node.Name {
			return fmt.Sprintf("%s is an address of node %s, too", text, other.Name)
		}
	}
	return ""
}
