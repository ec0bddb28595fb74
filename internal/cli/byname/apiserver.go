package byname

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"proa/internal/apis/builtin"
	"proa/internal/apis/feature"
	"proa/internal/apiserver/connect"
	"proa/internal/controlplane"
	"proa/internal/store/etcd"
)

// APIServer is kube-apiserver: it serves the objects of an etcd. Nothing but the
// API runs in it: no controller, no scheduler, no node.
func APIServer(args []string) int {
	return execute(command("kube-apiserver", "The Kubernetes API on an etcd", &apiServer{}), args[1:])
}

type apiServer struct {
	serving
	controlplane.Flags // those that every API server of this program takes

	advertiseAddress net.IP
	externalHostname string

	etcd         etcd.Config
	backend      string
	mediaType    string
	eventTTL     time.Duration
	featureGates string
	runtime      string

	serviceCIDRs string
	nodePorts    utilnet.PortRange

	kubelet struct{ cert, key, ca string }
	proxy   struct{ cert, key string }

	allowPrivileged bool
}

func (s *apiServer) add(fs *pflag.FlagSet) {
	s.serving.add(fs, "apiserver", 6443)
	s.Flags.Add(fs)
	fs.IPVar(&s.advertiseAddress, "advertise-address", nil, "address that the kubernetes Service leads to (default: --bind-address, or that of the default route)")
	fs.StringVar(&s.externalHostname, "external-hostname", "", "name that the API tells clients as its own")
	fs.BoolVar(&s.allowPrivileged, "allow-privileged", false, "allow privileged containers")
	s.addStorage(fs)
	fs.StringVar(&s.serviceCIDRs, "service-cluster-ip-range", "10.0.0.0/24", "ranges that Services get their addresses from, at most one per IP family")
	s.nodePorts = utilnet.PortRange{Base: 30000, Size: 2768}
	fs.Var(&s.nodePorts, "service-node-port-range", "ports of Services that are visible on nodes")
	fs.StringVar(&s.kubelet.cert, "kubelet-client-certificate", "", "client certificate for kubelets")
	fs.StringVar(&s.kubelet.key, "kubelet-client-key", "", "key of the client certificate for kubelets")
	fs.StringVar(&s.kubelet.ca, "kubelet-certificate-authority", "", "certificate authorities of kubelets")
	fs.StringVar(&s.proxy.cert, "proxy-client-cert-file", "", "client certificate for extension servers")
	fs.StringVar(&s.proxy.key, "proxy-client-key-file", "", "key of the client certificate for extension servers")
	fs.StringVar(&s.featureGates, "feature-gates", "", feature.Usage())
	fs.StringVar(&s.runtime, "runtime-config", "", "APIs to serve: api/all=true, group/version=false, group/version/resource=true")
}

func (s *apiServer) addStorage(fs *pflag.FlagSet) {
	fs.StringSliceVar(&s.etcd.Endpoints, "etcd-servers", nil, "URLs of etcd")
	fs.StringVar(&s.etcd.Prefix, "etcd-prefix", "/registry", "what all keys in etcd begin with")
	fs.StringVar(&s.etcd.CAFile, "etcd-cafile", "", "certificate authorities of etcd")
	fs.StringVar(&s.etcd.CertFile, "etcd-certfile", "", "client certificate for etcd")
	fs.StringVar(&s.etcd.KeyFile, "etcd-keyfile", "", "key of the client certificate for etcd")
	fs.StringVar(&s.backend, "storage-backend", "etcd3", "kind of storage: etcd3")
	fs.StringVar(&s.mediaType, "storage-media-type", protobuf, "encoding of built-in kinds in etcd: "+protobuf)
	fs.DurationVar(&s.eventTTL, "event-ttl", time.Hour, "how long Events are kept")
}

const protobuf = "application/vnd.kubernetes.protobuf"

// run serves until ctx ends.
func (s *apiServer) run(ctx context.Context) error {
	if err := s.validate(); err != nil {
		return err
	}
	config, err := s.config()
	if err != nil {
		return err
	}
	if config.Listener, err = s.listen(); err != nil {
		return err
	}
	cp, err := controlplane.Open(ctx, config)
	if err != nil {
		return err
	}
	defer cp.Close()
	slog.Info("Serving securely", "address", config.Listener.Addr().String())
	return cp.Run(ctx)
}

// validate refuses what upstream refuses, in its words.
func (s *apiServer) validate() error {
	var errs []error
	refuse := func(when bool, message string) {
		if when {
			errs = append(errs, errors.New(message))
		}
	}
	refuse(len(s.etcd.Endpoints) == 0, "--etcd-servers must be specified")
	refuse(s.backend != "etcd3", "--storage-backend invalid, allowed values: etcd3. If not specified, it will default to 'etcd3'")
	refuse(s.mediaType != protobuf, fmt.Sprintf("--storage-media-type %q invalid, allowed values: %s", s.mediaType, protobuf))
	refuse(s.port < 1 || s.port > 65535, fmt.Sprintf("--secure-port %d must be between 1 and 65535, inclusive. It cannot be turned off with 0", s.port))
	return utilerrors.NewAggregate(append(errs, s.Flags.RequireAccounts()...))
}

func (s *apiServer) config() (c controlplane.Config, err error) {
	c.Gates, c.Runtime, err = builtin.Options{FeatureGates: s.featureGates, RuntimeConfig: s.runtime}.Parse()
	if err != nil {
		return c, err
	}
	if c.EventTTL = s.eventTTL; c.EventTTL == 0 {
		c.EventTTL = -1 // for ever
	}
	if c.Registry.ServiceCIDRs, err = prefixes("--service-cluster-ip-range", s.serviceCIDRs); err != nil {
		return c, err
	}
	c.Registry.NodePortRange = s.nodePorts
	advertised, err := s.advertised()
	if err != nil {
		return c, err
	}
	if !advertised.IsLoopback() { // pods could not follow
		c.Registry.AdvertiseAddress = advertised
	}
	c.Admission.NoPrivileged = !s.allowPrivileged
	host := s.externalHostname
	if host == "" {
		host = advertised.String()
	}
	c.Server.Address = net.JoinHostPort(host, strconv.Itoa(s.port))
	if c.Server.TLS, err = s.certificate(advertised, c.Registry.ServiceCIDRs[0]); err != nil {
		return c, err
	}
	c.Auth.ClientCA = c.Server.TLS.ClientCAs
	if c.Server.Kubelet, err = s.kubelets(); err != nil {
		return c, err
	}
	if c.FrontProxy, err = s.frontProxy(); err != nil {
		return c, err
	}
	if s.clientCAFile != "" {
		if c.Trust.ClientCA, err = os.ReadFile(s.clientCAFile); err != nil {
			return c, fmt.Errorf("--client-ca-file: %w", err)
		}
		c.Auth.ClientCAFile, c.Auth.ClientCAData = s.clientCAFile, c.Trust.ClientCA
	}
	err = s.Flags.Apply(&c)
	s.etcd.Dial = c.Egress.Etcd
	c.Engine = controlplane.Etcd(s.etcd)
	return c, err
}

// prefixes reads a list of address ranges.
func prefixes(flag, list string) (all []netip.Prefix, err error) {
	for _, text := range strings.Split(list, ",") {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		all = append(all, p)
	}
	return all, nil
}

// advertised is the server's address for others.
func (s *apiServer) advertised() (netip.Addr, error) {
	ip := s.advertiseAddress
	if ip == nil || ip.IsUnspecified() {
		var err error
		if ip, err = utilnet.ResolveBindAddress(s.bindAddress); err != nil {
			ip = s.bindAddress // a host without a route: only itself can ask
			if ip.IsUnspecified() {
				ip = net.IPv4(127, 0, 0, 1)
			}
			slog.Debug("No address of this host to advertise", "err", err)
		}
	}
	addr, ok := netip.AddrFromSlice(ip)
	if !ok {
		return addr, fmt.Errorf("--advertise-address %s: no address", ip)
	}
	return addr.Unmap(), nil
}

func (s *apiServer) certificate(advertised netip.Addr, services netip.Prefix) (*tls.Config, error) {
	names := []string{"kubernetes.default.svc", "kubernetes.default", "kubernetes", "localhost"}
	ips := []net.IP{net.IPv4(127, 0, 0, 1), advertised.AsSlice(), services.Masked().Addr().Next().AsSlice()}
	return s.serving.tls(names, ips)
}

// kubelets says how node agents are reached.
func (s *apiServer) kubelets() (connect.Config, error) {
	t := &tls.Config{}
	c := connect.Config{KubeletTLS: t, LoopbackStreams: true}
	var err error
	if s.kubelet.cert != "" || s.kubelet.key != "" {
		pair, err := tls.LoadX509KeyPair(s.kubelet.cert, s.kubelet.key)
		if err != nil {
			return c, fmt.Errorf("--kubelet-client-certificate: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	t.RootCAs, err = pool("--kubelet-certificate-authority", s.kubelet.ca)
	t.InsecureSkipVerify = s.kubelet.ca == "" // as upstream: no authority, no check
	return c, err
}

// frontProxy is who this server is to extension servers, nil for nobody.
func (s *apiServer) frontProxy() (*tls.Certificate, error) {
	if s.proxy.cert == "" && s.proxy.key == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(s.proxy.cert, s.proxy.key)
	if err != nil {
		return nil, fmt.Errorf("--proxy-client-cert-file: %w", err)
	}
	return &pair, nil
}
