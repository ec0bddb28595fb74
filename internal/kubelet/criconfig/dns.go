package criconfig

import (
	"bufio"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Limits of a resolver configuration that the API and resolvers share.
const (
	maxNameservers   = 3
	maxSearches      = 32
	maxSearchesBytes = 2048
)

// ResolvConf is a resolver configuration file.
type ResolvConf struct{ Servers, Searches, Options []string }

// ParseResolvConf reads resolv.conf(5). Unknown lines are skipped; the last
// search line wins.
func ParseResolvConf(r io.Reader) (ResolvConf, error) {
	var c ResolvConf
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		switch f[0] {
		case "nameserver":
			if len(f) > 1 {
				c.Servers = append(c.Servers, f[1])
			}
		case "search":
			c.Searches = nil
			for _, s := range f[1:] {
				if s != "." {
					s = strings.TrimSuffix(s, ".")
				}
				c.Searches = append(c.Searches, s)
			}
		case "options":
			c.Options = append([]string{}, f[1:]...)
		}
	}
	return c, lines.Err()
}

// DNS is the resolver configuration of a pod after its dnsPolicy and dnsConfig.
func DNS(n *Node, pod *corev1.Pod) *runtimeapi.DNSConfig {
	host := &runtimeapi.DNSConfig{
		Servers:  slices.Clone(n.ResolvConf.Servers),
		Searches: slices.Clone(n.ResolvConf.Searches),
		Options:  slices.Clone(n.ResolvConf.Options),
	}
	cfg := host
	switch policy := pod.Spec.DNSPolicy; {
	case policy == corev1.DNSNone:
		cfg = &runtimeapi.DNSConfig{}
	case policy == corev1.DNSDefault,
		policy == corev1.DNSClusterFirst && pod.Spec.HostNetwork,
		len(n.ClusterDNS) == 0:
		if len(host.Servers) == 0 {
			host.Servers = []string{"127.0.0.1"}
		}
	default:
		suffix := "svc." + n.ClusterDomain
		cfg = &runtimeapi.DNSConfig{
			Servers:  slices.Clone(n.ClusterDNS),
			Searches: host.Searches,
			Options:  []string{"ndots:5"},
		}
		if n.ClusterDomain != "" {
			cfg.Searches = append([]string{pod.Namespace + "." + suffix, suffix, n.ClusterDomain}, host.Searches...)
		}
	}
	if extra := pod.Spec.DNSConfig; extra != nil {
		cfg.Servers = append(cfg.Servers, extra.Nameservers...)
		cfg.Searches = append(cfg.Searches, extra.Searches...)
		cfg.Options = mergeOptions(cfg.Options, extra.Options)
	}
	cfg.Servers, cfg.Searches = unique(cfg.Servers), unique(cfg.Searches)
	limit(cfg)
	return cfg
}

// mergeOptions lets a pod's option replace one of the same name.
func mergeOptions(base []string, extra []corev1.PodDNSConfigOption) []string {
	name := func(o string) string { n, _, _ := strings.Cut(o, ":"); return n }
	for _, e := range extra {
		o := e.Name
		if e.Value != nil && *e.Value != "" {
			o += ":" + *e.Value
		}
		if i := slices.IndexFunc(base, func(b string) bool { return name(b) == e.Name }); i >= 0 {
			base[i] = o
		} else {
			base = append(base, o)
		}
	}
	return base
}

func unique(in []string) []string {
	var out []string
	for _, s := range in {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

func limit(cfg *runtimeapi.DNSConfig) {
	cfg.Servers = cfg.Servers[:min(len(cfg.Servers), maxNameservers)]
	cfg.Searches = cfg.Searches[:min(len(cfg.Searches), maxSearches)]
	for len(strings.Join(cfg.Searches, " ")) > maxSearchesBytes {
		cfg.Searches = cfg.Searches[:len(cfg.Searches)-1]
	}
}
