package node

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// localPathAnnotation tells the provisioner of the class local-path where this
// node keeps its volumes.
const localPathAnnotation = "proa.dev/local-path-root"

// cloudIPs tells a cloud controller manager which addresses the node was given.
const cloudIPs = "alpha.kubernetes.io/provided-node-ip"

// uninitialized keeps pods off a node until a cloud controller manager knows it.
var uninitialized = corev1.Taint{Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: corev1.TaintEffectNoSchedule}

// taints of a node that registers.
func (a *Agent) taints() []corev1.Taint {
	taints := slices.Clone(a.c.Configuration.RegisterWithTaints)
	if a.c.Cloud {
		taints = append(taints, uninitialized)
	}
	return taints
}

// labels every node has.
func (a *Agent) labels() map[string]string {
	arch := a.c.Machine.Architecture
	out := map[string]string{
		corev1.LabelHostname: a.c.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: arch,
		"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": arch,
	}
	maps.Copy(out, a.c.Labels)
	return out
}

// register creates the node, or takes over the one that is there: its labels are
// completed, its spec is left to others.
// Where the node does not register itself, it waits until someone has.
func (a *Agent) register(ctx context.Context) error {
	if !*a.c.Configuration.RegisterNode {
		_, err := a.Read(ctx)
		return err
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: a.c.Name, Labels: a.labels(),
		Annotations: map[string]string{
			"volumes.kubernetes.io/controller-managed-attach-detach": "true",
			localPathAnnotation: filepath.Join(a.c.RootDir, "local-path"),
		},
	}}
	node.Spec.Taints, node.Spec.ProviderID = a.taints(), a.c.Configuration.ProviderID
	if len(a.c.CloudIPs) > 0 {
		node.Annotations[cloudIPs] = strings.Join(a.c.CloudIPs, ",")
	}
	if len(a.c.PodCIDRs) > 0 {
		node.Spec.PodCIDR, node.Spec.PodCIDRs = a.c.PodCIDRs[0], a.c.PodCIDRs
	}
	a.fill(ctx, node)
	created, err := a.nodes.Create(ctx, node)
	if err == nil {
		a.events(&corev1.NodeStatus{}, &created.Status)
		a.setNode(created)
		return nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	old, err := a.nodes.Get(ctx, "", a.c.Name)
	if err != nil {
		return err
	}
	next := old.DeepCopy()
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	maps.Copy(next.Labels, a.labels())
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, localPathAnnotation, filepath.Join(a.c.RootDir, "local-path"))
	if !equality.Semantic.DeepEqual(old.ObjectMeta, next.ObjectMeta) {
		patch := map[string]any{"metadata": map[string]any{"labels": next.Labels, "annotations": next.Annotations}}
		if next, err = a.nodes.MergePatch(ctx, "", a.c.Name, patch); err != nil {
			return err
		}
	}
	a.setNode(next)
	return nil
}

// events tells of conditions that changed.
func (a *Agent) events(old, new *corev1.NodeStatus) {
	for _, c := range new.Conditions {
		before := condition(old, c.Type)
		if before != nil && before.Status == c.Status {
			continue
		}
		if name := eventName(c); name != "" {
			a.c.Recorder.Eventf(a.ref, corev1.EventTypeNormal, name, "Node %s status is now: %s", a.c.Name, name)
		}
	}
}

func eventName(c corev1.NodeCondition) string {
	on := c.Status == corev1.ConditionTrue
	pick := func(yes, no string) string {
		if on {
			return yes
		}
		return no
	}
	switch c.Type {
	case corev1.NodeReady:
		return pick("NodeReady", "NodeNotReady")
	case corev1.NodeMemoryPressure:
		return pick("NodeHasInsufficientMemory", "NodeHasSufficientMemory")
	case corev1.NodeDiskPressure:
		return pick("NodeHasDiskPressure", "NodeHasNoDiskPressure")
	case corev1.NodePIDPressure:
		return pick("NodeHasInsufficientPID", "NodeHasSufficientPID")
	}
	return ""
}
