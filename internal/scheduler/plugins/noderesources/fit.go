// Package noderesources has the plugins that count what nodes offer: whether a
// pod fits, how full a node gets and how evenly.
package noderesources

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/scheduler/devices"
	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/plugins/hint"
)

const FitName = "NodeResourcesFit"

// FitArgs of NodeResourcesFit.
type FitArgs struct {
	IgnoredResources      []string // extended resources that others count
	IgnoredResourceGroups []string // domains of such resources
	Strategy              Strategy // zero: LeastAllocated of cpu and memory
}

// Fit filters by free resources and scores by a Strategy.
type Fit struct {
	args     FitArgs
	strategy Strategy
	devices  *devices.Inventory
}

func NewFit(h *framework.Handle) (framework.Plugin, error) {
	f := &Fit{devices: h.Devices}
	if args, ok := h.Args.(*FitArgs); ok && args != nil {
		f.args = *args
	}
	f.strategy = f.args.Strategy.withDefaults()
	return f, f.strategy.validate()
}

func (*Fit) Name() string { return FitName }

func (*Fit) Local(*framework.PodInfo) bool { return true }

// Filter rejects a node whose free resources do not suffice, naming each that is
// short. A pod that asks for more than the node has altogether gains nothing from
// preemption.
func (f *Fit) Filter(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	r, requested, allocatable := &pod.Requests, &node.Requested, &node.Allocatable
	if int64(len(node.Pods))+1 <= allocatable.Pods &&
		(r.MilliCPU == 0 || r.MilliCPU <= allocatable.MilliCPU-requested.MilliCPU) &&
		(r.Memory == 0 || r.Memory <= allocatable.Memory-requested.Memory) &&
		(r.EphemeralStorage == 0 || r.EphemeralStorage <= allocatable.EphemeralStorage-requested.EphemeralStorage) &&
		len(r.Scalar) == 0 {
		return nil
	}
	return f.shortage(r, node)
}

// What can be short, besides extended resources.
const (
	shortPods = 1 << iota
	shortCPU
	shortMemory
	shortStorage
	allShort = 1<<iota - 1
)

// shortages has the status of every combination: in a full cluster thousands of
// nodes say the same.
var shortages = func() (made [2][allShort + 1]*framework.Status) {
	names := []string{"Too many pods", "Insufficient cpu", "Insufficient memory", "Insufficient ephemeral-storage"}
	for set := 1; set <= allShort; set++ {
		var reasons []string
		for i, name := range names {
			if set&(1<<i) != 0 {
				reasons = append(reasons, name)
			}
		}
		made[0][set] = framework.NewStatus(framework.Unschedulable, reasons...)
		made[1][set] = framework.NewStatus(framework.UnschedulableAndUnresolvable, reasons...)
	}
	return made
}()

func (f *Fit) shortage(r *framework.Resources, node *framework.NodeInfo) *framework.Status {
	set, hopeless := 0, 0
	used, total := &node.Requested, &node.Allocatable
	if int64(len(node.Pods))+1 > total.Pods {
		set |= shortPods
	}
	check := func(bit int, want, used, total int64) {
		if want == 0 || want <= total-used {
			return
		}
		set |= bit
		if want > total {
			hopeless = 1
		}
	}
	check(shortCPU, r.MilliCPU, used.MilliCPU, total.MilliCPU)
	check(shortMemory, r.Memory, used.Memory, total.Memory)
	check(shortStorage, r.EphemeralStorage, used.EphemeralStorage, total.EphemeralStorage)
	var more []string
	for _, s := range r.Scalar {
		if f.ignored(s.Name) || f.fromDevices(s.Name, total) || s.Value <= total.Of(s.Name)-used.Of(s.Name) {
			continue
		}
		more = append(more, "Insufficient "+string(s.Name))
		if s.Value > total.Of(s.Name) {
			hopeless = 1
		}
	}
	status := shortages[hopeless][set]
	if len(more) == 0 {
		return status
	}
	return framework.NewStatus([]framework.Code{framework.Unschedulable, framework.UnschedulableAndUnresolvable}[hopeless],
		append(slices.Clone(status.Reasons()), more...)...)
}

// fromDevices: a class of devices stands for the resource, and the node has none of
// it otherwise, so that DynamicResources has to find devices (KEP-5004).
func (f *Fit) fromDevices(name corev1.ResourceName, total *framework.Resources) bool {
	_, ok := f.devices.ClassOf(name)
	return ok && total.Of(name) == 0
}

func (f *Fit) ignored(name corev1.ResourceName) bool {
	if slices.Contains(f.args.IgnoredResources, string(name)) {
		return true
	}
	group, _, _ := strings.Cut(string(name), "/")
	return slices.Contains(f.args.IgnoredResourceGroups, group)
}

// Score ranks by the strategy.
func (f *Fit) Score(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) (int64, *framework.Status) {
	return f.strategy.score(pod, node), nil
}

func (f *Fit) EventsToRegister() []framework.HintedEvent {
	return []framework.HintedEvent{
		hint.On(framework.AssignedPod, framework.Delete|framework.UpdatePodScaleDown, freesSomething),
		hint.On(framework.UnscheduledPod, framework.UpdatePodScaleDown, nil),
		hint.On(framework.Node, framework.Add, func(pod *corev1.Pod, _, new any) framework.Hint {
			node, ok := new.(*corev1.Node)
			return framework.Hint(ok && f.fitsEmpty(pod, node))
		}),
		hint.On(framework.Node, framework.UpdateNodeAllocatable, func(pod *corev1.Pod, old, new any) framework.Hint {
			before, _ := old.(*corev1.Node)
			after, ok := new.(*corev1.Node)
			return framework.Hint(ok && f.fitsEmpty(pod, after) && (before == nil || grew(pod, before, after)))
		}),
	}
}

func (f *Fit) fitsEmpty(pod *corev1.Pod, node *corev1.Node) bool {
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		return true
	}
	var n framework.NodeInfo
	n.SetNode(node)
	return f.shortage(&info.Requests, &n) == nil
}

// grew tells whether the node offers more of something that the pod asks for.
func grew(pod *corev1.Pod, old, node *corev1.Node) bool {
	before, after := framework.ResourcesOf(old.Status.Allocatable), framework.ResourcesOf(node.Status.Allocatable)
	if after.Pods > before.Pods {
		return true
	}
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		return true
	}
	r := info.Requests
	if r.MilliCPU > 0 && after.MilliCPU > before.MilliCPU || r.Memory > 0 && after.Memory > before.Memory ||
		r.EphemeralStorage > 0 && after.EphemeralStorage > before.EphemeralStorage {
		return true
	}
	return slices.ContainsFunc(r.Scalar, func(s framework.Scalar) bool { return after.Of(s.Name) > before.Of(s.Name) })
}

// freesSomething: any pod that leaves frees its place; one that shrinks must
// free a resource that pod asks for.
func freesSomething(pod *corev1.Pod, old, new any) framework.Hint {
	before, after := hint.Pods(old, new)
	if before == nil || after == nil {
		return framework.Queue
	}
	want, err1 := framework.NewPodInfo(pod)
	was, err2 := framework.NewPodInfo(before)
	is, err3 := framework.NewPodInfo(after)
	if err1 != nil || err2 != nil || err3 != nil {
		return framework.Queue
	}
	w, a, b := &want.Requests, &was.Requests, &is.Requests
	return framework.Hint(w.MilliCPU > 0 && a.MilliCPU > b.MilliCPU || w.Memory > 0 && a.Memory > b.Memory ||
		slices.ContainsFunc(w.Scalar, func(s framework.Scalar) bool { return a.Of(s.Name) > b.Of(s.Name) }))
}

func (s Strategy) validate() error {
	switch s.Type {
	case LeastAllocated, MostAllocated:
		return nil
	case RequestedToCapacityRatio:
		if len(s.Shape) == 0 {
			return fmt.Errorf("scoring strategy %s needs a shape", s.Type)
		}
		return nil
	}
	return fmt.Errorf("scoring strategy %q is not supported", s.Type)
}
