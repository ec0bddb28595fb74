package framework

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const allAddresses = "0.0.0.0"

// NodeInfo is a node with its pods, bound and assumed. It belongs to the
// scheduling loop: it changes only between cycles, so plugins read without locks.
type NodeInfo struct {
	Node          *corev1.Node // nil while only its pods are known
	Index         int          // in the snapshot's nodes
	Unschedulable bool         // as spec.unschedulable
	name          string

	Pods []*PodInfo

	Requested, Allocatable         Resources
	CountedMilliCPU, CountedMemory int64
	Ports                          []HostPort
	Images                         map[string]int64 // bytes by every name of the image
	Claims                         map[string]int   // users of a claim "namespace/name"
	Disks                          int              // of all pods
	NoSchedule                     []corev1.Taint   // effects NoSchedule and NoExecute
	PreferNoSchedule               []corev1.Taint

	Generation         int64 // grows with every change
	TopologyGeneration int64 // that of the latest change of its labels or taints
}

// Name of the node.
func (n *NodeInfo) Name() string { return n.name }

// SetNode takes in the node object.
func (n *NodeInfo) SetNode(node *corev1.Node) {
	n.Node, n.name = node, node.Name
	n.Unschedulable = node.Spec.Unschedulable
	n.Allocatable = ResourcesOf(node.Status.Allocatable)
	n.Images = make(map[string]int64, len(node.Status.Images))
	for _, image := range node.Status.Images {
		for _, name := range image.Names {
			n.Images[name] = image.SizeBytes
		}
	}
	n.NoSchedule, n.PreferNoSchedule = nil, nil
	for _, t := range node.Spec.Taints {
		switch t.Effect {
		case corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute:
			n.NoSchedule = append(n.NoSchedule, t)
		case corev1.TaintEffectPreferNoSchedule:
			n.PreferNoSchedule = append(n.PreferNoSchedule, t)
		}
	}
}

// AddPod counts a pod.
func (n *NodeInfo) AddPod(p *PodInfo) {
	n.Pods = append(n.Pods, p)
	n.count(p, 1)
}

// RemovePod takes a pod off; false when it is not there.
func (n *NodeInfo) RemovePod(p *PodInfo) bool {
	var found bool
	n.Pods, found = without(n.Pods, p)
	if !found {
		return false
	}
	n.count(p, -1)
	return true
}

// ReplacePod puts a newer version of a pod with the SameDemand in place of old.
func (n *NodeInfo) ReplacePod(old, pod *PodInfo) {
	if i := lastIndex(n.Pods, old); i >= 0 {
		n.Pods[i] = pod
	}
}

// lastIndex looks from the end: most pods that change have just come.
func lastIndex(pods []*PodInfo, p *PodInfo) int {
	for i, q := range slices.Backward(pods) {
		if q == p {
			return i
		}
	}
	return -1
}

// without looks for p itself first: a node may have many pods, and reading each one's
// UID is slow.
func without(pods []*PodInfo, p *PodInfo) ([]*PodInfo, bool) {
	i := lastIndex(pods, p)
	if i < 0 {
		i = slices.IndexFunc(pods, func(q *PodInfo) bool { return q.Pod.UID == p.Pod.UID })
	}
	if i < 0 {
		return pods, false
	}
	return slices.Delete(pods, i, i+1), true
}

func (n *NodeInfo) count(p *PodInfo, sign int64) {
	n.Requested.Add(&p.Requests, sign)
	n.CountedMilliCPU += sign * p.CountedMilliCPU
	n.CountedMemory += sign * p.CountedMemory
	n.Disks += int(sign) * p.Disks
	for _, hp := range p.HostPorts {
		if sign > 0 {
			n.Ports = append(n.Ports, hp)
		} else if i := slices.Index(n.Ports, hp); i >= 0 {
			n.Ports = slices.Delete(n.Ports, i, i+1)
		}
	}
	for _, claim := range p.Claims {
		if n.Claims == nil {
			n.Claims = map[string]int{}
		}
		key := p.Pod.Namespace + "/" + claim
		if n.Claims[key] += int(sign); n.Claims[key] <= 0 {
			delete(n.Claims, key)
		}
	}
}

// PortTaken tells whether a pod of the node holds a conflicting port.
func (n *NodeInfo) PortTaken(want HostPort) bool {
	for _, p := range n.Ports {
		if p.Port == want.Port && p.Protocol == want.Protocol &&
			(p.IP == want.IP || p.IP == allAddresses || want.IP == allAddresses) {
			return true
		}
	}
	return false
}

// Clone copies n for a trial. The node object and the pods are shared.
func (n *NodeInfo) Clone() *NodeInfo {
	c := *n
	c.Pods = slices.Clone(n.Pods)
	c.Requested = n.Requested.Clone()
	c.Ports = slices.Clone(n.Ports)
	c.Claims = maps.Clone(n.Claims)
	return &c
}

// ImageName completes a name as it stands in a pod to one as it stands in a
// node's status: with a tag.
func ImageName(name string) string {
	if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		name += ":latest"
	}
	return name
}

// Snapshot is the cluster as one cycle sees it.
type Snapshot struct {
	Nodes  []*NodeInfo // one zone after the other in turn
	ByName map[string]*NodeInfo

	ImageNodes map[string]int // nodes that have an image
	ClaimUsers map[string]int // pods with a node, by claim "namespace/name"

	// Generation is that of the latest change; TopologyGeneration that of the
	// latest change of the set of nodes or of a node's labels or taints;
	// LayoutGeneration that of the latest change of Nodes, so of the nodes' Index;
	// ImageGeneration that of the latest change of ImageNodes.
	Generation, TopologyGeneration, LayoutGeneration, ImageGeneration int64

	tallies  tallies
	labelled labelled
	groups   groups
	lonely   lonely
}
