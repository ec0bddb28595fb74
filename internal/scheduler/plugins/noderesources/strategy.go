package noderesources

import (
	"context"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/scheduler/framework"
)

// StrategyType is how full a node should be.
type StrategyType string

const (
	LeastAllocated           StrategyType = "LeastAllocated"
	MostAllocated            StrategyType = "MostAllocated"
	RequestedToCapacityRatio StrategyType = "RequestedToCapacityRatio"
)

// Strategy ranks nodes by what would be requested of them with the pod there.
type Strategy struct {
	Type      StrategyType
	Resources []Weighted   // none: cpu and memory, weight 1
	Shape     []ShapePoint // of RequestedToCapacityRatio, by rising Utilization
}

// Weighted is a resource and how much it matters.
type Weighted struct {
	Name   corev1.ResourceName
	Weight int64
	scalar bool
}

// ShapePoint gives a score of 0 to 10 to a utilization in percent.
type ShapePoint struct{ Utilization, Score int64 }

const maxShapeScore = 10

func (s Strategy) withDefaults() Strategy {
	if s.Type == "" {
		s.Type = LeastAllocated
	}
	if len(s.Resources) == 0 {
		s.Resources = []Weighted{{Name: corev1.ResourceCPU, Weight: 1}, {Name: corev1.ResourceMemory, Weight: 1}}
	}
	s.Resources = slices.Clone(s.Resources)
	for i := range s.Resources {
		s.Resources[i].scalar = framework.IsScalar(s.Resources[i].Name)
	}
	return s
}

// usage returns what would be requested of a node with the pod on it, and what
// it has. Pods without requests count by the defaults if counted.
func usage(name corev1.ResourceName, pod *framework.PodInfo, node *framework.NodeInfo, counted bool) (requested, allocatable int64) {
	switch {
	case name == corev1.ResourceCPU && counted:
		return node.CountedMilliCPU + pod.CountedMilliCPU, node.Allocatable.MilliCPU
	case name == corev1.ResourceMemory && counted:
		return node.CountedMemory + pod.CountedMemory, node.Allocatable.Memory
	}
	return node.Requested.Of(name) + pod.Requests.Of(name), node.Allocatable.Of(name)
}

func (s *Strategy) score(pod *framework.PodInfo, node *framework.NodeInfo) int64 {
	var sum, weights int64
	for _, r := range s.Resources {
		if r.scalar && pod.Requests.Of(r.Name) == 0 {
			continue // a node is not better for what the pod does not use
		}
		requested, allocatable := usage(r.Name, pod, node, true)
		if allocatable == 0 {
			continue
		}
		v := s.one(requested, allocatable)
		if s.Type == RequestedToCapacityRatio && v == 0 {
			continue
		}
		sum += v * r.Weight
		weights += r.Weight
	}
	if weights == 0 {
		return 0
	}
	if s.Type == RequestedToCapacityRatio {
		return int64(math.Round(float64(sum) / float64(weights)))
	}
	return sum / weights
}

func (s *Strategy) one(requested, allocatable int64) int64 {
	switch s.Type {
	case MostAllocated:
		return framework.MaxNodeScore * min(requested, allocatable) / allocatable
	case RequestedToCapacityRatio:
		percent := int64(100)
		if requested <= allocatable {
			percent = requested * 100 / allocatable
		}
		return s.shaped(percent)
	}
	if requested > allocatable {
		return 0
	}
	return framework.MaxNodeScore * (allocatable - requested) / allocatable
}

// shaped interpolates between the points of the shape.
func (s *Strategy) shaped(percent int64) int64 {
	const scale = framework.MaxNodeScore / maxShapeScore
	for i, p := range s.Shape {
		if percent > p.Utilization {
			continue
		}
		if i == 0 {
			return p.Score * scale
		}
		q := s.Shape[i-1]
		return scale*q.Score + scale*(p.Score-q.Score)*(percent-q.Utilization)/(p.Utilization-q.Utilization)
	}
	return s.Shape[len(s.Shape)-1].Score * scale
}

const BalancedName = "NodeResourcesBalancedAllocation"

// BalancedArgs of NodeResourcesBalancedAllocation.
type BalancedArgs struct{ Resources []Weighted } // none: cpu and memory

// Balanced prefers nodes where the pod makes the use of resources more even.
type Balanced struct{ resources []Weighted }

func NewBalanced(h *framework.Handle) (framework.Plugin, error) {
	b := &Balanced{}
	if args, ok := h.Args.(*BalancedArgs); ok && args != nil {
		b.resources = args.Resources
	}
	b.resources = Strategy{Resources: b.resources}.withDefaults().Resources
	return b, nil
}

func (*Balanced) Name() string { return BalancedName }

func (*Balanced) Local(*framework.PodInfo) bool { return true }

// PreScore skips a pod that asks for nothing: it would make every node look balanced.
func (b *Balanced) PreScore(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, _ []*framework.NodeInfo) *framework.Status {
	for _, r := range b.resources {
		if pod.Requests.Of(r.Name) > 0 {
			return nil
		}
	}
	return framework.NewStatus(framework.Skip)
}

// Score is 1 minus the standard deviation of the used shares, with the pod there.
func (b *Balanced) Score(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) (int64, *framework.Status) {
	var few [4]float64
	shares := few[:0]
	for _, r := range b.resources {
		if r.scalar && pod.Requests.Of(r.Name) == 0 {
			continue
		}
		requested, allocatable := usage(r.Name, pod, node, false)
		if allocatable > 0 {
			shares = append(shares, min(float64(requested)/float64(allocatable), 1))
		}
	}
	return int64(evenness(shares) * float64(framework.MaxNodeScore)), nil
}

// evenness is 1 minus the standard deviation.
func evenness(shares []float64) float64 {
	if len(shares) < 2 {
		return 1
	}
	if len(shares) == 2 {
		return 1 - math.Abs(shares[0]-shares[1])/2
	}
	var mean, sum float64
	for _, s := range shares {
		mean += s
	}
	mean /= float64(len(shares))
	for _, s := range shares {
		sum += (s - mean) * (s - mean)
	}
	return 1 - math.Sqrt(sum/float64(len(shares)))
}

func (*Balanced) EventsToRegister() []framework.HintedEvent { return nil }
