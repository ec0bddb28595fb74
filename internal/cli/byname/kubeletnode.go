package byname

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"proa/internal/kubelet/config"
)

// external is the one cloud provider there is: someone else's.
const external = "external"

// validate refuses what flags say of the node itself.
func (k *nodeAgent) validate() error {
	if k.kubeconfig == "" {
		return errors.New("--kubeconfig is required: this kubelet runs beside an API server only")
	}
	if k.cloud != "" && k.cloud != external {
		return fmt.Errorf("unknown cloud provider %q: --cloud-provider is empty or %q, in-tree providers were removed", k.cloud, external)
	}
	if err := validateLabels(k.labels); err != nil {
		return fmt.Errorf("failed to validate kubelet flags: %w", err)
	}
	return nil
}

func validateLabels(labels map[string]string) error {
	var unknown, invalid []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if reserved(key) && !kubeletapis.IsKubeletLabel(key) {
			unknown = append(unknown, key)
		}
		if errs := validation.IsQualifiedName(key); len(errs) > 0 {
			invalid = append(invalid, fmt.Sprintf("'%s' - %s", key, strings.Join(errs, ", ")))
		}
		if errs := validation.IsValidLabelValue(labels[key]); len(errs) > 0 {
			invalid = append(invalid, fmt.Sprintf("'%s' - %s", labels[key], strings.Join(errs, ", ")))
		}
	}
	if len(unknown) > 0 {
		return fmt.Errorf("unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: %v\n--node-labels in the 'kubernetes.io' namespace must begin with an allowed prefix (%s) or be in the specifically allowed set (%s)",
			unknown, strings.Join(kubeletapis.KubeletLabelNamespaces(), ", "), strings.Join(kubeletapis.KubeletLabels(), ", "))
	}
	if len(invalid) > 0 {
		return fmt.Errorf("invalid node labels: %s", strings.Join(invalid, "; "))
	}
	return nil
}

// reserved reports whether a label's prefix is the project's own.
func reserved(label string) bool {
	prefix, _, found := strings.Cut(label, "/")
	return found && slices.ContainsFunc([]string{"kubernetes.io", "k8s.io"}, func(own string) bool {
		return prefix == own || strings.HasSuffix(prefix, "."+own)
	})
}

// place is where the node is.
type place struct {
	name string
	ips  []string
	told []string // addresses that a flag named
}

func (k *nodeAgent) node() (place, error) {
	p := place{name: k.hostname}
	if p.name == "" {
		host, err := os.Hostname()
		if err != nil {
			return p, fmt.Errorf("couldn't determine hostname: %w", err)
		}
		p.name = host
	}
	if p.name = strings.ToLower(strings.TrimSpace(p.name)); p.name == "" {
		return p, errors.New("empty hostname is invalid")
	}
	wanted := net.IPv4zero
	if k.nodeIP != "" {
		var err error
		if p.told, wanted, err = namedAddresses(k.nodeIP); err != nil {
			return p, err
		}
	}
	if p.ips = p.told; len(p.ips) > 0 {
		return p, nil
	}
	ip, err := addressOf(p.name, wanted)
	if err != nil {
		return p, fmt.Errorf("can't get ip address of node %s. error: %w", p.name, err)
	}
	p.ips = []string{ip.String()}
	return p, nil
}

// namedAddresses reads --node-ip. An unspecified address only chooses a family.
func namedAddresses(flag string) (named []string, family net.IP, err error) {
	var ips []net.IP
	for text := range strings.SplitSeq(flag, ",") {
		ip := net.ParseIP(strings.TrimSpace(text))
		switch {
		case ip == nil:
			return nil, nil, fmt.Errorf("bad --node-ip %q: could not parse %q", flag, text)
		case ip.IsLoopback(), ip.IsMulticast(), ip.IsLinkLocalUnicast():
			return nil, nil, fmt.Errorf("failed to validate nodeIP: %s cannot be the address of a node", ip)
		}
		ips = append(ips, ip)
	}
	if len(ips) == 1 && ips[0].IsUnspecified() {
		return nil, ips[0], nil
	}
	if len(ips) > 2 || len(ips) == 2 && (ips[0].To4() != nil) == (ips[1].To4() != nil) {
		return nil, nil, fmt.Errorf("bad --node-ip %q: must contain either a single IP or a dual-stack pair of IPs", flag)
	}
	for _, ip := range ips {
		if ip.IsUnspecified() {
			return nil, nil, fmt.Errorf("bad --node-ip %q: dual-stack pair of IPs cannot include '0.0.0.0' or '::'", flag)
		}
		named = append(named, ip.String())
	}
	return named, nil, nil
}

// addressOf is the address that a node's name stands for, or that of the default
// route.
func addressOf(name string, family net.IP) (net.IP, error) {
	if ip := net.ParseIP(name); ip != nil {
		return ip, nil
	}
	found, _ := net.LookupIP(name) // a name that nobody knows has no address
	for _, ip := range found {
		if ip.IsGlobalUnicast() && (ip.To4() != nil) == (family.To4() != nil) {
			return ip, nil
		}
	}
	return utilnet.ResolveBindAddress(family)
}

// certificate is what the agent's server shows: the named files, or a pair of its
// own making.
func (k *nodeAgent) certificate(c *config.Configuration, node place) (*pair, error) {
	p := &pair{certFile: c.TLSCertFile, keyFile: c.TLSPrivateKeyFile}
	if p.certFile == "" {
		p.certFile, p.keyFile = filepath.Join(k.certDir, "kubelet.crt"), filepath.Join(k.certDir, "kubelet.key")
		var ips []net.IP
		for _, ip := range node.ips {
			ips = append(ips, net.ParseIP(ip))
		}
		if err := selfSigned(p.certFile, p.keyFile, []string{node.name}, ips); err != nil {
			return nil, err
		}
	}
	_, err := p.get(nil)
	return p, err
}

// pair is a certificate whose files may be replaced.
type pair struct {
	certFile, keyFile string

	mu     sync.Mutex
	loaded *tls.Certificate // guarded by mu
	at     time.Time        // guarded by mu: the certificate file's time when it was read
}

// get reads the files again when they have changed. New files that do not fit leave
// the old certificate in force.
func (p *pair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	info, err := os.Stat(p.certFile)
	if err == nil && p.loaded != nil && info.ModTime().Equal(p.at) {
		return p.loaded, nil
	}
	read, readErr := tls.LoadX509KeyPair(p.certFile, p.keyFile)
	if err = errors.Join(err, readErr); err != nil {
		if p.loaded != nil {
			return p.loaded, nil
		}
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	p.loaded, p.at = &read, info.ModTime()
	return p.loaded, nil
}
