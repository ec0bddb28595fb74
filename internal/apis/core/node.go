package core

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/apis"
)

// Nodes is the core/v1 nodes resource.
var Nodes = apis.Resource{
	Version: "v1", Kind: "Node", Plural: "nodes", Short: []string{"no"}, Scope: apis.Cluster,
	ChecksNameOnUpdate: true,
	New:                apis.New[corev1.Node], NewList: apis.NewList[corev1.NodeList],
	NoGeneration: true,
	Subresources: []apis.Subresource{
		{Name: "proxy", Version: "v1", Kind: "NodeProxyOptions", Verbs: []string{"create", "delete", "get", "patch", "update"}},
		apis.Writable("status", prepareNodeStatus, validateNodeUpdate),
	},
	Default:        apis.On(defaultNode),
	PrepareCreate:  apis.On(prepareNode),
	PrepareUpdate:  apis.OnUpdate(prepareNodeUpdate),
	Validate:       apis.Check(validateNode),
	ValidateUpdate: apis.CheckUpdate(validateNodeUpdate),
	Fields: apis.Selectable(map[string]func(*corev1.Node) string{
		"spec.unschedulable": func(n *corev1.Node) string { return strconv.FormatBool(n.Spec.Unschedulable) },
	}),
	Columns: nodeColumns,
	Row:     apis.Cells(nodeRow),
}

// defaultNode takes what a node has for what it can give, unless the node says.
// Of its pod ranges the first has a field of its own, which leads.
func defaultNode(n *corev1.Node) {
	s := &n.Spec
	if s.PodCIDR != "" && (len(s.PodCIDRs) == 0 || s.PodCIDRs[0] != s.PodCIDR) {
		s.PodCIDRs = []string{s.PodCIDR}
	}
	if len(s.PodCIDRs) > 0 {
		s.PodCIDR = s.PodCIDRs[0]
	}
	if len(n.Status.Allocatable) == 0 && n.Status.Capacity != nil {
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	}
}

// Dynamic kubelet configuration is gone: its field is dropped where it was never set.
func prepareNode(n *corev1.Node) {
	n.Spec.ConfigSource = nil
	n.Status.NodeInfo.KubeProxyVersion = ""
}

func prepareNodeUpdate(n, old *corev1.Node) {
	n.Status = old.Status
	if old.Spec.ConfigSource == nil {
		n.Spec.ConfigSource = nil
	}
}

func prepareNodeStatus(n, old *corev1.Node) {
	n.Spec = old.Spec
	if old.Status.Config == nil {
		n.Status.Config = nil
	}
}
