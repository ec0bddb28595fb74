package deviceplugins

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Resources are the devices that a container has, by resource and NUMA nodes.
func (m *Manager) Resources(pod *corev1.Pod, c *corev1.Container) []*api.ContainerDevices {
	grants := m.grants(pod.UID, c.Name)
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*api.ContainerDevices
	for _, name := range slices.Sorted(maps.Keys(grants)) {
		out = append(out, m.groupLocked(name, grants[name].Devices)...)
	}
	return out
}

// Allocatable are all healthy devices, by resource and NUMA nodes.
func (m *Manager) Allocatable() []*api.ContainerDevices {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*api.ContainerDevices
	for _, name := range slices.Sorted(maps.Keys(m.resources)) {
		out = append(out, m.groupLocked(name, m.resources[name].healthy())...)
	}
	return out
}

func (m *Manager) groupLocked(name string, ids []string) []*api.ContainerDevices {
	var out []*api.ContainerDevices
	slices.Sort(ids)
	for _, id := range ids {
		var nodes []int64
		if p := m.resources[name]; p != nil {
			nodes = nodesOf(p.devices[id])
		}
		i := slices.IndexFunc(out, func(d *api.ContainerDevices) bool { return slices.Equal(numbers(d.Topology), nodes) })
		if i < 0 {
			i = len(out)
			out = append(out, &api.ContainerDevices{ResourceName: name, Topology: topology(nodes)})
		}
		out[i].DeviceIds = append(out[i].DeviceIds, id)
	}
	return out
}

func nodesOf(d *pluginapi.Device) []int64 {
	var out []int64
	for _, n := range d.GetTopology().GetNodes() {
		out = append(out, n.ID)
	}
	return out
}

func topology(nodes []int64) *api.TopologyInfo {
	if len(nodes) == 0 {
		return nil
	}
	t := &api.TopologyInfo{}
	for _, id := range nodes {
		t.Nodes = append(t.Nodes, &api.NUMANode{ID: id})
	}
	return t
}

func numbers(t *api.TopologyInfo) []int64 {
	var out []int64
	for _, n := range t.GetNodes() {
		out = append(out, n.ID)
	}
	return out
}
