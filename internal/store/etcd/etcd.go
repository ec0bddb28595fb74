// Package etcd is a store engine on an etcd cluster, which several servers,
// upstream's included, may use at once.
//
// Revisions are etcd's own. Every transaction of the store is one of etcd that
// compares the revisions of all keys it read. What the store shows follows one
// watch of the whole prefix, its own writes included, so all of it appears in
// etcd's order and a transaction returns when it is visible. When etcd compacted
// what a disconnected server had not seen yet, the engine lists and publishes
// the difference.
//
// A transaction whose answer was lost fails although it may have been applied,
// as upstream's do; the watch then shows it like somebody else's.
package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/utils/clock"

	"proa/internal/store"
	"proa/internal/tracing"
)

// Config says where etcd is and what is kept there.
type Config struct {
	Endpoints []string // URLs
	Prefix    string   // "" means /registry

	// Resources are the built-in ones, which upstream keeps below their bare
	// names. Others have their group in the path.
	Resources []schema.GroupResource

	// CAFile, CertFile and KeyFile are for endpoints with TLS, all optional.
	CAFile, CertFile, KeyFile string

	// Dial opens the connections. Nil: directly.
	Dial utilnet.DialFunc

	Timeout  time.Duration    // of one call to etcd; 0 means 10 seconds
	Behind   time.Duration    // how long a read waits for a watch that lags; 0 means 3 seconds
	Progress time.Duration    // how often an idle watch is asked how far it is; 0 means 5 seconds
	Clock    clock.WithTicker // nil: the real one
}

// Keepalive of connections, as upstream's, so that a silent partition is found.
const (
	keepAliveTime    = 30 * time.Second
	keepAliveTimeout = 10 * time.Second
)

// reconnect is how often a lost etcd is tried again: gRPC's own pauses grow to two minutes.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second},
	MinConnectTimeout: 5 * time.Second,
}

// healthTimeout is how long a health check waits for etcd, as upstream's.
const healthTimeout = 2 * time.Second

// maxCalls bounds the transactions that are with etcd at the same time. It
// syncs those that arrive together once.
const maxCalls = 256

// page is how many objects one answer of a list holds.
const page = 2000

// ErrLagging is the error of a transaction that was applied while the watch did
// not show it in time.
var ErrLagging = errors.New("etcd has applied the transaction, but its watch does not show it")

// Engine is a store.Follower.
type Engine struct {
	client   *clientv3.Client
	config   Config
	layout   *layout
	timeout  time.Duration
	behind   time.Duration
	progress time.Duration
	clock    clock.WithTicker

	mu       sync.Mutex            // guards the rest
	known    map[store.Key]int64   // the revision of every object that was handed over
	flights  map[store.Key]*flight // own transactions by the keys they write
	revision int64                 // everything up to it was handed over
	moved    chan struct{}         // closed and replaced when revision has changed
	asking   context.Context       // of the running watch, nil for none
	ended    error                 // why Follow has ended

	setBack chan struct{} // has a token when etcd was found to be at a revision before this one

	asks asks
}

var _ store.Follower = (*Engine)(nil)

// Open connects to etcd. It does not wait for an answer; Load does.
func Open(c Config) (*Engine, error) {
	client, err := connect(c, nil)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		client:   client,
		config:   c,
		layout:   newLayout(cmp.Or(c.Prefix, "/registry"), c.Resources),
		timeout:  cmp.Or(c.Timeout, 10*time.Second),
		behind:   cmp.Or(c.Behind, 3*time.Second),
		progress: cmp.Or(c.Progress, 5*time.Second),
		clock:    clock.RealClock{},
		flights:  map[store.Key]*flight{},
		moved:    make(chan struct{}),
		setBack:  make(chan struct{}, 1),
	}
	if c.Clock != nil {
		e.clock = c.Clock
	}
	return e, nil
}

func connect(c Config, tracer trace.TracerProvider) (*clientv3.Client, error) {
	secure, err := tlsConfig(c)
	if err != nil {
		return nil, fmt.Errorf("TLS to etcd: %w", err)
	}
	dial := []grpc.DialOption{grpc.WithConnectParams(reconnect)}
	if c.Dial != nil {
		dial = append(dial, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return c.Dial(ctx, "tcp", address)
		}))
	}
	if tracer != nil {
		dial = append(dial, grpc.WithStatsHandler(otelgrpc.NewClientHandler(
			otelgrpc.WithPropagators(tracing.Propagators), otelgrpc.WithTracerProvider(tracer),
			otelgrpc.WithMessageEvents(otelgrpc.ReceivedEvents, otelgrpc.SentEvents))))
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            c.Endpoints,
		TLS:                  secure,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		DialOptions:          dial,
		Logger:               zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	return client, nil
}

// Trace makes spans of the calls to etcd, and tells etcd of the traces that they are
// part of. It comes before the first call.
func (e *Engine) Trace(tracer trace.TracerProvider) error {
	client, err := connect(e.config, tracer)
	if err != nil {
		return err
	}
	old := e.client
	e.client = client
	return old.Close()
}

func tlsConfig(c Config) (*tls.Config, error) {
	if c.CAFile == "" && c.CertFile == "" && c.KeyFile == "" {
		return nil, nil
	}
	info := transport.TLSInfo{TrustedCAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile}
	return info.ClientConfig()
}

// Close ends the connections.
func (e *Engine) Close() error { return e.client.Close() }

// Load lists every object at a revision, page by page, while the pages before
// are visited.
func (e *Engine) Load(ctx context.Context, revision int64, visit func(store.Record) error) (int64, error) {
	known := map[store.Key]int64{}
	var visits errgroup.Group
	visits.SetLimit(4)
	at, err := e.list(ctx, e.layout.root, revision, func(records []listed) {
		for _, r := range records {
			known[r.Key] = r.Revision
		}
		visits.Go(func() error {
			for _, r := range records {
				if err := visit(r.Record); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err := errors.Join(err, visits.Wait()); err != nil {
		return 0, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.known == nil && revision == 0 {
		e.known = known
	}
	return at, nil
}

// listed is an object with the revision that created it.
type listed struct {
	store.Record
	created int64
}

// Read lists one place, whatever the watch has shown.
func (e *Engine) Read(ctx context.Context, place store.Key, revision int64, visit func(store.Record) error) (int64, error) {
	var failed error
	each := func(records []listed) {
		for _, r := range records {
			if failed == nil {
				failed = visit(r.Record)
			}
		}
	}
	if place.Name == "" {
		at, err := e.list(ctx, e.layout.path(place), revision, each)
		return at, errors.Join(err, failed)
	}
	path := e.layout.path(place)
	at, err := e.span(ctx, path, path+"\x00", revision, each)
	return at, errors.Join(err, failed)
}

// list reads all objects below a place at a revision, 0 for the newest, and returns it.
func (e *Engine) list(ctx context.Context, prefix string, revision int64, each func([]listed)) (int64, error) {
	return e.span(ctx, prefix, clientv3.GetPrefixRangeEnd(prefix), revision, each)
}

// span is list between two keys.
func (e *Engine) span(ctx context.Context, from, end string, revision int64, each func([]listed)) (int64, error) {
	for {
		answer, err := e.page(ctx, from, end, revision)
		if err != nil {
			return 0, fmt.Errorf("list from etcd at %s: %w", strings.Join(e.client.Endpoints(), ", "), storeError(err))
		}
		if revision == 0 {
			revision = answer.Header.Revision
		}
		records := make([]listed, 0, len(answer.Kvs))
		for _, kv := range answer.Kvs {
			if key, ok := e.layout.key(kv.Key); ok {
				records = append(records, listed{store.Record{Key: key, Revision: kv.ModRevision, Value: kv.Value}, kv.CreateRevision})
			}
		}
		each(records)
		if !answer.More {
			return revision, nil
		}
		from = string(answer.Kvs[len(answer.Kvs)-1].Key) + "\x00"
	}
}

func (e *Engine) page(ctx context.Context, from, end string, revision int64) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout) // it would wait for a connection for ever
	defer cancel()
	return e.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(revision))
}

// storeError gives etcd's errors the classes of the store and leaves their text.
func storeError(err error) error {
	for _, class := range []struct{ etcd, store error }{
		{rpctypes.ErrCompacted, store.ErrCompacted},
		{rpctypes.ErrFutureRev, store.ErrFuture},
		{rpctypes.ErrNoSpace, store.ErrNoSpace},
	} {
		if errors.Is(err, class.etcd) {
			return &classified{err, class.store}
		}
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &classified{err, store.ErrUnavailable}
}

// classified is an error of etcd that belongs to a class of the store's.
type classified struct{ cause, class error }

func (c *classified) Error() string   { return c.cause.Error() }
func (c *classified) Unwrap() []error { return []error{c.cause, c.class} }
