package dra

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodsOfATemplateGetDevicesOfTheirOwn(t *testing.T) {
	c := start(t, 2)
	c.class("gpu", nil)
	c.slice("sim-1-gpus", "sim-1", gpus(2))
	c.template("gpu", devices(one("r")))
	for _, name := range []string{"a", "b"} {
		c.pod(name, makes("gpu", "gpu"))
		if node := c.scheduled(name); node != "sim-1" {
			t.Errorf("pod %s is on %s", name, node)
		}
	}
	claims := until(c, c.ResourceV1().ResourceClaims(ns), metav1.ListOptions{}, func(l *resourcev1.ResourceClaimList) error { return want("claims", len(l.Items), 2) }).Items
	var given []string
	for _, claim := range claims {
		given = append(given, c.given(claim.Name))
		if !slices.Contains(claim.Finalizers, "resource.kubernetes.io/delete-protection") || len(claim.Status.ReservedFor) != 1 ||
			claim.Status.ReservedFor[0].Resource != "pods" || claim.Status.Allocation.AllocationTimestamp == nil {
			t.Errorf("claim %+v", claim)
		}
		if s := claim.Status.Allocation.NodeSelector; s == nil || s.NodeSelectorTerms[0].MatchFields[0].Values[0] != "sim-1" {
			t.Errorf("node selector %v", s)
		}
	}
	if slices.Sort(given); !slices.Equal(given, []string{"r=sim-1/gpu-0", "r=sim-1/gpu-1"}) {
		t.Errorf("given %v", given)
	}
	c.pod("c", makes("gpu", "gpu"))
	c.waits("c", "0/2 nodes are available: 2 cannot allocate all claims.")
	c.delete("a")
	c.scheduled("c")
	c.delete("b")
	c.delete("c")
	until(c, c.ResourceV1().ResourceClaims(ns), metav1.ListOptions{}, func(l *resourcev1.ResourceClaimList) error { return want("claims", len(l.Items), 0) })
}

func TestAPodWaitsForItsClaim(t *testing.T) {
	c := start(t, 1)
	c.class("gpu", nil)
	c.slice("gpus", "sim-0", gpus(1))
	c.pod("p", uses("c"))
	c.ok(c.makeClaim("c", devices(one("r"))))
	c.scheduled("p")
}

func TestDevicesAreChosenByClassAndRequest(t *testing.T) {
	c := start(t, 1)
	c.slice("gpus", "sim-0", gpus(3, func(i int, d *resourcev1.Device) {
		d.Attributes["model"] = resourcev1.DeviceAttribute{StringValue: new([]string{"old", "new", "new"}[i])}
	}))
	c.claimed("p", devices(one("r", func(e *resourcev1.ExactDeviceRequest) {
		e.Selectors = cel(`device.attributes["gpu.example.com"].index > 1`)
	})))
	c.waits("p", "request r: device class gpu does not exist")
	c.class("gpu", nil, `device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].model == "new"`)
	c.scheduled("p")
	if got := c.given("p"); got != "r=sim-0/gpu-2" {
		t.Errorf("given %s", got)
	}
	c.claimed("none", devices(one("r", func(e *resourcev1.ExactDeviceRequest) {
		e.Selectors = cel(`device.attributes["gpu.example.com"].index == 0`)
	})))
	c.waits("none", "1 cannot allocate all claims")
	c.ok(c.ResourceV1().DeviceClasses().Delete(c.ctx, "gpu", metav1.DeleteOptions{}))
	c.claimed("later", devices(one("r")))
	c.waits("later", "device class gpu does not exist")
}

func TestConstraintsHoldAcrossRequests(t *testing.T) {
	c := start(t, 1)
	c.class("gpu", nil)
	c.slice("gpus", "sim-0", gpus(4, func(i int, d *resourcev1.Device) {
		d.Attributes["numa"] = resourcev1.DeviceAttribute{IntValue: new(int64(i * i % 3))} // 0 1 1 0
	}))
	spec := func(match, distinct string) resourcev1.ResourceClaimSpec {
		s := devices(one("a", func(e *resourcev1.ExactDeviceRequest) {
			e.Selectors = cel(`device.attributes["gpu.example.com"].index >= 1`)
		}), one("b"))
		constraint := resourcev1.DeviceConstraint{Requests: []string{"a", "b"}}
		if match != "" {
			constraint.MatchAttribute = new(resourcev1.FullyQualifiedName(match))
		} else {
			constraint.DistinctAttribute = new(resourcev1.FullyQualifiedName(distinct))
		}
		s.Devices.Constraints = []resourcev1.DeviceConstraint{constraint}
		return s
	}
	c.claimed("same", spec("gpu.example.com/numa", ""))
	c.scheduled("same")
	if got := c.given("same"); got != "a=sim-0/gpu-1,b=sim-0/gpu-2" {
		t.Errorf("given %s", got)
	}
	c.claimed("other", spec("", "gpu.example.com/numa"))
	c.waits("other", "1 cannot allocate all claims") // gpu-0 and gpu-3 are of one node
	c.delete("same")
	c.scheduled("other")
	if got := c.given("other"); got != "a=sim-0/gpu-1,b=sim-0/gpu-0" {
		t.Errorf("given %s", got)
	}
	c.claimed("lacking", spec("gpu.example.com/none", ""))
	c.waits("lacking", "1 cannot allocate all claims")
}

func TestCountsAndAll(t *testing.T) {
	c := start(t, 2)
	c.class("gpu", nil)
	c.slice("few", "sim-0", gpus(2))
	count := func(n int64) resourcev1.ResourceClaimSpec {
		return devices(one("r", func(e *resourcev1.ExactDeviceRequest) { e.Count = n }))
	}
	c.claimed("three", count(3))
	c.waits("three", "2 cannot allocate all claims")
	c.slice("many", "sim-1", gpus(4))
	if node := c.scheduled("three"); node != "sim-1" || strings.Count(c.given("three"), ",") != 2 {
		t.Errorf("on %s: %s", node, c.given("three"))
	}
	all := devices(one("r", func(e *resourcev1.ExactDeviceRequest) { e.AllocationMode = resourcev1.DeviceAllocationModeAll }))
	c.claimed("all", all, onNode("sim-1"))
	c.waits("all", "cannot allocate all claims")
	c.delete("three")
	c.scheduled("all")
	if got := c.given("all"); got != "r=sim-1/gpu-0,r=sim-1/gpu-1,r=sim-1/gpu-2,r=sim-1/gpu-3" {
		t.Errorf("given %s", got)
	}
}

func TestAClaimIsSharedAndFreedByItsLastPod(t *testing.T) {
	c := start(t, 2)
	c.class("gpu", nil)
	c.slice("gpus", "sim-1", gpus(4))
	c.ok(c.makeClaim("shared", devices(one("r"))))
	for i := range 5 {
		c.pod(fmt.Sprint("p", i), uses("shared"))
	}
	for i := range 5 {
		if node := c.scheduled(fmt.Sprint("p", i)); node != "sim-1" {
			t.Errorf("p%d is on %s", i, node)
		}
	}
	first := c.given("shared")
	c.claim("shared", func(claim *resourcev1.ResourceClaim) error { return want("users", len(claim.Status.ReservedFor), 5) })
	for i := range 4 {
		c.delete(fmt.Sprint("p", i))
	}
	c.claim("shared", func(claim *resourcev1.ResourceClaim) error { return want("users", len(claim.Status.ReservedFor), 1) })
	if c.given("shared") != first {
		t.Errorf("first %s, then %s", first, c.given("shared"))
	}
	c.pod("elsewhere", uses("shared"), onNode("sim-0"))
	c.waits("elsewhere", "resourceclaim not available on the node")
	c.delete("elsewhere")
	c.delete("p4")
	c.free("shared")
}

func TestAClaimHas256Users(t *testing.T) {
	c := start(t, 4)
	c.class("gpu", nil)
	c.slice("gpus", "shared", gpus(1), func(s *resourcev1.ResourceSliceSpec) { s.NodeName, s.AllNodes = nil, new(true) })
	c.ok(c.makeClaim("shared", devices(one("r"))))
	for i := range 256 {
		c.pod(fmt.Sprint("p", i), uses("shared"), func(p *corev1.Pod) { p.Spec.Containers[0].Resources = corev1.ResourceRequirements{} })
	}
	c.claim("shared", func(claim *resourcev1.ResourceClaim) error { return want("users", len(claim.Status.ReservedFor), 256) })
}

func TestDevicesThatCannotBeReachedAreGivenUp(t *testing.T) {
	c := start(t, 2)
	c.class("gpu", nil)
	c.slice("gpus-0", "sim-0", gpus(1))
	c.slice("gpus-1", "sim-1", gpus(1))
	c.ok(c.makeClaim("c", devices(one("r"))))
	// Somebody allocated it, and nobody uses it.
	c.ok(c.status("c", func(claim *resourcev1.ResourceClaim) {
		claim.Status.Allocation = &resourcev1.AllocationResult{
			Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{Request: "r", Driver: driver, Pool: "sim-0", Device: "gpu-0"}}},
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
				Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"sim-0"},
			}}}}},
		}
	}))
	c.pod("p", uses("c"), onNode("sim-1"))
	if node := c.scheduled("p"); node != "sim-1" || c.given("c") != "r=sim-1/gpu-0" {
		t.Errorf("on %s: %s", node, c.given("c"))
	}
}
