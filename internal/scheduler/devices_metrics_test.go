package scheduler

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
)

func TestDevicesAreMeasured(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	w := newWorld(t, func(c *Config) { c.Metrics = r })
	create(w, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: new("example.com/gpu")}})
	create(w, node("a", "4", "1Gi"))
	gpus(w, "a", 2, func(s *resourcev1.ResourceSlice) {
		s.Spec.Devices[0].BindingConditions, s.Spec.Devices[0].BindingFailureConditions = []string{"example.com/attached"}, []string{"example.com/failed"}
		s.Spec.Devices[0].Attributes["model"] = resourcev1.DeviceAttribute{StringValue: new("far")}
	})
	claims := client.Of[*resourcev1.ResourceClaim](w.api)
	says := func(condition string, attempts int) {
		t.Helper()
		w.until("devices are waited for", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return strings.Count(strings.Join(w.notes, "\n"), "p Normal BindingConditionsPending") == attempts
		})
		claim, err := claims.Get(t.Context(), "default", "p")
		if err != nil {
			t.Fatal(err)
		}
		claim = claim.DeepCopy()
		result := claim.Status.Allocation.Devices.Results[0]
		claim.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: result.Driver, Pool: result.Pool, Device: result.Device, Conditions: []metav1.Condition{{
			Type: condition, Status: metav1.ConditionTrue, Reason: "Test", Message: "test", LastTransitionTime: metav1.Now(),
		}}}}
		if _, err := claims.UpdateStatus(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
	}
	asking(w, "p", "far")
	says("example.com/failed", 1)
	says("example.com/attached", 2)
	w.on("p")
	create(w, pod("q", "1m", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
		p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
	}))
	w.on("q")
	want := `# HELP dynamic_resource_allocation_resourceclaim_creates_total [ALPHA] Number of ResourceClaims creation requests, categorized by creation status, admin access, and owning API group and kind
# TYPE dynamic_resource_allocation_resourceclaim_creates_total counter
dynamic_resource_allocation_resourceclaim_creates_total{admin_access="false",owner_api_group="",owner_api_kind="Pod",status="success"} 1
# HELP scheduler_dra_bindingconditions_allocations_total [ALPHA] How many attempts to bind a pod had to wait for devices with BindingConditions, by driver
# TYPE scheduler_dra_bindingconditions_allocations_total counter
scheduler_dra_bindingconditions_allocations_total{driver="gpu.example.com",profile="default-scheduler",status="failure"} 1
scheduler_dra_bindingconditions_allocations_total{driver="gpu.example.com",profile="default-scheduler",status="success"} 1
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want),
		"dynamic_resource_allocation_resourceclaim_creates_total", "scheduler_dra_bindingconditions_allocations_total"); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(r, "scheduler_dra_bindingconditions_wait_duration_seconds"); err != nil || n != 2 {
		t.Errorf("%d durations, %v", n, err)
	}
}
