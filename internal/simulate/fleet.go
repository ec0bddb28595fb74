package simulate

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"strconv"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"proa/internal/client"
)

// Fleet is a number of equal nodes, sim-0, sim-1 and so on.
type Fleet struct {
	// Nodes there shall be. Further ones of an earlier, larger fleet are deleted.
	// Negative: the fleet is left as it is.
	Nodes int
	// Allocatable of each; default 32 cores, 256Gi and 110 pods.
	Allocatable corev1.ResourceList
	Zones       int // that they are spread over; default 3
	Labels      map[string]string
	// Tainted nodes take only pods that tolerate kwok.x-k8s.io/node=fake, so that
	// a real node beside them keeps the others.
	Tainted bool
}

const (
	fleetPrefix = "sim-"
	atOnce      = 64 // nodes made or deleted
)

var fleetName = regexp.MustCompile(`^` + fleetPrefix + `(0|[1-9]\d*)$`)

// roomy is what a node offers whose maker does not say.
func roomy() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
	}
}

// makeFleet brings the number of nodes about.
func (s *Simulator) makeFleet(ctx context.Context) error {
	f := s.config.Fleet
	if f.Nodes < 0 {
		return nil
	}
	nodes := client.Of[*corev1.Node](s.config.Cache.API())
	have := map[int]bool{}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, node := range s.nodes.Select("", labels.Everything()) {
		n, ok := fleetNumber(node)
		switch {
		case ok && n < f.Nodes:
			have[n] = true
		case ok:
			g.Go(func() error {
				if _, err := nodes.Delete(ctx, "", node.Name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
					return err
				}
				return nil
			})
		}
	}
	for n := range f.Nodes {
		if have[n] {
			continue
		}
		g.Go(func() error {
			if _, err := nodes.Create(ctx, s.fleetNode(n)); !apierrors.IsAlreadyExists(err) {
				return err
			}
			return nil
		})
	}
	return g.Wait()
}

func fleetNumber(node *corev1.Node) (int, bool) {
	match := fleetName.FindStringSubmatch(node.Name)
	if match == nil || !Simulated(node) {
		return 0, false
	}
	n, err := strconv.Atoi(match[1])
	return n, err == nil
}

// fleetNode is node n as it registers, Ready unless stages are to make it so.
func (s *Simulator) fleetNode(n int) *corev1.Node {
	f := s.config.Fleet
	name := fleetPrefix + strconv.Itoa(n)
	zone := fmt.Sprintf("zone-%d", n%cmp.Or(f.Zones, 3))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name,
		Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", "type": "kwok",
			corev1.LabelTopologyZone: zone, corev1.LabelTopologyRegion: "simulated",
		},
		Annotations: map[string]string{Marked: Fake},
	}}
	maps.Copy(node.Labels, f.Labels)
	if s.config.Port != 0 {
		node.Annotations[MetricsPath] = ResourceMetrics(name)
	}
	if cidr, ok := fleetCIDR(n); ok {
		node.Spec.PodCIDR, node.Spec.PodCIDRs = cidr.String(), []string{cidr.String()}
	}
	if f.Tainted {
		node.Spec.Taints = []corev1.Taint{{Key: Marked, Value: Fake, Effect: corev1.TaintEffectNoSchedule}}
	}
	node.Status.Allocatable = f.Allocatable.DeepCopy()
	if node.Status.Allocatable == nil {
		node.Status.Allocatable = roomy()
	}
	node.Status.Capacity = node.Status.Allocatable.DeepCopy()
	if !s.stages.Has(nodeKind) {
		s.completeNode(node)
	}
	return node
}

// MetricsPath is the annotation of a node whose resource metrics are not at
// /metrics/resource; metrics-server knows it, too.
const MetricsPath = "metrics.k8s.io/resource-metrics-path"

// ResourceMetrics is where the resource metrics of a simulated node are.
func ResourceMetrics(node string) string { return "/metrics/nodes/" + node + "/metrics/resource" }
