// Package nodeipam gives every node its own range of pod addresses, cut from the
// ranges of the cluster.
package nodeipam

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"proa/internal/client"
	"proa/internal/controllers"
)

// Prefix lengths of a node's ranges.
const (
	nodeBitsIPv4 = 24
	nodeBitsIPv6 = 64
)

// Controller sets spec.podCIDRs of nodes. A node that has them keeps them.
type Controller struct {
	loop   *controllers.Loop
	nodes  *client.Informer[*corev1.Node]
	events controllers.EventRecorder

	mu      sync.Mutex          // guards what follows
	pools   []*pool             // one per range of the cluster
	waiting map[string]struct{} // nodes for which no range was left
	claimed map[string][]netip.Prefix
}

// New returns a controller that cuts from ranges, at most one per IP family,
// the cluster's first family first.
func New(c controllers.Config, ranges ...netip.Prefix) (*Controller, error) {
	n := &Controller{nodes: client.Shared[*corev1.Node](c.Cache), events: c.Events("cidrAllocator"),
		waiting: map[string]struct{}{}, claimed: map[string][]netip.Prefix{}}
	for _, r := range ranges {
		p, err := newPool(r)
		if err != nil {
			return nil, err
		}
		n.pools = append(n.pools, p)
	}
	n.loop = controllers.NewLoop("node-ipam", c, n.reconcile)
	n.nodes.OnChange(func(old, node *corev1.Node) {
		n.mu.Lock()
		defer n.mu.Unlock()
		switch {
		case node == nil:
			n.markLocked(old, false)
			for name := range n.waiting {
				n.loop.Enqueue(controllers.Key{Name: name})
			}
			clear(n.waiting)
		case len(node.Spec.PodCIDRs) > 0:
			n.markLocked(node, true)
		default:
			n.loop.EnqueueObject(node)
		}
	})
	return n, nil
}

// Claim reserves the ranges of a node before it registers, and for as long as
// this controller lives: the network of the server's own node need not wait for
// its Node. It answers with the ranges that the node has among nodes, all that
// have registered so far, or else with the next free ones.
func (n *Controller) Claim(name string, nodes []*corev1.Node) ([]netip.Prefix, error) {
	n.mu.Lock()
	for _, node := range nodes {
		n.markLocked(node, true)
		if node.Name == name && len(node.Spec.PodCIDRs) > 0 {
			n.claimed[name] = prefixes(node)
		}
	}
	cidrs, has := n.claimed[name]
	n.mu.Unlock()
	if has {
		return cidrs, nil
	}
	cidrs, ok := n.take(name)
	if !ok {
		return nil, fmt.Errorf("no range of pod addresses is left for node %s", name)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.claimed[name] = cidrs
	return cidrs, nil
}

// Run works until ctx ends.
func (n *Controller) Run(ctx context.Context) error { return n.loop.Run(ctx) }

func (n *Controller) markLocked(node *corev1.Node, taken bool) {
	for _, cidr := range prefixes(node) {
		for _, p := range n.pools {
			p.mark(cidr, taken)
		}
	}
	if taken {
		return
	}
	for _, cidrs := range n.claimed {
		for i, cidr := range cidrs {
			n.pools[i].mark(cidr, true)
		}
	}
}

func prefixes(node *corev1.Node) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range node.Spec.PodCIDRs {
		if cidr, err := netip.ParsePrefix(text); err == nil { // the API server lets no others in
			out = append(out, cidr)
		}
	}
	return out
}

func (n *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	node, ok := n.nodes.Cached("", key.Name)
	if !ok || len(node.Spec.PodCIDRs) > 0 || node.DeletionTimestamp != nil {
		return controllers.Result{}, nil
	}
	cidrs, ok := n.take(node.Name)
	if !ok {
		n.events.Eventf(node, corev1.EventTypeNormal, "CIDRNotAvailable", "Node %s status is now: CIDRNotAvailable", node.Name)
		return controllers.Result{}, nil
	}
	texts := make([]string, len(cidrs))
	for i, cidr := range cidrs {
		texts[i] = cidr.String()
	}
	_, err := n.nodes.MergePatch(ctx, "", node.Name, map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"spec":     map[string]any{"podCIDR": texts[0], "podCIDRs": texts},
	})
	if err == nil {
		return controllers.Result{}, nil
	}
	if timedOut(err) {
		// It may have been written: the ranges stay taken until the node tells.
		slog.WarnContext(ctx, "node ranges of unknown state", "node", node.Name, "ranges", texts)
		return controllers.Result{}, err
	}
	n.release(node.Name, cidrs)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return controllers.Result{}, nil
	}
	n.events.Eventf(node, corev1.EventTypeNormal, "CIDRAssignmentFailed", "Node %s status is now: CIDRAssignmentFailed", node.Name)
	return controllers.Result{}, err
}

func timedOut(err error) bool {
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.ReasonForError(err) == ""
}

// take reserves a range of every pool. A node that gets none is looked at again
// when another goes.
func (n *Controller) take(node string) ([]netip.Prefix, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if cidrs, ok := n.claimed[node]; ok {
		return cidrs, true
	}
	var taken []netip.Prefix
	for _, p := range n.pools {
		cidr, ok := p.take()
		if !ok {
			for i, t := range taken {
				n.pools[i].mark(t, false)
			}
			n.waiting[node] = struct{}{}
			return nil, false
		}
		taken = append(taken, cidr)
	}
	return taken, true
}

func (n *Controller) release(node string, cidrs []netip.Prefix) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.claimed[node]; ok {
		return
	}
	for i, cidr := range cidrs {
		n.pools[i].mark(cidr, false)
	}
}

// pool cuts one range of the cluster into ranges for nodes, lowest first.
type pool struct {
	whole netip.Prefix
	bits  int // prefix length of a node's range
	used  map[uint64]bool
	next  uint64 // everything below is used
	size  uint64
}

// largestPoolBits bounds how many ranges are cut from one of the cluster.
const largestPoolBits = 16

func newPool(whole netip.Prefix) (*pool, error) {
	p := &pool{whole: whole.Masked(), bits: nodeBitsIPv4, used: map[uint64]bool{}}
	if whole.Addr().Is6() {
		p.bits = nodeBitsIPv6
	}
	if p.whole.Bits() > p.bits {
		return nil, fmt.Errorf("cluster range %s is smaller than the /%d of one node", whole, p.bits)
	}
	p.size = 1 << min(p.bits-p.whole.Bits(), largestPoolBits)
	return p, nil
}

func (p *pool) take() (netip.Prefix, bool) {
	for p.next < p.size && p.used[p.next] {
		p.next++
	}
	if p.next == p.size {
		return netip.Prefix{}, false
	}
	p.used[p.next] = true
	return p.at(p.next), true
}

// mark notes that a range is taken or free. One outside of the pool is ignored;
// a wider or narrower one takes all that it overlaps.
func (p *pool) mark(cidr netip.Prefix, taken bool) {
	cidr = cidr.Masked()
	if !p.whole.Overlaps(cidr) {
		return
	}
	first, last := uint64(0), p.size-1
	if cidr.Bits() > p.whole.Bits() {
		first = p.number(cidr.Addr())
		last = first // beyond the end in a range that is cut in part only
		if wider := p.bits - cidr.Bits(); wider > 0 {
			last = min(first+1<<wider-1, p.size-1)
		}
	}
	for i := first; i <= last; i++ {
		if taken {
			p.used[i] = true
			continue
		}
		delete(p.used, i)
		p.next = min(p.next, i)
	}
}

// number is the index of the range that holds addr.
func (p *pool) number(addr netip.Addr) (n uint64) {
	bytes, base := addr.AsSlice(), p.whole.Addr().AsSlice()
	for bit := range p.bits {
		i, mask := bit/8, byte(0x80>>(bit%8))
		n <<= 1
		if bytes[i]&mask != base[i]&mask {
			n |= 1
		}
	}
	return n
}

func (p *pool) at(n uint64) netip.Prefix {
	bytes := slices.Clone(p.whole.Addr().AsSlice())
	for bit := p.bits - 1; n > 0; bit-- {
		if n&1 == 1 {
			bytes[bit/8] |= 0x80 >> (bit % 8)
		}
		n >>= 1
	}
	addr, _ := netip.AddrFromSlice(bytes)
	return netip.PrefixFrom(addr, p.bits)
}
