// Package proxy makes Services work: it keeps one nftables table in the kernel
// that sends what is addressed to a Service, a node port or a pod's host port to
// an endpoint. Planning is pure (plan.go); what a change alters is found from
// the change alone (state.go) and sent as one transaction.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/network/nft"
)

// Config makes a Proxy. Only the last five have defaults.
type Config struct {
	Cache       *client.Cache
	NodeName    string
	Table       string       // family inet; nothing else writes to it
	Bridge      string       // link of this node's pods
	PodCIDR     netip.Prefix // of the cluster
	NodeCIDR    netip.Prefix // of this node's pods; see SetNodeCIDR
	ServiceCIDR netip.Prefix

	NodePortAddresses []netip.Prefix // local addresses that serve node ports; empty: all
	AllowExternalIPs  bool           // serve spec.externalIPs (CVE-2020-8554)
	HealthAddress     string         // of /healthz and /livez; empty: not served
	NetNS             int            // file descriptor of a network namespace; 0: the process's
	Clock             clock.WithTicker
}

// Proxy programs the kernel of one node.
type Proxy struct {
	c        Config
	services *client.Informer[*corev1.Service]
	slices   *client.Informer[*discoveryv1.EndpointSlice]
	pods     *client.Informer[*corev1.Pod]
	nodes    *client.Informer[*corev1.Node]
	state    *state
	kernel   *nft.Conn
	health   *healthServer
	flows    *flowCleaner
	ready    chan struct{}
	applied  func() // told after each transaction, by tests; may be nil

	mu    sync.Mutex // guards what follows
	dirty map[string]struct{}
	wake  chan struct{} // has an entry when dirty has any
}

// Owners of fragments: prefix and namespace/name.
const (
	ownerService = "service "
	ownerPod     = "pod "
)

// byService indexes EndpointSlices by namespace/name of their Service.
const byService = "network/service"

// New asks the cache for what Run needs.
func New(c Config) *Proxy {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	p := &Proxy{
		c:        c,
		services: client.Shared[*corev1.Service](c.Cache),
		slices:   client.Shared[*discoveryv1.EndpointSlice](c.Cache),
		pods: client.Filtered[*corev1.Pod](c.Cache, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("spec.nodeName", c.NodeName).String()}),
		nodes:  client.Shared[*corev1.Node](c.Cache),
		state:  newState(),
		kernel: nft.NewConn(c.NetNS),
		ready:  make(chan struct{}),
		dirty:  map[string]struct{}{},
		wake:   make(chan struct{}, 1),
	}
	p.health = newHealthServer(c.HealthAddress)
	p.flows = newFlowCleaner(c.NetNS)
	p.slices.AddIndex(byService, func(s *discoveryv1.EndpointSlice) []string {
		return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}
	})
	p.watch()
	return p
}

func (p *Proxy) watch() {
	p.services.OnChange(func(old, new *corev1.Service) { p.note(ownerService, either(old, new)) })
	p.slices.OnChange(func(old, new *discoveryv1.EndpointSlice) {
		for _, s := range []*discoveryv1.EndpointSlice{old, new} {
			if s != nil && s.Labels[discoveryv1.LabelServiceName] != "" {
				p.noteKey(ownerService + s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName])
			}
		}
	})
	p.pods.OnChange(func(old, new *corev1.Pod) { p.note(ownerPod, either(old, new)) })
	p.nodes.OnChange(func(old, new *corev1.Node) {
		if either(old, new).Name != p.c.NodeName {
			return
		}
		p.health.observe(new)
		if old != nil && new != nil && old.Labels[corev1.LabelTopologyZone] == new.Labels[corev1.LabelTopologyZone] {
			return
		}
		for _, svc := range p.services.Select("", labels.Everything()) {
			p.note(ownerService, svc)
		}
	})
}

// SetNodeCIDR says which range this node's pods have, where it was not known
// when the Proxy was made. It comes before Run.
func (p *Proxy) SetNodeCIDR(cidr netip.Prefix) { p.c.NodeCIDR = cidr }

// either returns the one of an object's two states that is there.
func either[T interface {
	comparable
	metav1.Object
}](old, new T) T {
	var none T
	if new == none {
		return old
	}
	return new
}

func (p *Proxy) note(owner string, obj metav1.Object) {
	p.noteKey(owner + obj.GetNamespace() + "/" + obj.GetName())
}

func (p *Proxy) noteKey(owner string) {
	p.mu.Lock()
	p.dirty[owner] = struct{}{}
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *Proxy) takeDirty() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	owners := slices.Sorted(maps.Keys(p.dirty))
	clear(p.dirty)
	return owners
}

// Ready is closed once the kernel has all that the cache had when Run began.
func (p *Proxy) Ready() <-chan struct{} { return p.ready }

const (
	retryInterval = time.Second
	checkInterval = 30 * time.Second // how often the table's presence is checked
)

// Run keeps the kernel current until ctx ends. The cache must have synced. The
// table stays: connections to Services work while nothing runs.
func (p *Proxy) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.health.run(ctx) })
	g.Go(func() error { return p.flows.run(ctx) })
	g.Go(func() error { return p.sync(ctx) })
	return g.Wait()
}

func (p *Proxy) sync(ctx context.Context) error {
	defer p.kernel.Close()
	check := p.c.Clock.NewTicker(checkInterval)
	defer check.Stop()
	rebuild := true
	var retry <-chan time.Time
	for {
		if err := p.apply(p.takeDirty(), rebuild); err != nil {
			slog.ErrorContext(ctx, "program service rules", "table", p.c.Table, "err", err)
			rebuild, retry = true, p.c.Clock.After(retryInterval)
		} else {
			rebuild, retry = false, nil
			p.markReady()
			if p.applied != nil {
				p.applied()
			}
		}
		for again := false; !again; {
			select {
			case <-ctx.Done():
				return nil
			case <-retry:
				again = true
			case <-p.wake:
				again = retry == nil
			case <-check.C():
				rebuild = rebuild || !p.present(ctx)
				again = rebuild && retry == nil
			}
		}
	}
}

func (p *Proxy) markReady() {
	select {
	case <-p.ready:
	default:
		close(p.ready)
	}
}

// present tells whether the table is still there: whoever flushes the whole
// ruleset, as firewalls do when they restart, takes it along.
func (p *Proxy) present(ctx context.Context) bool {
	found, err := tableExists(p.c.Table, p.c.NetNS)
	if err != nil {
		slog.WarnContext(ctx, "look for the table of service rules", "table", p.c.Table, "err", err)
		return true
	}
	return found
}

func tableExists(name string, netns int) (bool, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(netns))
	if err != nil {
		return false, err
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == name }), nil
}

// apply replans owners and brings the kernel up to date, with a new table if rebuild is set.
func (p *Proxy) apply(owners []string, rebuild bool) error {
	here := p.node()
	stale := map[frontend][]netip.AddrPort{}
	for _, owner := range owners {
		f := p.plan(here, owner)
		maps.Copy(stale, datagramChanges(p.state.fragments[owner], f))
		p.state.set(owner, f)
	}
	b := nft.NewBatch(p.c.Table)
	if rebuild {
		p.state.forget()
		p.base().write(b)
	}
	d := p.state.diff()
	p.state.write(d, b)
	if err := p.kernel.Commit(b); err != nil {
		return fmt.Errorf("nftables transaction of %d messages: %w", b.Len(), err)
	}
	p.state.committed(d)
	p.flows.clean(stale)
	p.health.set(p.state.fragments, owners)
	return nil
}

func (p *Proxy) base() base {
	return base{bridge: p.c.Bridge, pods: p.c.PodCIDR.Masked(), local: p.c.NodeCIDR.Masked(),
		services: p.c.ServiceCIDR.Masked(), nodePortAddresses: p.c.NodePortAddresses}
}

func (p *Proxy) node() node {
	n := node{name: p.c.NodeName, pods: p.c.PodCIDR.Masked(), externalIPs: p.c.AllowExternalIPs}
	if obj, ok := p.nodes.Cached("", p.c.NodeName); ok {
		n.zone = obj.Labels[corev1.LabelTopologyZone]
	}
	return n
}

func (p *Proxy) plan(here node, owner string) *fragment {
	if key, ok := strings.CutPrefix(owner, ownerService); ok {
		namespace, name, _ := strings.Cut(key, "/")
		if svc, ok := p.services.Cached(namespace, name); ok {
			return here.planService(svc, p.slices.ByIndex(byService, key))
		}
		return nil
	}
	namespace, name, _ := strings.Cut(strings.TrimPrefix(owner, ownerPod), "/")
	if pod, ok := p.pods.Cached(namespace, name); ok {
		return here.planPod(pod)
	}
	return nil
}

// Remove deletes the table of a Proxy. A table that is not there is no error.
func Remove(table string) error {
	if table == "" {
		return errors.New("no table named")
	}
	b := nft.NewBatch(table)
	b.AddTable()
	b.DeleteTable()
	return b.Commit(0)
}
