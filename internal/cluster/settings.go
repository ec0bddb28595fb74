package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/util/validation"

	"proa/internal/apis/builtin"
	"proa/internal/apis/feature"
	"proa/internal/controlplane"
)

// Settings are what a user may choose about a cluster. They are chosen once: the
// first start stores them in the data directory, later starts read them back and
// refuse to change what cannot change under running pods.
type Settings struct {
	// Server is the API server that an agent has joined; empty for a server.
	Server string `json:"server,omitempty"`

	Port             int      `json:"port,omitempty"`             // API server
	BindAddress      string   `json:"bindAddress,omitempty"`      // of the API server; empty: every address
	AdvertiseAddress string   `json:"advertiseAddress,omitempty"` // of the API server; empty: the node's
	TLSNames         []string `json:"tlsNames,omitempty"`         // names and addresses that the API server has besides its own

	KubeletPort   int    `json:"kubeletPort"`   // node agent, on every address
	NodeName      string `json:"nodeName"`      // defaults to the host name
	NodeIP        string `json:"nodeIP"`        // defaults to the address of the default route
	PodCIDR       string `json:"podCIDR"`       // of the whole cluster
	ServiceCIDR   string `json:"serviceCIDR"`   // ClusterIPs
	ClusterDomain string `json:"clusterDomain"` // defaults to cluster.local

	// NodeCIDR is the range of an agent's pods, once the cluster has given it one.
	NodeCIDR string `json:"nodeCIDR,omitempty"`

	// What the API serves, as upstream's flags have it; see builtin.Options.
	FeatureGates  string `json:"featureGates,omitempty"`
	RuntimeConfig string `json:"runtimeConfig,omitempty"`

	// APIServer has upstream's flags that were given, by name; see controlplane.Flags.
	APIServer map[string]string `json:"apiServer,omitempty"`

	// KubeletConfig is the path of a KubeletConfiguration for this node; empty: none.
	KubeletConfig string `json:"kubeletConfig,omitempty"`
	// SchedulerConfig is the path of a KubeSchedulerConfiguration; empty: upstream's defaults.
	SchedulerConfig string `json:"schedulerConfig,omitempty"`
	// Simulation of nodes; nil: none.
	Simulation *Simulation `json:"simulation,omitempty"`

	Datastore Datastore `json:"datastore,omitzero"`
	EventTTL  string    `json:"eventTTL,omitempty"` // how long Events are kept, as Go writes durations; 0: for ever
}

const (
	defaultPort        = 6443
	defaultKubeletPort = 10250
	defaultDomain      = "cluster.local"
)

// Settle completes what the user chose with what an earlier start of the same
// data directory stored, then with defaults. Address ranges that another
// interface or cluster of this host already uses are passed over.
func (s Settings) Settle(l Layout) (Settings, error) {
	stored, err := readSettings(l)
	if err != nil {
		return s, err
	}
	if stored != nil {
		if stored.Server != "" {
			return s, fmt.Errorf("%s is the data directory of an agent of %s: start it with proa agent, or choose another with --data-dir", l.Data, stored.Server)
		}
		if err := s.settleFrom(*stored); err != nil {
			return s, fmt.Errorf("%w; the cluster in %s was made with other settings: keep them, or make a new one with --data-dir", err, l.Data)
		}
	}
	if err := s.setDefaults(); err != nil {
		return s, err
	}
	return s, s.validate()
}

func (s *Settings) settleFrom(stored Settings) error {
	for _, f := range []struct {
		flag       string
		have, want *string
		fixed      bool
	}{
		{"--node-name", &stored.NodeName, &s.NodeName, true},
		{"--pod-cidr", &stored.PodCIDR, &s.PodCIDR, true},
		{"--service-cidr", &stored.ServiceCIDR, &s.ServiceCIDR, true},
		{"--cluster-domain", &stored.ClusterDomain, &s.ClusterDomain, true},
		{"--node-ip", &stored.NodeIP, &s.NodeIP, false},
		{"--bind-address", &stored.BindAddress, &s.BindAddress, false},
		{"--advertise-address", &stored.AdvertiseAddress, &s.AdvertiseAddress, false},
		{"--feature-gates", &stored.FeatureGates, &s.FeatureGates, false},
		{"--runtime-config", &stored.RuntimeConfig, &s.RuntimeConfig, false},
		{"--event-ttl", &stored.EventTTL, &s.EventTTL, false},
		{"--kubelet-config", &stored.KubeletConfig, &s.KubeletConfig, false},
		{"--scheduler-config", &stored.SchedulerConfig, &s.SchedulerConfig, false},
	} {
		switch {
		case *f.want == "":
			*f.want = *f.have
		case *f.want != *f.have && f.fixed:
			return fmt.Errorf("%s is %s and cannot become %s", f.flag, *f.have, *f.want)
		}
	}
	if s.Port == 0 {
		s.Port = stored.Port
	}
	if s.KubeletPort == 0 {
		s.KubeletPort = stored.KubeletPort
	}
	if s.TLSNames == nil {
		s.TLSNames = stored.TLSNames
	}
	s.Simulation = s.Simulation.settle(stored.Simulation)
	s.APIServer = settleFlags(stored.APIServer, s.APIServer)
	return s.Datastore.settle(stored.Datastore)
}

// settleFlags keeps what an earlier start was given and this one was not. An
// empty value takes a flag back.
func settleFlags(stored, given map[string]string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, stored)
	maps.Copy(all, given)
	maps.DeleteFunc(all, func(_, value string) bool { return value == "" })
	return all
}

func (s *Settings) setDefaults() (err error) {
	if s.Port == 0 {
		s.Port = defaultPort
	}
	if s.KubeletPort == 0 {
		s.KubeletPort = defaultKubeletPort
	}
	if s.ClusterDomain == "" {
		s.ClusterDomain = defaultDomain
	}
	if err := s.setNodeName(); err != nil {
		return err
	}
	if s.NodeIP == "" {
		if s.NodeIP, err = hostAddress(); err != nil {
			return err
		}
	}
	if s.PodCIDR == "" {
		if s.PodCIDR, err = freeRange("10.%d.0.0/16", 244, 255); err != nil {
			return fmt.Errorf("pod addresses: %w; name a free range with --pod-cidr", err)
		}
	}
	if s.ServiceCIDR == "" {
		if s.ServiceCIDR, err = freeRange("10.%d.0.0/16", 96, 127); err != nil {
			return fmt.Errorf("service addresses: %w; name a free range with --service-cidr", err)
		}
	}
	return nil
}

func (s *Settings) setNodeName() error {
	if s.NodeName != "" {
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	s.NodeName = strings.ToLower(strings.TrimSuffix(host, "."))
	return nil
}

func (s Settings) validateNode() error {
	if msgs := validation.IsDNS1123Subdomain(s.NodeName); len(msgs) > 0 {
		return fmt.Errorf("node name %q: %s; choose one with --node-name", s.NodeName, msgs[0])
	}
	if err := checkAddress("--node-ip", s.NodeIP); err != nil {
		return err
	}
	return checkPort("--kubelet-port", s.KubeletPort)
}

func checkAddress(flag, value string) error {
	addr, err := netip.ParseAddr(value)
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	if !addr.Is4() || addr.IsUnspecified() || addr.IsLoopback() {
		return fmt.Errorf("%s %s: want an IPv4 address of this host that pods and other nodes reach", flag, value)
	}
	return nil
}

func checkPort(flag string, port int) error {
	if port < 1 || port > 65535 {
		return fmt.Errorf("%s %d: not a port", flag, port)
	}
	return nil
}

// serving says which of the API the cluster serves.
func (s Settings) serving() (feature.Gates, feature.Runtime, error) {
	return builtin.Options{FeatureGates: s.FeatureGates, RuntimeConfig: s.RuntimeConfig}.Parse()
}

// eventTTL is how long Events are kept as controlplane.Config has it.
func (s Settings) eventTTL() (time.Duration, error) {
	if s.EventTTL == "" {
		return 0, nil
	}
	ttl, err := time.ParseDuration(s.EventTTL)
	switch {
	case err != nil:
		return 0, fmt.Errorf("--event-ttl: %w", err)
	case ttl < 0:
		return 0, fmt.Errorf("--event-ttl %s: want a duration, such as 1h", s.EventTTL)
	case ttl == 0:
		return -1, nil
	}
	return ttl, nil
}

func (s Settings) validate() error {
	if err := s.validateNode(); err != nil {
		return err
	}
	if _, _, err := s.serving(); err != nil {
		return err
	}
	if err := s.Simulation.validate(); err != nil {
		return err
	}
	if err := s.applyFlags(&controlplane.Config{}); err != nil {
		return err
	}
	if _, err := s.eventTTL(); err != nil {
		return err
	}
	if err := s.Datastore.validate(); err != nil {
		return err
	}
	if s.BindAddress != "" {
		if _, err := netip.ParseAddr(s.BindAddress); err != nil {
			return fmt.Errorf("--bind-address: %w", err)
		}
	}
	if s.AdvertiseAddress != "" {
		if err := checkAddress("--advertise-address", s.AdvertiseAddress); err != nil {
			return err
		}
	}
	for _, name := range s.TLSNames {
		if _, err := netip.ParseAddr(name); err != nil && len(validation.IsDNS1123Subdomain(name)) > 0 {
			return fmt.Errorf("--tls-san %q: neither an address nor a DNS name", name)
		}
	}
	if msgs := validation.IsDNS1123Subdomain(s.ClusterDomain); len(msgs) > 0 {
		return fmt.Errorf("--cluster-domain %q: %s", s.ClusterDomain, msgs[0])
	}
	for _, r := range []struct{ flag, value string }{{"--pod-cidr", s.PodCIDR}, {"--service-cidr", s.ServiceCIDR}} {
		flag, value := r.flag, r.value
		p, err := netip.ParsePrefix(value)
		if err != nil {
			return fmt.Errorf("%s: %w", flag, err)
		}
		if p.Bits() > 24 || !p.Addr().Is4() {
			return fmt.Errorf("%s %s: want an IPv4 range of at least 256 addresses, such as 10.244.0.0/16", flag, value)
		}
	}
	if err := checkPort("--port", s.Port); err != nil {
		return err
	}
	pods, services := netip.MustParsePrefix(s.PodCIDR), netip.MustParsePrefix(s.ServiceCIDR)
	if pods.Overlaps(services) {
		return fmt.Errorf("--pod-cidr %s and --service-cidr %s overlap", s.PodCIDR, s.ServiceCIDR)
	}
	return nil
}

// advertised is the API server's address for nodes and pods.
func (s Settings) advertised() string {
	if s.AdvertiseAddress != "" {
		return s.AdvertiseAddress
	}
	return s.NodeIP
}

// joinServer is the API server's address for nodes that join.
func (s Settings) joinServer() string {
	return "https://" + net.JoinHostPort(s.advertised(), strconv.Itoa(s.Port))
}

// localServer is the API server's address for clients on this host.
func (s Settings) localServer() string {
	host := "127.0.0.1"
	if addr, err := netip.ParseAddr(s.BindAddress); err == nil && !addr.IsUnspecified() {
		host = s.BindAddress
	}
	return "https://" + net.JoinHostPort(host, strconv.Itoa(s.Port))
}

// save writes the settings where the next start and other clusters find them.
func (s Settings) save(l Layout) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(l.SettingsFile(), append(data, '\n'), 0o600); err != nil {
		return err
	}
	return l.announce()
}

// announce tells other clusters of this host where the settings are. When the
// data directory is gone, its ranges are free.
func (l Layout) announce() error {
	link := l.Announcement()
	if target, err := os.Readlink(link); err == nil && target == l.SettingsFile() {
		return nil
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(l.SettingsFile(), link)
}

// ReadSettings returns the settings of the cluster in l, nil when there is none.
func ReadSettings(l Layout) (*Settings, error) { return readSettings(l) }

func readSettings(l Layout) (*Settings, error) {
	data, err := os.ReadFile(l.SettingsFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var s Settings
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", l.SettingsFile(), err)
	}
	return &s, nil
}

// hostAddress is the source address of the default route, else the first
// global address of an interface that is up.
func hostAddress() (string, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return "", fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() {
			continue
		}
		if r.Src != nil {
			return r.Src.String(), nil
		}
		if addr, ok := firstAddress(r.LinkIndex); ok {
			return addr, nil
		}
	}
	links, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("list interfaces: %w", err)
	}
	for _, link := range links {
		if link.Flags&net.FlagUp != 0 && link.Flags&net.FlagLoopback == 0 && !strings.HasPrefix(link.Name, "proa") {
			if addr, ok := firstAddress(link.Index); ok {
				return addr, nil
			}
		}
	}
	return "", errors.New("this host has no IPv4 address besides loopback; name one with --node-ip")
}

func firstAddress(linkIndex int) (string, bool) {
	link, err := net.InterfaceByIndex(linkIndex)
	if err != nil {
		return "", false
	}
	addrs, _ := link.Addrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String(), true
		}
	}
	return "", false
}

// freeRange returns the first range of pattern, from first to last, that meets
// no route of this host and no other cluster's ranges.
func freeRange(pattern string, first, last int) (string, error) {
	used, err := usedRanges()
	if err != nil {
		return "", err
	}
	for n := first; n <= last; n++ {
		candidate := netip.MustParsePrefix(fmt.Sprintf(pattern, n))
		free := true
		for _, u := range used {
			free = free && !candidate.Overlaps(u)
		}
		if free {
			return candidate.String(), nil
		}
	}
	return "", fmt.Errorf("no free range among "+pattern+" to "+pattern, first, last)
}

func usedRanges() ([]netip.Prefix, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var used []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil || r.Dst.IP.IsUnspecified() {
			continue
		}
		if p, err := netip.ParsePrefix(r.Dst.String()); err == nil {
			used = append(used, p)
		}
	}
	others, err := filepath.Glob(filepath.Join(runRoot, "*", announcement))
	if err != nil {
		return nil, err
	}
	for _, file := range others {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // that cluster was deleted
		}
		var s Settings
		if json.Unmarshal(data, &s) != nil {
			continue
		}
		for _, cidr := range []string{s.PodCIDR, s.ServiceCIDR} {
			if p, err := netip.ParsePrefix(cidr); err == nil {
				used = append(used, p)
			}
		}
	}
	return used, nil
}
