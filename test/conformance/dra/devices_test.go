package dra

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func shared(s *resourcev1.ResourceSliceSpec) { s.NodeName, s.AllNodes = nil, new(true) }

func TestDevicesOfTheNetworkAreReachedFromSomeNodes(t *testing.T) {
	c := start(t, 3)
	c.class("gpu", nil)
	for i, zone := range []string{"a", "b", "b"} {
		_, err := c.CoreV1().Nodes().Patch(c.ctx, fmt.Sprint("sim-", i), types.MergePatchType, []byte(`{"metadata":{"labels":{"zone":"`+zone+`"}}}`), metav1.PatchOptions{})
		c.ok(err)
	}
	zone := func(name string) *corev1.NodeSelector {
		return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{name},
		}}}}}
	}
	c.slice("zone-a", "pool", gpus(2), func(s *resourcev1.ResourceSliceSpec) { s.NodeName, s.NodeSelector = nil, zone("a") })
	c.claimed("p", devices(one("r")))
	if node := c.scheduled("p"); node != "sim-0" {
		t.Errorf("on %s", node)
	}
	claim := c.claim("p", func(*resourcev1.ResourceClaim) error { return nil })
	if s := claim.Status.Allocation.NodeSelector; s == nil || s.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != "a" {
		t.Errorf("node selector %v", s)
	}
	c.claimed("away", devices(one("r")), onNode("sim-1"))
	c.waits("away", "cannot allocate all claims")
	c.slice("single", "single", gpus(2, func(i int, d *resourcev1.Device) {
		d.Attributes["single"] = resourcev1.DeviceAttribute{BoolValue: new(true)}
		if i == 0 {
			d.NodeName = new("sim-2")
		} else {
			d.NodeSelector = zone("a")
		}
	}), func(s *resourcev1.ResourceSliceSpec) { s.NodeName, s.PerDeviceNodeSelection = nil, new(true) })
	c.claimed("single", devices(one("r", func(e *resourcev1.ExactDeviceRequest) {
		e.Selectors = cel(`has(device.attributes["gpu.example.com"].single)`)
	})), func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "b"} })
	if node := c.scheduled("single"); node != "sim-2" || c.given("single") != "r=single/gpu-0" {
		t.Errorf("on %s: %s", node, c.given("single"))
	}
	c.slice("everywhere", "everywhere", gpus(1), shared)
	if node := c.scheduled("away"); node != "sim-1" || c.given("away") != "r=everywhere/gpu-0" {
		t.Errorf("on %s: %s", node, c.given("away"))
	}
	if s := c.claim("away", func(*resourcev1.ResourceClaim) error { return nil }).Status.Allocation.NodeSelector; s != nil {
		t.Errorf("node selector %v", s)
	}
}

func TestAPoolIsUsedWhenItIsComplete(t *testing.T) {
	c := start(t, 1)
	c.class("gpu", nil)
	generation := func(g, of int64) func(*resourcev1.ResourceSliceSpec) {
		return func(s *resourcev1.ResourceSliceSpec) { s.Pool.Generation, s.Pool.ResourceSliceCount = g, of }
	}
	device := func(i int) []resourcev1.Device { return gpus(i + 1)[i:] }
	c.slice("first", "sim-0", device(0), generation(1, 2))
	c.claimed("a", devices(one("r")))
	c.waits("a", "cannot allocate all claims")
	c.slice("second", "sim-0", device(1), generation(1, 2))
	c.scheduled("a")
	if got := c.given("a"); got != "r=sim-0/gpu-0" {
		t.Errorf("given %s", got)
	}
	// A new generation takes the place of the old one.
	c.slice("third", "sim-0", device(2), generation(2, 1))
	c.claimed("b", devices(one("r")))
	c.scheduled("b")
	if got := c.given("b"); got != "r=sim-0/gpu-2" {
		t.Errorf("given %s", got)
	}
	list, err := c.ResourceV1().ResourceSlices().List(c.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=sim-0,spec.driver=" + driver})
	c.ok(err)
	if len(list.Items) != 3 {
		t.Errorf("%d slices", len(list.Items))
	}
}

func TestOpaqueConfigsComeWithTheAllocation(t *testing.T) {
	c := start(t, 1)
	opaque := func(text string) resourcev1.DeviceConfiguration {
		return resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(text)}}}
	}
	c.class("gpu", func(s *resourcev1.DeviceClassSpec) {
		s.Config = []resourcev1.DeviceClassConfiguration{{DeviceConfiguration: opaque(`{"of":"class"}`)}}
	})
	c.slice("gpus", "sim-0", gpus(1))
	spec := devices(one("r"))
	spec.Devices.Config = []resourcev1.DeviceClaimConfiguration{{DeviceConfiguration: opaque(`{"of":"claim","unknown":[1]}`)}}
	c.claimed("p", spec)
	c.scheduled("p")
	got := c.claim("p", func(*resourcev1.ResourceClaim) error { return nil }).Status.Allocation.Devices.Config
	if len(got) != 2 || got[0].Source != resourcev1.AllocationConfigSourceClass || got[1].Source != resourcev1.AllocationConfigSourceClaim ||
		string(got[0].Opaque.Parameters.Raw) != `{"of":"class"}` || string(got[1].Opaque.Parameters.Raw) != `{"of":"claim","unknown":[1]}` {
		t.Errorf("config %+v", got)
	}
	spec.Devices.Config[0].DeviceConfiguration = opaque(`{"a":"` + strings.Repeat("x", 10*1024) + `"}`)
	c.refused(c.makeClaim("large", spec), "config[0].opaque.parameters")
}

func TestTheFirstAlternativeWins(t *testing.T) {
	c := start(t, 2)
	c.class("gpu", nil)
	model := func(name string) func(int, *resourcev1.Device) {
		return func(_ int, d *resourcev1.Device) {
			d.Attributes["model"] = resourcev1.DeviceAttribute{StringValue: &name}
		}
	}
	c.slice("small", "sim-0", gpus(8, model("small")))
	c.slice("large", "sim-1", gpus(1, model("large")))
	is := func(name string) []resourcev1.DeviceSelector {
		return cel(`device.attributes["gpu.example.com"].model == "` + name + `"`)
	}
	spec := devices(resourcev1.DeviceRequest{Name: "r", FirstAvailable: []resourcev1.DeviceSubRequest{
		{Name: "one-large", DeviceClassName: "gpu", Selectors: is("large")},
		{Name: "two-small", DeviceClassName: "gpu", Selectors: is("small"), AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 2},
	}})
	for i, want := range []string{"r/one-large=sim-1/gpu-0", "r/two-small=sim-0/gpu-0,r/two-small=sim-0/gpu-1"} {
		name := fmt.Sprint("p", i)
		c.claimed(name, spec)
		c.scheduled(name)
		if got := c.given(name); got != want {
			t.Errorf("%s was given %s, want %s", name, got, want)
		}
	}
}

func TestPartsOfADeviceExcludeTheWhole(t *testing.T) {
	c := start(t, 1)
	c.class("gpu", nil)
	memory := func(size string) map[string]resourcev1.Counter {
		return map[string]resourcev1.Counter{"memory": {Value: resource.MustParse(size)}}
	}
	two := func(s *resourcev1.ResourceSliceSpec) { s.Pool.ResourceSliceCount = 2 }
	c.slice("counters", "sim-0", nil, two, func(s *resourcev1.ResourceSliceSpec) {
		s.SharedCounters = []resourcev1.CounterSet{{Name: "gpu-0", Counters: memory("40Gi")}}
	})
	c.slice("devices", "sim-0", gpus(3, func(i int, d *resourcev1.Device) {
		size := []string{"40Gi", "20Gi", "20Gi"}[i]
		d.Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse(size)}}
		d.ConsumesCounters = []resourcev1.DeviceCounterConsumption{{CounterSet: "gpu-0", Counters: memory(size)}}
	}), two)
	asks := func(size string) resourcev1.ResourceClaimSpec {
		return devices(one("r", func(e *resourcev1.ExactDeviceRequest) {
			e.Selectors = cel(`device.capacity["gpu.example.com"].memory.compareTo(quantity("` + size + `")) == 0`)
		}))
	}
	c.claimed("half-1", asks("20Gi"))
	c.scheduled("half-1")
	c.claimed("whole", asks("40Gi"))
	c.waits("whole", "cannot allocate all claims")
	c.claimed("half-2", asks("20Gi"))
	c.scheduled("half-2")
	c.delete("half-1")
	c.delete("half-2")
	c.scheduled("whole")
	c.claimed("half-3", asks("20Gi"))
	c.waits("half-3", "cannot allocate all claims")
}

func TestTheCapacityOfADeviceIsShared(t *testing.T) {
	c := start(t, 1)
	c.class("gpu", nil)
	c.slice("gpus", "sim-0", gpus(1, func(_ int, d *resourcev1.Device) {
		d.AllowMultipleAllocations = new(true)
		d.Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse("10Gi")}}
	}))
	asks := func(size string) resourcev1.ResourceClaimSpec {
		return devices(one("r", func(e *resourcev1.ExactDeviceRequest) {
			e.Capacity = &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{"memory": resource.MustParse(size)}}
		}))
	}
	for _, name := range []string{"a", "b"} {
		c.claimed(name, asks("4Gi"))
		c.scheduled(name)
		r := c.claim(name, func(*resourcev1.ResourceClaim) error { return nil }).Status.Allocation.Devices.Results[0]
		if got := r.ConsumedCapacity["memory"]; r.ShareID == nil || got.String() != "4Gi" || r.Device != "gpu-0" {
			t.Errorf("%s: %+v", name, r)
		}
	}
	c.claimed("c", asks("4Gi"))
	c.waits("c", "cannot allocate all claims")
	c.delete("a")
	c.scheduled("c")
}

func TestTaintsKeepPodsAwayAndEvictThem(t *testing.T) {
	c := start(t, 1)
	c.class("gpu", nil)
	c.slice("gpus", "sim-0", gpus(1, func(_ int, d *resourcev1.Device) {
		d.Taints = []resourcev1.DeviceTaint{{Key: "example.com/broken", Effect: resourcev1.DeviceTaintEffectNoSchedule}}
	}))
	c.claimed("p", devices(one("r")))
	c.waits("p", "cannot allocate all claims")
	c.claimed("tolerant", devices(one("r", func(e *resourcev1.ExactDeviceRequest) {
		e.Tolerations = []resourcev1.DeviceToleration{{Key: "example.com/broken", Operator: resourcev1.DeviceTolerationOpExists}}
	})))
	c.scheduled("tolerant")
	c.delete("tolerant")
	edit(c, c.ResourceV1().ResourceSlices(), "gpus", func(s *resourcev1.ResourceSlice) { s.Spec.Devices[0].Taints = nil })
	c.scheduled("p")
	rules := c.ResourceV1().DeviceTaintRules()
	_, err := rules.Create(c.ctx, &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "rule"}, Spec: resourcev1.DeviceTaintRuleSpec{
		DeviceSelector: &resourcev1.DeviceTaintSelector{Driver: new(driver), Pool: new("sim-0"), Device: new("gpu-0")},
		Taint:          resourcev1.DeviceTaint{Key: "example.com/recall", Effect: resourcev1.DeviceTaintEffectNoExecute},
	}}, metav1.CreateOptions{})
	c.ok(err)
	until(c, c.CoreV1().Pods(ns), named("p"), func(l *corev1.PodList) error { return want("pods", len(l.Items), 0) })
	until(c, c.CoreV1().Events(ns), metav1.ListOptions{FieldSelector: "reason=DeviceTaintManagerEviction"}, func(l *corev1.EventList) error {
		return want("events", len(l.Items) > 0 && l.Items[0].InvolvedObject.Name == "p" && l.Items[0].Message == "Marking for deletion", true)
	})
	c.free("p")
	c.pod("q", uses("p"))
	c.waits("q", "cannot allocate all claims")
	c.ok(rules.Delete(c.ctx, "rule", metav1.DeleteOptions{}))
	c.scheduled("q")
}

func TestAPodIsBoundWhenItsDevicesAreReady(t *testing.T) {
	c := start(t, 2)
	c.class("gpu", nil)
	for _, node := range []string{"sim-0", "sim-1"} {
		c.slice(node, node, gpus(1, func(_ int, d *resourcev1.Device) {
			d.BindingConditions, d.BindingFailureConditions = []string{"example.com/attached"}, []string{"example.com/failed"}
		}))
	}
	c.claimed("p", devices(one("r")))
	c.given("p")
	says := func(condition string) {
		t.Helper()
		c.ok(c.status("p", func(claim *resourcev1.ResourceClaim) {
			r := claim.Status.Allocation.Devices.Results[0]
			claim.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: r.Driver, Pool: r.Pool, Device: r.Device, Conditions: []metav1.Condition{{
				Type: condition, Status: metav1.ConditionTrue, Reason: "Test", Message: "test", LastTransitionTime: metav1.Now(),
			}}}}
		}))
	}
	until(c, c.CoreV1().Events(ns), metav1.ListOptions{FieldSelector: "reason=BindingConditionsPending"}, func(l *corev1.EventList) error {
		return want("events", len(l.Items) > 0 && strings.HasPrefix(l.Items[0].Message, "waiting for binding conditions for device on node sim-"), true)
	})
	if p, err := c.CoreV1().Pods(ns).Get(c.ctx, "p", metav1.GetOptions{}); err != nil || p.Spec.NodeName != "" {
		t.Fatalf("bound too early: %v", err)
	}
	// The device of the first node fails: another is looked for.
	says("example.com/failed")
	until(c, c.CoreV1().Events(ns), metav1.ListOptions{FieldSelector: "reason=FailedScheduling"}, func(l *corev1.EventList) error {
		for _, e := range l.Items {
			if strings.Contains(e.Message, `device binding failed: claim=p, reason=Test, message="test"`) {
				return nil
			}
		}
		return fmt.Errorf("%d events", len(l.Items))
	})
	c.claim("p", func(claim *resourcev1.ResourceClaim) error {
		return want("allocated anew", claim.Status.Allocation != nil && len(claim.Status.ReservedFor) == 1 && len(claim.Status.Devices) == 0, true)
	})
	says("example.com/attached")
	c.scheduled("p")
}

func TestExtendedResourcesAreServedByDevices(t *testing.T) {
	c := start(t, 2)
	c.class("gpu", func(s *resourcev1.DeviceClassSpec) { s.ExtendedResourceName = new("example.com/gpu") })
	c.slice("gpus", "sim-1", gpus(3))
	asks := func(name corev1.ResourceName, n string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			list := corev1.ResourceList{name: resource.MustParse(n)}
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
		}
	}
	c.pod("p", asks("example.com/gpu", "2"))
	if node := c.scheduled("p"); node != "sim-1" {
		t.Errorf("on %s", node)
	}
	p, err := c.CoreV1().Pods(ns).Get(c.ctx, "p", metav1.GetOptions{})
	c.ok(err)
	s := p.Status.ExtendedResourceClaimStatus
	if s == nil || !strings.HasPrefix(s.ResourceClaimName, "p-extended-resources-") || len(s.RequestMappings) != 1 ||
		s.RequestMappings[0] != (corev1.ContainerExtendedResourceRequest{ContainerName: "c", ResourceName: "example.com/gpu", RequestName: "container-0-request-0"}) {
		t.Fatalf("status %+v", s)
	}
	claim := c.claim(s.ResourceClaimName, func(*resourcev1.ResourceClaim) error { return nil })
	if len(claim.Status.Allocation.Devices.Results) != 2 || claim.Annotations["resource.kubernetes.io/extended-resource-claim"] != "true" ||
		!metav1.IsControlledBy(claim, p) || claim.Status.ReservedFor[0].UID != p.UID {
		t.Errorf("claim %+v", claim)
	}
	c.pod("implicit", asks("deviceclass.resource.kubernetes.io/gpu", "1"))
	c.scheduled("implicit")
	c.pod("more", asks("example.com/gpu", "2"))
	c.waits("more", "2 cannot allocate all claims")
	c.delete("p")
	c.scheduled("more")
	c.delete("more")
	c.delete("implicit")
	until(c, c.ResourceV1().ResourceClaims(ns), metav1.ListOptions{}, func(l *resourcev1.ResourceClaimList) error { return want("claims", len(l.Items), 0) })
}

func TestAnAdministratorSeesDevicesInUse(t *testing.T) {
	c := start(t, 1)
	c.class("gpu", nil)
	c.slice("gpus", "sim-0", gpus(1))
	c.claimed("user", devices(one("r")))
	c.scheduled("user")
	admin := devices(one("r", func(e *resourcev1.ExactDeviceRequest) { e.AdminAccess = new(true) }))
	const why = "spec.devices.requests[0].adminAccess: Forbidden: admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace"
	c.refused(c.makeClaim("admin", admin), why)
	_, err := c.ResourceV1().ResourceClaimTemplates(ns).Create(c.ctx, &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "admin"}, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: admin},
	}, metav1.CreateOptions{})
	c.refused(err, why)
	_, err = c.CoreV1().Namespaces().Patch(c.ctx, ns, types.MergePatchType, []byte(`{"metadata":{"labels":{"resource.kubernetes.io/admin-access":"true"}}}`), metav1.PatchOptions{})
	c.ok(err)
	c.claimed("admin", admin)
	c.scheduled("admin")
	r := c.claim("admin", func(*resourcev1.ResourceClaim) error { return nil }).Status.Allocation.Devices.Results[0]
	if r.Device != "gpu-0" || r.AdminAccess == nil || !*r.AdminAccess {
		t.Errorf("%+v", r)
	}
	// It does not use the device up.
	c.delete("user")
	c.free("user")
	c.pod("next", uses("user"))
	c.scheduled("next")
}

func TestDriversTellTheStateOfDevices(t *testing.T) {
	c := start(t, 1)
	c.class("gpu", nil)
	c.slice("gpus", "sim-0", gpus(2))
	c.claimed("p", devices(one("r")))
	c.scheduled("p")
	tells := func(as *cluster, device string) error {
		return as.status("p", func(claim *resourcev1.ResourceClaim) {
			claim.Status.Devices = []resourcev1.AllocatedDeviceStatus{{
				Driver: driver, Pool: "sim-0", Device: device, NetworkData: &resourcev1.NetworkDeviceData{InterfaceName: "net0", IPs: []string{"10.9.8.7/24"}},
			}}
		})
	}
	c.refused(tells(c, "gpu-1"), "must be an allocated device in the claim")
	stranger := *c
	access := rest.CopyConfig(c.access)
	access.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:default:driver"}
	var err error
	stranger.Interface, err = kubernetes.NewForConfig(access)
	c.ok(err)
	may := func(name, verbs, resources string) {
		t.Helper()
		c.ok(c.post("clusterroles", map[string]any{
			"metadata": map[string]any{"name": name},
			"rules":    []any{map[string]any{"apiGroups": []string{"resource.k8s.io"}, "verbs": strings.Fields(verbs), "resources": strings.Fields(resources)}},
		}))
		c.ok(c.post("clusterrolebindings", map[string]any{
			"metadata": map[string]any{"name": name},
			"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
			"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": "driver", "namespace": "default"}},
		}))
	}
	may("writer", "get update", "resourceclaims resourceclaims/status")
	c.refused(tells(&stranger, "gpu-0"), `changing status.devices requires resource="resourceclaims/driver", verb="[arbitrary-node:update]" permission`)
	err = stranger.status("p", func(claim *resourcev1.ResourceClaim) { claim.Status.ReservedFor = nil })
	c.refused(err, `changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", verb="update" permission`)
	may("driver", "arbitrary-node:update", "resourceclaims/driver")
	c.ok(tells(&stranger, "gpu-0"))
	c.claim("p", func(claim *resourcev1.ResourceClaim) error {
		return want("ip", len(claim.Status.Devices) == 1 && claim.Status.Devices[0].NetworkData.IPs[0] == "10.9.8.7/24", true)
	})
	c.delete("p")
	c.free("p")
	c.claim("p", func(claim *resourcev1.ResourceClaim) error { return want("devices", len(claim.Status.Devices), 0) })
}

// post creates a cluster-scoped object.
func (c *cluster) post(plural string, obj map[string]any) error {
	body, err := json.Marshal(obj)
	if err != nil {
		return err
	}
	return c.RbacV1().RESTClient().Post().Resource(plural).Body(body).SetHeader("Content-Type", "application/json").Do(c.ctx).Error()
}
