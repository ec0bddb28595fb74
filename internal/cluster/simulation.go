package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"

	explainapi "proa/internal/apis/explain"
	"proa/internal/client"
	"proa/internal/explain"
	"proa/internal/scheduler"
	"proa/internal/scheduler/config"
	"proa/internal/simulate"
	"proa/internal/simulate/endpoint"
	"proa/internal/simulate/kwok"
)

// Simulation is nodes without machines beside the real ones.
type Simulation struct {
	Nodes int      `json:"nodes"`           // of the cluster's own fleet
	Port  int      `json:"port,omitempty"`  // where they answer; 0: three below the node agent's
	Files []string `json:"files,omitempty"` // documents of KWOK's kinds
}

// simulatedLease is how long the leases of simulated nodes last. Their number
// may be large and their agent is as alive as this server, so they are renewed
// far less often than a kubelet's.
const simulatedLease = 400 * time.Second

// simulator is the simulation as it runs.
type simulator struct {
	*simulate.Simulator
	endpoint *endpoint.Endpoint
	address  string
}

// simulation makes the simulated nodes. Beside a real node they take only pods
// that tolerate them.
func (cp *controlPlane) simulation(ctx context.Context, cache *client.Cache, o Options) (component, error) {
	s := cp.settings
	docs, err := kwok.Load(s.Simulation.Files...)
	if err != nil {
		return nil, fmt.Errorf("--simulate-config: %w", err)
	}
	port := cmp.Or(s.Simulation.Port, s.KubeletPort-3)
	api := cp.As("system:proa:simulator", user.SystemPrivilegedGroup)
	view := cache.As(api)
	sim, err := simulate.New(simulate.Config{
		Cache: view, Stages: docs.Stages, Clock: clock.RealClock{},
		Fleet:  simulate.Fleet{Nodes: s.Simulation.Nodes, Tainted: o.Node},
		NodeIP: s.advertised(), Port: port, LeaseDuration: simulatedLease,
		As:       func(name string) (client.API, error) { return cp.As(name), nil },
		Recorder: client.NewRecorder(ctx, api, "simulator", ""),
	})
	if err != nil {
		return nil, fmt.Errorf("--simulate-config: %w", err)
	}
	serving, err := keyPair(cp.authority.KeptNodeServer("simulated-kubelet", "simulated", []string{"localhost"}, []net.IP{net.ParseIP(s.advertised())}))
	if err != nil {
		return nil, fmt.Errorf("certificate of the simulated nodes: %w", err)
	}
	answering, err := endpoint.New(endpoint.Config{
		Cache: view, Simulator: sim, Documents: docs, ClientCAs: cp.authority.Cluster.Pool(),
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &serving, nil },
	})
	if err != nil {
		return nil, fmt.Errorf("--simulate-config: %w", err)
	}
	return reader{&simulator{sim, answering, net.JoinHostPort(s.advertised(), strconv.Itoa(port))}, view}, nil
}

// Run simulates and answers until ctx ends.
func (s *simulator) Run(ctx context.Context) error {
	l, err := net.Listen("tcp", s.address)
	if err != nil {
		return fmt.Errorf("simulated nodes: %w; choose another port with --simulate-port", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.Simulator.Run(ctx) })
	g.Go(func() error { return s.endpoint.Run(ctx, l) })
	return g.Wait()
}

// scheduler makes the scheduler as its file configures it.
func (cp *controlPlane) scheduler(cache *client.Cache) (*scheduler.Scheduler, error) {
	c := scheduler.Config{
		Cache: cache, Clock: clock.RealClock{}, Metrics: cp.metrics,
		PodGroups: scheduler.ServesPodGroups(cp.Catalogue()),
	}
	if path := cp.settings.SchedulerConfig; path != "" {
		var err error
		if c.Settings, err = config.Load(path); err != nil {
			return nil, fmt.Errorf("--scheduler-config %s: %w", path, err)
		}
	}
	return scheduler.New(c)
}

// explain serves why pods are as they are.
func (cp *controlPlane) explain(cache *client.Cache, s *scheduler.Scheduler) error {
	return cp.Registry.Serve(&explainapi.PodExplanations, explain.New(explain.Config{
		Cache: cache,
		Scheduling: func(ctx context.Context, pod *corev1.Pod) (*explainapi.Scheduling, error) {
			if !s.Schedules(pod.Spec.SchedulerName) {
				return nil, nil
			}
			return s.Explain(ctx, pod)
		},
	}))
}

func (s *Simulation) validate() error {
	if s == nil {
		return nil
	}
	if s.Nodes < 0 {
		return errors.New("--simulate: want the number of nodes")
	}
	if s.Port != 0 {
		return checkPort("--simulate-port", s.Port)
	}
	return nil
}

// settle completes what this start was given with what an earlier one was.
func (s *Simulation) settle(stored *Simulation) *Simulation {
	switch {
	case s == nil:
		return stored
	case stored == nil:
		return s
	}
	settled := *s
	if settled.Port == 0 {
		settled.Port = stored.Port
	}
	if settled.Files == nil {
		settled.Files = stored.Files
	}
	return &settled
}
