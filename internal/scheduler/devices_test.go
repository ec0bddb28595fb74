package scheduler

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
)

const driver = "gpu.example.com"

// gpus publishes as many devices of a node.
func gpus(w *world, node string, count int, change ...func(*resourcev1.ResourceSlice)) *resourcev1.ResourceSlice {
	w.t.Helper()
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourcev1.ResourceSliceSpec{
		Driver: driver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
	for i := range count {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{Name: fmt.Sprintf("gpu-%d", i), Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			"model": {StringValue: new("old")},
		}})
	}
	for _, f := range change {
		f(s)
	}
	return create(w, s)
}

// asking makes a pod with a claim for one device, which may have to be of a model.
func asking(w *world, name, model string) {
	w.t.Helper()
	exactly := &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"}
	if model != "" {
		exactly.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.attributes[%q].model == %q", driver, model)}}}
	}
	create(w, &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: resourcev1.ResourceClaimSpec{
		Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "gpu", Exactly: exactly}}},
	}})
	create(w, pod(name, "1m", func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}
	}))
}

// given is the device of a pod's claim.
func given(w *world, name string) string {
	w.t.Helper()
	claim, err := client.Of[*resourcev1.ResourceClaim](w.api).Get(w.t.Context(), "default", name)
	if err != nil || claim.Status.Allocation == nil {
		w.t.Fatalf("claim %s: %v %v", name, claim, err)
	}
	r := claim.Status.Allocation.Devices.Results[0]
	return r.Pool + "/" + r.Device
}

func devicesWorld(t *testing.T) *world {
	w := newWorld(t)
	create(w, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{
		Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", driver)}}},
	}})
	return w
}

func TestEveryDeviceIsGivenOnce(t *testing.T) {
	w := devicesWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		create(w, node(name, "4", "1Gi"))
		gpus(w, name, 4)
	}
	has := map[string]string{} // pods, by device
	for i := range 12 {
		asking(w, fmt.Sprintf("p%d", i), "")
	}
	for i := range 12 {
		name := fmt.Sprintf("p%d", i)
		on, device := w.on(name), given(w, name)
		if other, taken := has[device]; taken {
			t.Errorf("%s is given to %s and %s", device, other, name)
		}
		if has[device] = name; device[:1] != on {
			t.Errorf("%s on %s has %s", name, on, device)
		}
	}
	asking(w, "late", "")
	if got := w.pending("late").Message; got != "0/3 nodes are available: 3 cannot allocate all claims. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling." {
		t.Error(got)
	}
	freed := given(w, "p7")
	release(w, "p7")
	if w.on("late"); given(w, "late") != freed {
		t.Errorf("late has %s, %s was free", given(w, "late"), freed)
	}
}

// release deletes a pod, and its claim's allocation as the controller would.
func release(w *world, name string) {
	w.t.Helper()
	if _, err := client.Of[*corev1.Pod](w.api).Delete(w.t.Context(), "default", name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		w.t.Fatal(err)
	}
	claims := client.Of[*resourcev1.ResourceClaim](w.api)
	claim, err := claims.Get(w.t.Context(), "default", name)
	if err != nil {
		w.t.Fatal(err)
	}
	claim = claim.DeepCopy()
	claim.Status = resourcev1.ResourceClaimStatus{}
	if _, err := claims.UpdateStatus(w.t.Context(), claim); err != nil {
		w.t.Fatal(err)
	}
}

func TestDevicesThatChangeAreLookedAtAgain(t *testing.T) {
	w := devicesWorld(t)
	slices := client.Of[*resourcev1.ResourceSlice](w.api)
	create(w, node("a", "4", "1Gi"))
	slice := gpus(w, "a", 2)
	asking(w, "first", "new")
	w.pending("first")

	slice = slice.DeepCopy()
	slice.Spec.Devices[1].Attributes["model"] = resourcev1.DeviceAttribute{StringValue: new("new")}
	slice.Spec.Pool.Generation = 2
	if _, err := slices.Update(t.Context(), slice); err != nil {
		t.Fatal(err)
	}
	if w.on("first"); given(w, "first") != "a/gpu-1" {
		t.Error(given(w, "first"))
	}

	asking(w, "second", "new")
	w.pending("second")
	create(w, node("b", "4", "1Gi"))
	gpus(w, "b", 2, func(s *resourcev1.ResourceSlice) {
		s.Spec.Devices[0].Attributes["model"] = resourcev1.DeviceAttribute{StringValue: new("new")}
	})
	if got := w.on("second"); got != "b" {
		t.Errorf("second is on %s", got)
	}

	asking(w, "last", "old") // what it does not get of the two that are left is remembered
	w.on("last")
	class, err := client.Of[*resourcev1.DeviceClass](w.api).Get(t.Context(), "", "gpu")
	if err != nil {
		t.Fatal(err)
	}
	class = class.DeepCopy()
	class.Spec.Selectors[0].CEL.Expression = "false"
	if _, err := client.Of[*resourcev1.DeviceClass](w.api).Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	asking(w, "third", "old")
	w.pending("third")
}

// A pool that several nodes reach is given away once, whichever node the pod is on.
func TestDevicesOfSeveralNodesAreGivenOnce(t *testing.T) {
	w := devicesWorld(t)
	create(w, node("a", "1m", "1Gi"))
	create(w, node("b", "1m", "1Gi"))
	gpus(w, "net", 1, func(s *resourcev1.ResourceSlice) { s.Spec.NodeName, s.Spec.AllNodes = nil, new(true) })
	asking(w, "first", "")
	w.on("first")
	asking(w, "second", "")
	if got := w.pending("second").Message; got == "" {
		t.Error("no reason")
	}
	if p, ok := w.pods.Cached("default", "second"); ok && p.Spec.NodeName != "" {
		t.Error("the device is given twice")
	}
}
