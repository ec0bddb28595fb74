package dra

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Resources are the devices that a container has of the pod's claims, by claim.
func (m *Manager) Resources(pod *corev1.Pod, spec *corev1.Container) []*api.DynamicResource {
	var out []*api.DynamicResource
	_ = m.visit(pod, spec, func(_ corev1.ResourceName, c *claim, d *device) { // what is not prepared is nobody's
		i := slices.IndexFunc(out, func(r *api.DynamicResource) bool { return r.ClaimName == c.Name })
		if i < 0 {
			i = len(out)
			out = append(out, &api.DynamicResource{ClaimName: c.Name, ClaimNamespace: c.Namespace})
		}
		r := &api.ClaimResource{DriverName: d.Driver, PoolName: d.Pool, DeviceName: d.Device}
		for _, name := range d.CDI {
			r.CdiDevices = append(r.CdiDevices, &api.CDIDevice{Name: name})
		}
		out[i].ClaimResources = append(out[i].ClaimResources, r)
	})
	return out
}
