// Package aggregator is the part of the API that other servers serve. An
// APIService with a Service leads requests of its group version to the servers
// behind it: with the user in headers that only the front proxy's certificate
// makes believed, never with the user's own credentials, and never further than
// those servers (no redirect is followed or passed on).
//
// What it describes of them (discovery, OpenAPI) is read ahead of requests and
// kept; an APIService whose server does not answer stays listed, as stale. Kinds and
// Everywhere show controllers their objects beside this server's own.
// Whether one is available is not decided here: controllers/apiservice probes
// and writes the condition that requests go by.
package aggregator

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/clock"

	"proa/internal/apis"
	"proa/internal/apiserver/discovery"
	"proa/internal/apiserver/openapi"
	"proa/internal/egress"
	"proa/internal/store"
	"proa/internal/store/backend"
)

// Config says what an Aggregator reads and who it is. Store is required.
type Config struct {
	Store *store.Store

	// Certificate is what extension servers know this server by. Nil: they will
	// believe nothing about users.
	Certificate *tls.Certificate

	// ByAddress leads requests to the addresses of Services, not to their endpoints.
	ByAddress bool
	// Egress opens the connections to Services.
	Egress egress.Dialers

	Clock clock.WithTicker // nil: the real one
	Log   *slog.Logger
}

// Aggregator knows the group versions that other servers serve. It is safe for
// concurrent use.
type Aggregator struct {
	config   Config
	store    *store.Store
	services backend.Resolver
	kinds    *apis.Catalogue

	publishing sync.Mutex // held by who changes kinds

	building sync.Mutex // held by who makes a new table
	table    atomic.Pointer[table]

	mu        sync.Mutex // guards the rest
	described map[string]description
	discovery *discovery.Remotes
	openapi   *openapi.Remotes
}

var apiServices = schema.GroupResource{Group: apiregistrationv1.GroupName, Resource: "apiservices"}

// New returns an Aggregator of the store's APIServices.
func New(c Config) (*Aggregator, error) {
	if c.Store == nil {
		return nil, errors.New("aggregator: a store is required")
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return &Aggregator{config: c, store: c.Store, services: backend.Resolver{Store: c.Store, ByAddress: c.ByAddress, Egress: c.Egress}, kinds: apis.NewCatalogue(), described: map[string]description{}}, nil
}

// table is every APIService of one snapshot that leads elsewhere. It is never
// changed; a write of an APIService makes the next request build a new one.
type table struct {
	seen     atomic.Pointer[store.Snapshot] // the newest snapshot known to have the same APIServices
	backends map[schema.GroupVersion]*Backend
}

// Backend returns who serves a group version instead of this server, nil when
// nobody does.
func (a *Aggregator) Backend(gv schema.GroupVersion) *Backend { return a.current().backends[gv] }

func (a *Aggregator) current() *table {
	sn := a.store.Snapshot()
	if t := a.table.Load(); t != nil && t.shows(sn) {
		return t
	}
	a.building.Lock()
	defer a.building.Unlock()
	sn = a.store.Snapshot()
	old := a.table.Load()
	if old != nil && old.shows(sn) {
		return old
	}
	t := a.build(sn, old)
	a.table.Store(t)
	return t
}

func (t *table) shows(sn *store.Snapshot) bool {
	seen := t.seen.Load()
	if seen.Revision() == sn.Revision() {
		return true
	}
	if !sn.Unchanged(apiServices, seen) {
		return false
	}
	if sn.Revision() > seen.Revision() {
		t.seen.CompareAndSwap(seen, sn)
	}
	return true
}

// build keeps the connections of backends that stay where they are.
func (a *Aggregator) build(sn *store.Snapshot, old *table) *table {
	t := &table{backends: map[schema.GroupVersion]*Backend{}}
	t.seen.Store(sn)
	sn.Range(apiServices, "", store.Key{}, func(item *store.Item) bool {
		s, ok := item.Object.(*apiregistrationv1.APIService)
		if !ok || s.Spec.Service == nil {
			return true
		}
		gv := schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}
		var before *Backend
		if old != nil {
			before = old.backends[gv]
		}
		t.backends[gv] = newBackend(s, before, a.config)
		return true
	})
	if old == nil {
		return t
	}
	for gv, b := range old.backends {
		if now := t.backends[gv]; now == nil || now.transport != b.transport {
			b.close()
		}
	}
	return t
}
