package devicetainteviction

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func run(t *testing.T, test func(w *controllertest.World)) {
	t.Helper()
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			c.Metrics = w.Registry()
			return []controllertest.Runner{New(c)}
		})()
		s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice"}, Spec: resourcev1.ResourceSliceSpec{
			Driver: "gpu.example.com", Pool: resourcev1.ResourcePool{Name: "node", Generation: 1, ResourceSliceCount: 1}, NodeName: new("node"),
			Devices: []resourcev1.Device{{Name: "gpu-0"}, {Name: "gpu-1"}},
		}}
		_, err := client.Of[*resourcev1.ResourceSlice](w.API).Create(w.T.Context(), s)
		check(t, err)
		test(w)
	})
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pod runs with a device.
func pod(w *controllertest.World, name, device string, tolerations ...resourcev1.DeviceToleration) {
	w.T.Helper()
	w.Create(&resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"}}}}},
	})
	w.Create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName: "node", Containers: []corev1.Container{{Name: "c", Image: "i"}}, TerminationGracePeriodSeconds: new(int64(0)),
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}},
	}})
	p := controllertest.Get[*corev1.Pod](w, name)
	controllertest.ChangeStatus(w, name, func(c *resourcev1.ResourceClaim) {
		c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{
			Request: "r", Driver: "gpu.example.com", Pool: "node", Device: device, Tolerations: tolerations,
		}}}}
		c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: p.UID}}
	})
}

func tolerates(seconds ...int64) resourcev1.DeviceToleration {
	t := resourcev1.DeviceToleration{Key: "k", Operator: resourcev1.DeviceTolerationOpExists, Effect: resourcev1.DeviceTaintEffectNoExecute}
	if len(seconds) > 0 {
		t.TolerationSeconds = &seconds[0]
	}
	return t
}

func taint(w *controllertest.World, device int, effects ...resourcev1.DeviceTaintEffect) {
	w.T.Helper()
	of := client.Of[*resourcev1.ResourceSlice](w.API)
	s, err := of.Get(w.T.Context(), "", "slice")
	check(w.T, err)
	s = s.DeepCopy()
	s.Spec.Devices[device].Taints = nil
	for _, e := range effects {
		s.Spec.Devices[device].Taints = append(s.Spec.Devices[device].Taints, resourcev1.DeviceTaint{Key: "k", Effect: e})
	}
	_, err = of.Update(w.T.Context(), s)
	check(w.T, err)
	w.Settle()
}

func left(w *controllertest.World, d time.Duration, want ...string) {
	w.T.Helper()
	time.Sleep(d)
	w.Settle()
	var names []string
	for _, p := range controllertest.List[*corev1.Pod](w) {
		if p.DeletionTimestamp == nil {
			names = append(names, p.Name)
		}
	}
	if !slices.Equal(names, want) {
		w.T.Errorf("left %v, want %v", names, want)
	}
}

func TestPodsLeaveDevicesWithTaints(t *testing.T) {
	run(t, func(w *controllertest.World) {
		pod(w, "forever", "gpu-0", tolerates())
		pod(w, "never", "gpu-0")
		pod(w, "other", "gpu-1")
		pod(w, "shortest", "gpu-0", tolerates(30), tolerates(10))
		pod(w, "some", "gpu-0", tolerates(30))
		taint(w, 0, resourcev1.DeviceTaintEffectNoSchedule)
		left(w, time.Minute, "forever", "never", "other", "shortest", "some")
		taint(w, 0, resourcev1.DeviceTaintEffectNoExecute)
		left(w, 0, "forever", "other", "shortest", "some")
		left(w, 9*time.Second, "forever", "other", "shortest", "some")
		left(w, 2*time.Second, "forever", "other", "some")
		left(w, 20*time.Second, "forever", "other")
	})
}

// Devices that stand for an extended resource are in a claim that only the pod's status
// names.
func TestPodsLeaveDevicesThatTheyHaveAsExtendedResources(t *testing.T) {
	run(t, func(w *controllertest.World) {
		taint(w, 0, resourcev1.DeviceTaintEffectNoExecute)
		one := corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
		w.Create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
			NodeName: "node", TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: one, Limits: one}}},
		}})
		p := controllertest.Get[*corev1.Pod](w, "p")
		w.Create(&resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "of-p", OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Pod", Name: "p", UID: p.UID, Controller: new(true),
			}}},
			Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"}}}}},
		})
		controllertest.ChangeStatus(w, "of-p", func(c *resourcev1.ResourceClaim) {
			c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{
				Request: "r", Driver: "gpu.example.com", Pool: "node", Device: "gpu-0",
			}}}}
			c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: p.UID}}
		})
		left(w, 0, "p") // whose claim it is has yet to be told
		controllertest.ChangeStatus(w, "p", func(p *corev1.Pod) {
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
				ResourceClaimName: "of-p", RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "c", ResourceName: "example.com/gpu", RequestName: "r"}},
			}
		})
		left(w, 0)
	})
}

func TestATaintThatGoesInTimeCancels(t *testing.T) {
	run(t, func(w *controllertest.World) {
		pod(w, "p", "gpu-0", tolerates(30))
		taint(w, 0, resourcev1.DeviceTaintEffectNoExecute)
		left(w, 20*time.Second, "p")
		taint(w, 0)
		left(w, time.Hour, "p")
		if all := w.Events(); !slices.Equal(all, []string{"Normal DeviceTaintManagerEviction Cancelling deletion"}) {
			t.Errorf("events %v", all)
		}
		if got := w.Writes(); len(got) != 0 {
			t.Errorf("wrote %v", got)
		}
	})
}

func TestAnEvictedPodSaysWhy(t *testing.T) {
	run(t, func(w *controllertest.World) {
		pod(w, "p", "gpu-0")
		controllertest.Change(w, "p", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/hold"} })
		taint(w, 0, resourcev1.DeviceTaintEffectNoExecute)
		p := controllertest.Get[*corev1.Pod](w, "p")
		i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.DisruptionTarget })
		if p.DeletionTimestamp == nil || i < 0 || p.Status.Conditions[i].Reason != "DeletionByDeviceTaintManager" ||
			p.Status.Conditions[i].Message != "Device Taint manager: deleting due to NoExecute taint" {
			t.Errorf("pod %+v", p)
		}
		if all := w.Events(); !slices.Equal(all, []string{"Normal DeviceTaintManagerEviction Marking for deletion"}) {
			t.Errorf("events %v", all)
		}
	})
}

func rule(w *controllertest.World, effect resourcev1.DeviceTaintEffect, device *string) {
	w.T.Helper()
	_, err := client.Of[*resourcev1.DeviceTaintRule](w.API).Create(w.T.Context(), &resourcev1.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: "rule"},
		Spec: resourcev1.DeviceTaintRuleSpec{
			DeviceSelector: &resourcev1.DeviceTaintSelector{Driver: new("gpu.example.com"), Device: device},
			Taint:          resourcev1.DeviceTaint{Key: "k", Effect: effect},
		},
	})
	check(w.T, err)
	w.Settle()
}

// says compares the rule's condition, as status, reason and message.
func says(w *controllertest.World, want string) {
	w.T.Helper()
	r, err := client.Of[*resourcev1.DeviceTaintRule](w.API).Get(w.T.Context(), "", "rule")
	check(w.T, err)
	if len(r.Status.Conditions) != 1 {
		w.T.Fatalf("conditions %+v", r.Status.Conditions)
	}
	d := r.Status.Conditions[0]
	if got := strings.TrimSpace(string(d.Status) + " " + d.Reason + " " + d.Message); d.Type != "EvictionInProgress" || got != want {
		w.T.Errorf("%s: %q, want %q", d.Type, got, want)
	}
}

func TestARuleEvictsAndTellsHowFarItIs(t *testing.T) {
	run(t, func(w *controllertest.World) {
		pod(w, "now", "gpu-0")
		pod(w, "later", "gpu-0", tolerates(60))
		pod(w, "other", "gpu-1")
		rule(w, resourcev1.DeviceTaintEffectNoExecute, new("gpu-0"))
		left(w, 11*time.Second, "later", "other")
		says(w, "True PodsPendingEviction 1 pod needs to be evicted in 1 namespace. 1 pod evicted since starting the controller.")
		left(w, 61*time.Second, "other")
		says(w, "False Completed 2 pods evicted since starting the controller.")
		w.Measured("device_taint_eviction_controller_pod_deletions_total 2", "device_taint_eviction_controller_pod_deletion_duration_seconds_count 2")
		w.Writes()
		time.Sleep(time.Hour)
		w.Settle()
		if got := w.Writes(); len(got) != 0 {
			t.Errorf("wrote %v", got)
		}
	})
}

func TestARuleWithoutEffectTellsWhatItWouldDo(t *testing.T) {
	run(t, func(w *controllertest.World) {
		pod(w, "a", "gpu-0")
		pod(w, "b", "gpu-1")
		rule(w, resourcev1.DeviceTaintEffectNone, nil)
		says(w, "False NoEffect 2 published devices selected. 2 allocated devices selected. 2 pods would be evicted in 1 namespace if the effect was NoExecute. "+
			"This information will not be updated again. Recreate the DeviceTaintRule to trigger an update.")
		left(w, time.Minute, "a", "b")
	})
}

func TestARuleThatOnlyKeepsPodsAwaySaysSo(t *testing.T) {
	run(t, func(w *controllertest.World) {
		pod(w, "a", "gpu-0")
		rule(w, resourcev1.DeviceTaintEffectNoSchedule, nil)
		says(w, "False OtherEffect Eviction only happens for the NoExecute effect.")
		left(w, time.Minute, "a")
	})
}

// A status from before the clock went back must not stand until it has caught up.
func TestARuleTellsItsStateAfterTheClockWentBack(t *testing.T) {
	run(t, func(w *controllertest.World) {
		rule(w, resourcev1.DeviceTaintEffectNoExecute, new("gpu-0"))
		rules := client.Of[*resourcev1.DeviceTaintRule](w.API)
		r, err := rules.Get(w.T.Context(), "", "rule")
		check(w.T, err)
		r = r.DeepCopy()
		r.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Now().Add(2 * time.Hour))
		_, err = rules.UpdateStatus(w.T.Context(), r)
		check(w.T, err)
		pod(w, "p", "gpu-0", tolerates(600))
		time.Sleep(time.Minute)
		w.Settle()
		says(w, "True PodsPendingEviction 1 pod needs to be evicted in 1 namespace.")
	})
}

func TestARuleTellsThatNobodyIsLeftWhoeverDeletedThem(t *testing.T) {
	run(t, func(w *controllertest.World) {
		rule(w, resourcev1.DeviceTaintEffectNoExecute, new("gpu-0"))
		pod(w, "p", "gpu-0", tolerates(600))
		time.Sleep(time.Minute)
		w.Settle()
		says(w, "True PodsPendingEviction 1 pod needs to be evicted in 1 namespace.")
		_, err := client.Of[*corev1.Pod](w.API).Delete(w.T.Context(), controllertest.Namespace, "p", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
		check(w.T, err)
		time.Sleep(time.Minute)
		w.Settle()
		says(w, "False NotStarted")
	})
}
