// Package registry is the API request path below HTTP: every read and write of
// an API object, by a client on the network or by a component of this process,
// is one call here.
//
// A write is defaulted, admitted, validated and committed in one place, in
// upstream's order; what it decides from stored state it decides inside the store
// transaction that carries it. The package knows hub-version objects: decoding,
// encoding and the served versions of a response belong to the HTTP layer above.
package registry

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"proa/internal/admission"
	"proa/internal/apis"
	"proa/internal/apiserver/allocate"
	"proa/internal/apiserver/apply"
	"proa/internal/store"
)

// Request names what a call is about and who makes it.
type Request struct {
	User user.Info
	View apis.View // the resource in the served version that the client speaks

	Namespace, Name, Subresource string

	// UserAgent names the field manager of a write whose options do not.
	UserAgent string
}

func (q *Request) resource() schema.GroupResource { return q.View.GroupResource() }

// asked is how errors name the request's kind: in the group that it was asked for in.
func (q *Request) asked() schema.GroupResource {
	gr := q.resource()
	if q.View.Served != nil {
		gr.Group = q.View.Served.Group
	}
	return gr
}

func (q *Request) key() store.Key {
	return store.Key{Resource: q.resource(), Namespace: q.namespace(), Name: q.Name}
}

// place is where the objects of the request's kind are, in its namespace or in all.
func (q *Request) place() store.Key {
	return store.Key{Resource: q.resource(), Namespace: q.namespace()}
}

// namespace is the one the stored object lives in: empty for cluster scope, whatever the path said.
func (q *Request) namespace() string {
	if q.View.Scope == apis.Cluster {
		return ""
	}
	return q.Namespace
}

// Handler serves the create verb of a kind that is not stored, or of a subresource.
type Handler func(ctx context.Context, req *Request, obj apis.Object, opts metav1.CreateOptions) (apis.Object, error)

// Config says what a Registry is made of. Store and Catalogue are required.
type Config struct {
	Store     *store.Store
	Catalogue *apis.Catalogue
	Admission *admission.Chain // nil: everything is admitted as it is

	// Authorizer answers for the in-process transport and for writes that turn
	// into a create. Nil: everything is allowed.
	Authorizer authorizer.Authorizer

	Clock clock.WithTicker // nil: the real one

	// Place says where upstream's storage keeps an object, below its prefix, for
	// errors. Nil: the key's text.
	Place func(store.Key) string

	ServiceCIDRs  []netip.Prefix    // default 10.96.0.0/12; at most one per IP family
	NodePortRange utilnet.PortRange // default 30000-32767

	// AdvertiseAddress and SecurePort are where the kubernetes Service leads.
	// An invalid address leaves the Service without endpoints.
	AdvertiseAddress netip.Addr
	SecurePort       int // default 6443

	Metrics prometheus.Registerer // of what Services are given; nil: nobody asks
}

// Registry serves the objects of one store. It is safe for concurrent use.
type Registry struct {
	store      *store.Store
	catalogue  *apis.Catalogue
	admission  *admission.Chain
	authorizer authorizer.Authorizer
	clock      clock.WithTicker
	managers   *apply.Managers
	services   *allocate.Services
	config     Config

	handlers map[endpoint]Handler
	hooks    map[schema.GroupResource]hooks
	sources  map[schema.GroupResource]Source
}

// endpoint names what a Handler serves.
type endpoint struct {
	resource    schema.GroupResource
	subresource string
}

// hooks are what a kind does beside its own object, in the same transaction.
type hooks struct {
	create func(tx *store.Tx, obj apis.Object) error
	update func(tx *store.Tx, obj, old apis.Object) error
	remove func(tx *store.Tx, obj apis.Object) error
}

// New returns a Registry of the config's store and catalogue.
func New(c Config) (*Registry, error) {
	if c.Store == nil || c.Catalogue == nil {
		return nil, fmt.Errorf("registry: a store and a catalogue are required")
	}
	if c.Admission == nil {
		c.Admission = admission.NewChain()
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if len(c.ServiceCIDRs) == 0 {
		c.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}
	}
	if c.NodePortRange.Size == 0 {
		c.NodePortRange = utilnet.PortRange{Base: 30000, Size: 2768}
	}
	if c.SecurePort == 0 {
		c.SecurePort = 6443
	}
	services, err := allocate.NewServices(allocate.Config{
		Store: c.Store, CIDRs: c.ServiceCIDRs, NodePorts: c.NodePortRange, Clock: c.Clock, Metrics: c.Metrics,
	})
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	r := &Registry{
		store: c.Store, catalogue: c.Catalogue, admission: c.Admission,
		authorizer: c.Authorizer, clock: c.Clock, services: services, config: c,
		managers: apply.New(c.Clock),
		handlers: map[endpoint]Handler{},
		sources:  map[schema.GroupResource]Source{},
	}
	r.hooks = map[schema.GroupResource]hooks{
		{Resource: "services"}: {create: services.Create, update: services.Update, remove: services.Remove},
	}
	r.handleSubresources()
	return r, nil
}

// Handle lets h serve creates of a kind (subresource empty) or of a subresource.
// It is called while the server is put together, before the first request.
func (r *Registry) Handle(gr schema.GroupResource, subresource string, h Handler) {
	r.handlers[endpoint{gr, subresource}] = h
}

// Allocations gives Services what must be unique.
func (r *Registry) Allocations() *allocate.Services { return r.services }

// Catalogue returns the resources this registry serves.
func (r *Registry) Catalogue() *apis.Catalogue { return r.catalogue }
