package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"golang.org/x/sync/errgroup"
)

// health of a Service on this node, as a load balancer asks for it.
type health struct {
	Service             healthService `json:"service"`
	LocalEndpoints      int           `json:"localEndpoints"`
	ServiceProxyHealthy bool          `json:"serviceProxyHealthy"`

	port uint16
}

type healthService struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// healthServer answers load balancers: one listener per health check node port,
// and the proxy's own health.
type healthServer struct {
	address string
	changed chan struct{}

	mu       sync.Mutex // guards what follows
	services map[string]health
	draining bool // the node shall get no new connections from outside
}

func newHealthServer(address string) *healthServer {
	return &healthServer{address: address, changed: make(chan struct{}, 1), services: map[string]health{}}
}

// drainTaint is how a cluster autoscaler announces a node's end (KEP-3836).
const drainTaint = "ToBeDeletedByClusterAutoscaler"

func (h *healthServer) observe(node *corev1.Node) {
	if node == nil {
		return
	}
	draining := node.DeletionTimestamp != nil
	for _, t := range node.Spec.Taints {
		draining = draining || t.Key == drainTaint
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = draining
}

// set takes over the health of the owners that changed.
func (h *healthServer) set(fragments map[string]*fragment, owners []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, owner := range owners {
		if f := fragments[owner]; f != nil && f.health != nil {
			h.services[owner] = *f.health
		} else {
			delete(h.services, owner)
		}
	}
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

func (h *healthServer) of(owner string) (health, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.services[owner]
	return s, ok
}

// ports are the owners by the port that asks for their health.
func (h *healthServer) ports() map[uint16]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	ports := map[uint16]string{}
	for owner, s := range h.services {
		ports[s.port] = owner
	}
	return ports
}

// run serves until ctx ends, opening and closing listeners as Services change.
func (h *healthServer) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	if h.address != "" {
		g.Go(func() error { return h.serveOwn(ctx) })
	}
	type listener struct {
		owner string
		stop  context.CancelFunc
	}
	open := map[uint16]listener{}
	g.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-h.changed:
			}
			want := h.ports()
			for port, l := range open {
				if want[port] != l.owner {
					l.stop()
					delete(open, port)
				}
			}
			for port, owner := range want {
				if _, ok := open[port]; ok {
					continue
				}
				serving, stop := context.WithCancel(ctx)
				open[port] = listener{owner, stop}
				g.Go(func() error { return h.serveService(serving, port, owner) })
			}
		}
	})
	return g.Wait()
}

const (
	bindRetry   = time.Second
	readTimeout = 5 * time.Second
)

// serve answers on address until ctx ends; a port that is taken is tried again.
func serve(ctx context.Context, address string, handler http.Handler) error {
	for {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err == nil {
			s := &http.Server{Handler: handler, ReadHeaderTimeout: readTimeout, IdleTimeout: readTimeout}
			stop := context.AfterFunc(ctx, func() { s.Close() })
			err = s.Serve(l)
			stop()
		}
		if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		slog.WarnContext(ctx, "serve health", "address", address, "err", err)
		select {
		case <-time.After(bindRetry):
		case <-ctx.Done():
			return nil
		}
	}
}

func (h *healthServer) serveService(ctx context.Context, port uint16, owner string) error {
	return serve(ctx, fmt.Sprintf(":%d", port), h.serviceHandler(owner))
}

func (h *healthServer) serviceHandler(owner string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s, ok := h.of(owner)
		s.ServiceProxyHealthy = true
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(s.LocalEndpoints))
		if !ok || s.LocalEndpoints == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if err := json.NewEncoder(w).Encode(s); err != nil {
			return // the client is gone
		}
	})
}

func (h *healthServer) serveOwn(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK) })
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		h.mu.Lock()
		draining := h.draining
		h.mu.Unlock()
		if draining {
			answer(w, http.StatusServiceUnavailable)
			return
		}
		answer(w, http.StatusOK)
	})
	return serve(ctx, h.address, mux)
}

func answer(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, "{\"nodeEligible\": %t}\n", status == http.StatusOK)
}
