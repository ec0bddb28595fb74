package bench

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

const (
	deviceClass    = "bench.proa"
	deviceDriver   = "device.bench.proa"
	deviceClasses  = "/apis/resource.k8s.io/v1/deviceclasses"
	deviceSlices   = "/apis/resource.k8s.io/v1/resourceslices"
	claimTemplate  = "device"
	devicesPerNode = 10
)

// withClaimTemplate is a pod that gets a claim of its own for one device.
func withClaimTemplate(_ int, p *corev1.Pod) {
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "device", ResourceClaimTemplateName: ptr.To(claimTemplate)}}
	p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "device"}}
}

// devices give every node ten, and half of all are in use.
func devices(ctx context.Context, w *workload) error {
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: deviceClass}, Spec: resourcev1.DeviceClassSpec{
		Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", deviceDriver)}}},
	}}
	if err := w.run.create(ctx, 1, func(int) (string, runtime.Object) { return deviceClasses, class }); err != nil {
		return err
	}
	err := w.run.create(ctx, w.nodes, func(i int) (string, runtime.Object) { return deviceSlices, deviceSlice(nodeName(i)) })
	if err != nil {
		return err
	}
	template := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: claimTemplate}, Spec: resourcev1.ResourceClaimTemplateSpec{
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "device", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: deviceClass},
		}}}},
	}}
	path := "/apis/resource.k8s.io/v1/namespaces/" + w.namespaces[0] + "/resourceclaimtemplates"
	if err := w.run.create(ctx, 1, func(int) (string, runtime.Object) { return path, template }); err != nil {
		return err
	}
	return w.makeBound(ctx, "init", 2500, withClaimTemplate)
}

func deviceSlice(node string) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourcev1.ResourceSliceSpec{
		Driver: deviceDriver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
	for i := range devicesPerNode {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{Name: fmt.Sprintf("device-%d", i)})
	}
	return s
}

func removeDevices(ctx context.Context, w *workload) error {
	if err := w.run.remove(ctx, w.nodes, func(i int) string { return deviceSlices + "/" + nodeName(i) }); err != nil {
		return err
	}
	return w.run.remove(ctx, 1, func(int) string { return deviceClasses + "/" + deviceClass })
}
