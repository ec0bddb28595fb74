package faults

import (
	"cmp"
	"context"
	"crypto/tls"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"proa/internal/admission"
	"proa/internal/apis"
	"proa/internal/apiserver"
	"proa/internal/apiserver/registry"
	"proa/internal/auth"
	"proa/internal/auth/pki"
	"proa/internal/controlplane"
	"proa/internal/store"
	"proa/internal/store/pebble"
)

// server is an API server whose disk, which is in memory, outlives it.
type server struct {
	authority *pki.Authority
	address   string // empty before the first life
	disk      *vfs.MemFS
	plane     *controlplane.ControlPlane
	stop      func() error // serving
}

// serve begins the first life of a server and ends the last one with the test.
func serve(t *testing.T) *server {
	authority, err := pki.InMemory(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{authority: authority, disk: vfs.NewCrashableMem()}
	if err := s.begin(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Errorf("the API server ended: %v", err)
		}
		s.plane.Close()
	})
	return s
}

func (s *server) begin() error {
	certPEM, keyPEM, err := s.authority.Server([]string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	serving, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", cmp.Or(s.address, "127.0.0.1:0"))
	if err != nil {
		return err
	}
	s.address = listener.Addr().String()
	s.plane, err = controlplane.Open(context.Background(), controlplane.Config{
		Engine: func(*apis.Catalogue) (store.Engine, error) {
			return pebble.Open(pebble.Config{Dir: "store", FS: s.disk})
		},
		Listener:  listener,
		Auth:      auth.Config{ClientCA: s.authority.Cluster.Pool(), ServiceAccountKey: s.authority.ServiceAccountKey},
		Admission: admission.Config{},
		Registry:  registry.Config{ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}},
		Server: apiserver.Config{
			Address: s.address, ShutdownTimeout: 10 * time.Millisecond,
			TLS: &tls.Config{Certificates: []tls.Certificate{serving}, ClientCAs: s.authority.Cluster.Pool()},
		},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.plane.Run(ctx) }()
	s.stop = func() error {
		cancel()
		return <-ended
	}
	return nil
}

// access is that of an administrator.
func (s *server) access() (*rest.Config, error) {
	cert, key, err := s.authority.Client("admin", user.SystemPrivilegedGroup)
	return &rest.Config{
		Host: "https://" + s.address, QPS: -1, // nothing to be gentle with
		TLSClientConfig: rest.TLSClientConfig{CAData: s.authority.CAPEM(), CertData: cert, KeyData: key},
	}, err
}

// losePower ends the server, loses some of what it has written and not synced, and
// begins another one on what is left. It knows all that was ever answered.
func (c *cluster) losePower(t *testing.T, seed uint64) {
	t.Helper()
	if c.calm {
		return
	}
	random := rand.New(rand.NewPCG(seed, 1))
	if err := c.server.stop(); err != nil {
		t.Fatalf("the API server ended: %v", err)
	}
	left := c.server.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: random.IntN(101), RNG: random})
	c.server.plane.Close()
	c.server.disk = left
	if err := c.server.begin(); err != nil {
		t.Fatalf("the API server does not begin again: %v", err)
	}
	c.await(t, "the server answers again", func(ctx context.Context, api kubernetes.Interface) error {
		return api.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}
