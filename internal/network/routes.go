package network

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// Reasons of the condition NetworkUnavailable, as upstream's route controller gives them.
const (
	reasonRouted   = "RouteCreated"
	reasonUnrouted = "NoRouteCreated"
)

const (
	routeRetry = 10 * time.Second // for what could not be written
	routeCheck = time.Minute      // a link that goes down takes its routes along
)

func (n *Network) nodeChanged(old, new *corev1.Node) {
	if old != nil && new != nil && old.UID == new.UID && old.Spec.PodCIDR == new.Spec.PodCIDR && internalIP(old) == internalIP(new) &&
		equality.Semantic.DeepEqual(unavailable(old), unavailable(new)) {
		return
	}
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// keepRoutes leads what is for other nodes' pods to those nodes, and tells in the
// Node's condition when that is not possible.
func (n *Network) keepRoutes(ctx context.Context, own netip.Prefix) error {
	defer n.routes.Close()
	said := ""
	for {
		peers := peersOf(n.nodes.Select("", labels.Everything()), n.c.NodeName, n.c.PodCIDR, own)
		want := map[netip.Prefix]netip.Addr{}
		for _, p := range peers {
			want[p.cidr] = p.gateway
		}
		failed, err := n.routes.Set(want)
		wait := routeCheck
		if err != nil || len(failed) > 0 {
			wait = routeRetry
		}
		if text := problems(peers, failed, err); text != said {
			if said = text; text != "" {
				slog.WarnContext(ctx, "routes to other nodes", "err", text)
			}
		}
		if err := n.tellNode(ctx, peers, failed); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "tell of routes in the Node", "err", err)
			wait = routeRetry
		}
		select {
		case <-n.wake:
		case <-n.c.Clock.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// peer is another node and its pods.
type peer struct {
	name    string
	cidr    netip.Prefix
	gateway netip.Addr
	older   bool // it was here before this node
}

// peersOf lists the nodes besides self, the oldest first. A node says itself
// which addresses it has, so it gets only what no older node has, nothing of this
// one's own, and nothing beyond the cluster's range.
func peersOf(nodes []*corev1.Node, self string, cluster, own netip.Prefix) []peer {
	slices.SortStableFunc(nodes, func(a, b *corev1.Node) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	taken := []netip.Prefix{own}
	here := slices.IndexFunc(nodes, func(node *corev1.Node) bool { return node.Name == self })
	var out []peer
	for i, node := range nodes {
		cidr, err := netip.ParsePrefix(node.Spec.PodCIDR)
		gateway := internalIP(node)
		if i == here || err != nil || !gateway.IsValid() || !within(cluster, cidr) || slices.ContainsFunc(taken, cidr.Overlaps) {
			continue
		}
		taken = append(taken, cidr)
		out = append(out, peer{name: node.Name, cidr: cidr.Masked(), gateway: gateway, older: i < here})
	}
	return out
}

func within(whole, part netip.Prefix) bool {
	return part.Bits() > whole.Bits() && whole.Contains(part.Addr())
}

// internalIP is a node's first internal IPv4 address, zero when it has none.
func internalIP(node *corev1.Node) netip.Addr {
	for _, a := range node.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP && addr.Is4() {
			return addr
		}
	}
	return netip.Addr{}
}

func problems(peers []peer, failed map[netip.Prefix]error, err error) string {
	var lines []string
	if err != nil {
		lines = append(lines, err.Error())
	}
	for _, p := range peers {
		if err := failed[p.cidr]; err != nil {
			lines = append(lines, fmt.Sprintf("no route to the pods %s of node %s through %s: %v", p.cidr, p.name, p.gateway, err))
		}
	}
	return strings.Join(lines, "; ")
}

// tellNode sets the condition NetworkUnavailable. Of two nodes with no route
// between them, the one that came later is the one that is not available: a
// cluster goes on when a node joins from afar. A node without others says nothing.
func (n *Network) tellNode(ctx context.Context, peers []peer, failed map[netip.Prefix]error) error {
	node, ok := n.nodes.Cached("", n.c.NodeName)
	if !ok || len(peers) == 0 && unavailable(node) == nil {
		return nil
	}
	want := corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: reasonRouted,
		Message: "there is a route to the pods of every node that came earlier"}
	older := slices.DeleteFunc(slices.Clone(peers), func(p peer) bool { return !p.older })
	if text := problems(older, failed, nil); text != "" {
		want.Status, want.Reason, want.Message = corev1.ConditionTrue, reasonUnrouted, text
	}
	have := unavailable(node)
	if have != nil && have.Status == want.Status && have.Reason == want.Reason && have.Message == want.Message {
		return nil
	}
	now := metav1.NewTime(n.c.Clock.Now())
	want.LastHeartbeatTime, want.LastTransitionTime = now, now
	if have != nil && have.Status == want.Status {
		want.LastTransitionTime = have.LastTransitionTime
	}
	return n.patchCondition(ctx, want)
}

func unavailable(node *corev1.Node) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeNetworkUnavailable {
			return &corev1.NodeCondition{Status: c.Status, Reason: c.Reason, Message: c.Message, LastTransitionTime: c.LastTransitionTime}
		}
	}
	return nil
}

func (n *Network) patchCondition(ctx context.Context, c corev1.NodeCondition) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{c}}})
	if err != nil {
		return err
	}
	_, err = n.nodes.Resource.Patch(ctx, "", n.c.NodeName, types.StrategicMergePatchType, patch, "status")
	return err
}
