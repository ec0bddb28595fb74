package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/apis/builtin"
	"proa/internal/client"
	"proa/internal/cluster"
	"proa/internal/simulate"
	"proa/internal/simulate/endpoint"
	"proa/internal/simulate/kwok"
)

// simulateFlags ask a cluster for simulated nodes.
type simulateFlags struct {
	nodes, port int
	files       []string
}

func (f *simulateFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVar(&f.nodes, "simulate", -1, "nodes to simulate; beside a real node they are tainted kwok.x-k8s.io/node=fake:NoSchedule (default: as before, at first none)")
	flags.IntVar(&f.port, "simulate-port", 0, "port where the simulated nodes answer (default: three below the node agent's)")
	flags.StringSliceVar(&f.files, "simulate-config", nil, "files of KWOK's documents: Stage, ResourceUsage, Logs, Exec, ...")
}

// settle says in the settings what the flags ask for.
func (f *simulateFlags) settle(s *cluster.Settings) error {
	if s.SchedulerConfig != "" {
		absolute, err := filepath.Abs(s.SchedulerConfig)
		if err != nil {
			return err
		}
		s.SchedulerConfig = absolute
	}
	if f.nodes < 0 {
		if f.port != 0 || f.files != nil {
			return errors.New("--simulate-port and --simulate-config want --simulate, the number of nodes")
		}
		return nil
	}
	s.Simulation = &cluster.Simulation{Nodes: f.nodes, Port: f.port}
	for _, file := range f.files {
		absolute, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		s.Simulation.Files = append(s.Simulation.Files, absolute)
	}
	return nil
}

// simulation is a simulator apart from any server.
type simulation struct {
	kubeconfig, context string
	nodes, zones, port  int
	ip                  string
	files               []string
	certFile, keyFile   string
	clientCAFile        string
	lease               time.Duration
	tainted             bool
}

func newSimulate() *cobra.Command {
	var s simulation
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Simulate nodes and their pods for any API server",
		Long: `Simulate nodes and their pods for any API server.

Every node with the annotation kwok.x-k8s.io/node=fake is simulated, and so is
every pod on it; --nodes makes such nodes. What happens to them, and what logs,
exec and top answer, is told by KWOK's documents (--config).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return s.run(ctx, cmd)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&s.kubeconfig, "kubeconfig", "", "how the API server is reached (default: as kubectl)")
	flags.StringVar(&s.context, "context", "", "context of the kubeconfig")
	flags.IntVar(&s.nodes, "nodes", -1, "nodes sim-0, sim-1, ... to make (default: leave them as they are)")
	flags.IntVar(&s.zones, "zones", 3, "zones that they are spread over")
	flags.BoolVar(&s.tainted, "taint", false, "taint them kwok.x-k8s.io/node=fake:NoSchedule")
	flags.StringSliceVarP(&s.files, "config", "c", nil, "files of KWOK's documents: Stage, ResourceUsage, Logs, Exec, ...")
	flags.DurationVar(&s.lease, "lease-duration", 40*time.Second, "of the nodes' leases, renewed four times in it; longer is for proa's servers only")
	flags.StringVar(&s.ip, "node-ip", "", "address of this host that simulated nodes have; without one they do not answer logs, exec and top")
	flags.IntVar(&s.port, "port", 10247, "port where they answer")
	flags.StringVar(&s.certFile, "tls-cert-file", "", "certificate of that port (default: one made for this run)")
	flags.StringVar(&s.keyFile, "tls-private-key-file", "", "key of the certificate")
	flags.StringVar(&s.clientCAFile, "client-ca-file", "", "authorities of client certificates (default: those that the API server names)")
	return cmd
}

func (s *simulation) run(ctx context.Context, cmd *cobra.Command) error {
	docs, err := kwok.Load(s.files...)
	if err != nil {
		return err
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = s.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: s.context}).ClientConfig()
	if err != nil {
		return err
	}
	api, err := client.NewHTTP(config, builtin.Everything())
	if err != nil {
		return err
	}
	cache := client.NewCache(api)
	sim, err := simulate.New(simulate.Config{
		Cache: cache, Stages: docs.Stages, Fleet: simulate.Fleet{Nodes: s.nodes, Zones: s.zones, Tainted: s.tainted},
		NodeIP: s.ip, Port: s.answering(), LeaseDuration: s.lease, Recorder: client.NewRecorder(ctx, api, "simulator", ""),
		As: func(user string) (client.API, error) {
			as := rest.CopyConfig(config)
			as.Impersonate = rest.ImpersonationConfig{UserName: user}
			return client.NewHTTP(as, builtin.Everything())
		},
	})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	if s.answering() != 0 {
		if err := s.answer(ctx, g, endpoint.Config{Cache: cache, Simulator: sim, Documents: docs}, api); err != nil {
			return err
		}
	}
	g.Go(func() error { return cache.Run(ctx) })
	if err := cache.WaitForSync(ctx); err != nil {
		return nil // ended by a signal
	}
	fmt.Fprintln(cmd.OutOrStdout(), "Simulating; end with Ctrl-C.")
	g.Go(func() error { return sim.Run(ctx) })
	if err := g.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// answering is the port, 0 when there is no address for it.
func (s *simulation) answering() int {
	if s.ip == "" {
		return 0
	}
	return s.port
}

// answer serves the nodes' endpoint.
func (s *simulation) answer(ctx context.Context, g *errgroup.Group, c endpoint.Config, api client.API) error {
	certificate, err := s.certificate()
	if err != nil {
		return err
	}
	c.Certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &certificate, nil }
	if c.ClientCAs, err = s.clientCAs(ctx, api); err != nil {
		return err
	}
	e, err := endpoint.New(c)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(s.ip, strconv.Itoa(s.port)))
	if err != nil {
		return err
	}
	g.Go(func() error { return e.Run(ctx, l) })
	return nil
}

// clientCAs are those of the file, else those that the API server publishes for
// the servers behind it.
func (s *simulation) clientCAs(ctx context.Context, api client.API) (*x509.CertPool, error) {
	const published = "extension-apiserver-authentication"
	var pem []byte
	if s.clientCAFile != "" {
		var err error
		if pem, err = os.ReadFile(s.clientCAFile); err != nil {
			return nil, err
		}
	} else {
		cm, err := client.Of[*corev1.ConfigMap](api).Get(ctx, metav1.NamespaceSystem, published)
		if err != nil {
			return nil, fmt.Errorf("authorities of client certificates (or name them with --client-ca-file): %w", err)
		}
		pem = []byte(cm.Data["client-ca-file"])
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("no certificates in %s", cmp.Or(s.clientCAFile, "the ConfigMap kube-system/"+published))
	}
	return pool, nil
}

func (s *simulation) certificate() (tls.Certificate, error) {
	if s.certFile != "" {
		return tls.LoadX509KeyPair(s.certFile, s.keyFile)
	}
	return endpoint.SelfSigned(net.ParseIP(s.ip), time.Now())
}
