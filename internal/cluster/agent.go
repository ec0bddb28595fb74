package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"proa/internal/apis/builtin"
	"proa/internal/client"
	"proa/internal/cluster/join"
)

// AgentOptions say which cluster this node joins, and how it knows that one.
type AgentOptions struct {
	Layout   Layout
	Settings Settings // Server, NodeName, NodeIP and KubeletPort
	Token    string   // needed until the node has its certificate
	Pins     []string // hashes of the cluster's authority; see join.Discovery
	Tell     func(Progress)
}

// agent is a node whose control plane is elsewhere.
type agent struct {
	AgentOptions
	*reporter
	settings Settings
	identity *join.Identity
	node     *node
	joined   bool // in an earlier start
	notice   string
}

// RunAgent joins this node to a cluster, or takes it up again after an earlier
// start, and keeps it until ctx ends. Containers go on running then. A node that
// has joined before starts without its server, and waits for it.
func RunAgent(ctx context.Context, o AgentOptions) error {
	a := &agent{AgentOptions: o, reporter: newReporter(o.Tell)}
	l := o.Layout
	if err := l.Make(true); err != nil {
		return err
	}
	instance, err := Acquire(l)
	if err != nil {
		return err
	}
	defer instance.Release(l)
	if a.settings, err = o.Settings.settleAgent(l); err != nil {
		return err
	}
	err = a.step("check this host", func() error { return Problems(Preflight(l, a.settings, Options{Node: true})) })
	if err != nil {
		return err
	}
	if err := a.step("join the cluster", func() error { return a.join(ctx) }); err != nil {
		return err
	}
	paceCollector()
	return a.run(ctx)
}

// settleAgent completes what the user chose with what an earlier start stored,
// then with defaults.
func (s Settings) settleAgent(l Layout) (Settings, error) {
	stored, err := readSettings(l)
	if err != nil {
		return s, err
	}
	if stored != nil {
		if stored.Server == "" {
			return s, fmt.Errorf("%s is the data directory of a cluster of its own: start it with proa up, or choose another with --data-dir", l.Data)
		}
		s.PodCIDR, s.ServiceCIDR, s.ClusterDomain, s.NodeCIDR = stored.PodCIDR, stored.ServiceCIDR, stored.ClusterDomain, stored.NodeCIDR
		if s.Server == "" {
			s.Server = stored.Server
		}
		if err := s.settleFrom(*stored); err != nil {
			return s, fmt.Errorf("%w; the node in %s joined with other settings: keep them, or make a new one with --data-dir", err, l.Data)
		}
	}
	if s.Server == "" {
		return s, errors.New("which cluster? Name its API server with --server https://host:port")
	}
	if err := join.CheckServer(s.Server); err != nil {
		return s, err
	}
	if s.KubeletPort == 0 {
		s.KubeletPort = defaultKubeletPort
	}
	if err := s.setNodeName(); err != nil {
		return s, err
	}
	if s.NodeIP == "" {
		if s.NodeIP, err = addressTowards(s.Server); err != nil {
			return s, err
		}
	}
	return s, s.validateNode()
}

// addressTowards is the address that this host has for a server. Nothing is sent.
func addressTowards(server string) (string, error) {
	u, err := url.Parse(server)
	if err != nil {
		return "", err
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	conn, err := net.Dial("udp4", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return hostAddress()
	}
	defer conn.Close()
	if from, ok := conn.LocalAddr().(*net.UDPAddr); ok && from.IP.IsGlobalUnicast() {
		return from.IP.String(), nil
	}
	return hostAddress() // the server is on this host
}

func (l Layout) authorityFile() string { return filepath.Join(l.PKI(), "ca.crt") }

// join gets this node an identity in the cluster unless it has one that is good,
// and what it needs to know about the cluster.
func (a *agent) join(ctx context.Context) error {
	l, catalogue := a.Layout, builtin.Catalogue()
	if err := os.MkdirAll(l.PKI(), 0o700); err != nil {
		return err
	}
	ca, err := os.ReadFile(l.authorityFile())
	switch {
	case err == nil:
		if a.identity, err = join.OpenIdentity(a.settings.Server, a.settings.NodeName, l.PKI(), ca, catalogue); err != nil {
			return err
		}
		a.joined = a.identity.Joined() && a.settings.PodCIDR != ""
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if !a.joined {
		if err := a.introduce(ctx); err != nil {
			return err
		}
	}
	if err := a.settings.save(l); err != nil {
		return err
	}
	return a.writeKubeconfig()
}

// introduce makes the cluster and this node known to each other.
func (a *agent) introduce(ctx context.Context) error {
	if a.Token == "" {
		return errors.New("this node has no certificate of the cluster: it needs a token to join; make one on the server with: proa token create --print-join-command")
	}
	token, err := join.Parse(a.Token)
	if err != nil {
		return err
	}
	if err := join.CheckPins(a.Pins); err != nil {
		return err
	}
	s := &a.settings
	ca, err := join.Discovery{Server: s.Server, Token: token, Pins: a.Pins}.CA(ctx)
	if err != nil {
		return err
	}
	if len(a.Pins) == 0 {
		a.notice = "the cluster's authority is trusted because the token vouches for it; --token-ca-cert-hash would pin it"
		slog.WarnContext(ctx, a.notice)
	}
	if err := renameio.WriteFile(a.Layout.authorityFile(), ca, 0o600); err != nil {
		return err
	}
	catalogue := builtin.Catalogue()
	if a.identity, err = join.OpenIdentity(s.Server, s.NodeName, a.Layout.PKI(), ca, catalogue); err != nil {
		return err
	}
	if err := a.identity.Join(ctx, token, catalogue); err != nil {
		return err
	}
	known, err := join.ReadNetworking(ctx, a.identity.API())
	if err != nil {
		return err
	}
	s.PodCIDR, s.ServiceCIDR, s.ClusterDomain = known.PodSubnet, known.ServiceSubnet, known.DNSDomain
	for _, cidr := range []string{s.PodCIDR, s.ServiceCIDR} {
		if p, err := netip.ParsePrefix(cidr); err != nil || !p.Addr().Is4() {
			return fmt.Errorf("the cluster's range %q is no IPv4 range", cidr)
		}
	}
	return nil
}

// writeKubeconfig leads tools on this host to the cluster, as this node.
func (a *agent) writeKubeconfig() error {
	config, name := clientcmdapi.NewConfig(), a.Layout.contextName()
	file := join.ClientFile(a.Layout.PKI())
	config.Clusters[name] = &clientcmdapi.Cluster{Server: a.settings.Server, CertificateAuthorityData: a.identity.CA}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificate: file, ClientKey: file}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	data, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	return renameio.WriteFile(a.Layout.Kubeconfig(), data, 0o600)
}

// run starts the node and keeps it.
func (a *agent) run(ctx context.Context) (err error) {
	if a.node, err = newNode(ctx, a.Layout, a.settings); err != nil {
		return err
	}
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error { return a.node.runtime.Run(running) })
	if err := a.serve(running, g); err != nil {
		return errors.Join(err, a.node.abandon(ctx, g))
	}
	return ended(ctx, g.Wait())
}

// serve starts what needs the API, and waits until the node is Ready.
func (a *agent) serve(ctx context.Context, g *errgroup.Group) error {
	serving, err := a.identity.Serving(a.Layout.PKI(), net.ParseIP(a.settings.NodeIP))
	if err != nil {
		return err
	}
	api := a.identity.API()
	cache := client.NewCache(api)
	nodeCIDR, _ := netip.ParsePrefix(a.settings.NodeCIDR) // empty before the first registration
	err = a.node.join(access{
		api: api, cache: cache, nodeCIDR: nodeCIDR, clientCAs: a.identity.Roots,
		certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if pair := serving.Current(); pair != nil {
				return pair, nil
			}
			return nil, errors.New("no serving certificate available for the kubelet")
		},
	})
	if err != nil {
		return err
	}
	g.Go(func() error { return a.identity.Run(ctx) })
	g.Go(func() error { return serving.Run(ctx, api) })
	g.Go(func() error { return cache.Run(ctx) })
	g.Go(func() error { return a.node.Run(ctx) })
	if err := a.step("container runtime", func() error { return a.node.runtime.Ready(ctx) }); err != nil {
		return err
	}
	return a.settle(ctx)
}

// settle waits until the node is Ready and keeps what it has been given. A node
// that has joined before goes on without being Ready: its pods run, and its
// server may be away.
func (a *agent) settle(ctx context.Context) error {
	err := a.step("node Ready", func() error { return a.node.waitReady(ctx) })
	if err != nil && (!a.joined || ctx.Err() != nil) {
		return err
	}
	if err != nil {
		a.notice = err.Error()
		slog.WarnContext(ctx, "the node goes on", "err", err)
	} else if err := a.keepRange(ctx); err != nil {
		return err
	}
	a.ready(Summary{Server: a.settings.Server, Node: a.settings.NodeName, Kubeconfig: a.Layout.Kubeconfig(), Notice: a.notice, Agent: true})
	slog.InfoContext(ctx, "ready", "server", a.settings.Server, "node", a.settings.NodeName)
	return nil
}

// keepRange notes which pod addresses the node has, so that it registers with
// them again if its Node is deleted: its pods keep theirs.
func (a *agent) keepRange(ctx context.Context) error {
	node, err := client.Of[*corev1.Node](a.node.api).Get(ctx, "", a.settings.NodeName)
	if err != nil {
		return fmt.Errorf("read node %s: %w", a.settings.NodeName, err)
	}
	if node.Spec.PodCIDR == a.settings.NodeCIDR {
		return nil
	}
	a.settings.NodeCIDR = node.Spec.PodCIDR
	return a.settings.save(a.Layout)
}
