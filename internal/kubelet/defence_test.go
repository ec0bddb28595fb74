package kubelet

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"proa/internal/kubelet/config"
	"proa/internal/kubelet/node"
)

func TestDefence(t *testing.T) {
	reserved := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
	for _, tt := range []struct {
		name       string
		change     func(*config.Configuration)
		disk       int64  // that the node shows
		keptFree   string // of memory
		podLimit   string // of memory
		thresholds int
	}{
		{"the defaults", func(*config.Configuration) {}, 100 << 30, "100Mi", "3Gi", 6},
		{"local storage is not counted", func(c *config.Configuration) { c.LocalStorageCapacityIsolation = ptr.To(false) }, 0, "100Mi", "3Gi", 6},
		{"pods are not limited together", func(c *config.Configuration) { c.EnforceNodeAllocatable = []string{"none"} }, 100 << 30, "100Mi", "4Gi", 5},
		{"a node of one threshold", func(c *config.Configuration) { c.EvictionHard = map[string]string{"memory.available": "10%"} }, 100 << 30, "429496736", "3Gi", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := config.New()
			tt.change(c)
			m := node.Machine{CPUs: 2, Memory: 4 << 30, Disk: 100 << 30}
			d, err := newDefence(c, &m, reserved)
			if err != nil {
				t.Fatal(err)
			}
			if free, limit := d.keptFree[corev1.ResourceMemory], d.podLimit[corev1.ResourceMemory]; free.String() != tt.keptFree || limit.String() != tt.podLimit {
				t.Errorf("%s kept free, pods have %s; want %s and %s", free.String(), limit.String(), tt.keptFree, tt.podLimit)
			}
			if _, counted := d.keptFree[corev1.ResourceEphemeralStorage]; m.Disk != tt.disk || counted && tt.disk == 0 || len(d.thresholds) != tt.thresholds {
				t.Errorf("disk %d, kept free %v, %d thresholds", m.Disk, d.keptFree, len(d.thresholds))
			}
		})
	}
	c := config.New()
	c.EvictionHard = map[string]string{"memory": "1Gi"}
	if _, err := newDefence(c, &node.Machine{}, nil); err == nil || err.Error() != "unsupported eviction signal memory" {
		t.Errorf("an unknown signal: %v", err)
	}
}
