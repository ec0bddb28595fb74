package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// devicePlugin serves devices of a resource that is named after the lab. Each is a
// variable, a mount, a device and a CDI name in the containers that get it.
type devicePlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	l        *lab
	resource string
	cdi      string

	mu      sync.Mutex // guards what follows
	devices map[string]string
	moved   chan struct{} // closed and replaced when devices changes
	started [][]string    // devices of containers about to start
}

// startPlugin serves devices, all healthy, until stop is called or the test ends.
func (l *lab) startPlugin(devices ...string) (p *devicePlugin, stop func()) {
	l.Helper()
	p = &devicePlugin{l: l, resource: l.ns + ".example.com/toy", cdi: l.ns + ".example.com/toy", devices: map[string]string{}, moved: make(chan struct{})}
	for _, d := range devices {
		p.devices[d] = pluginapi.Healthy
	}
	dir := filepath.Join(shared.dir, "kubelet", "device-plugins")
	socket := filepath.Join(dir, l.ns+".sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		l.Fatal(err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, p)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	stop = sync.OnceFunc(func() { server.Stop(); <-done })
	l.Cleanup(stop)
	registry := pluginapi.NewRegistrationClient(dialUnix(l, filepath.Join(dir, "kubelet.sock")))
	_, err = registry.Register(l.Context(), &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: filepath.Base(socket), ResourceName: p.resource,
		Options: &pluginapi.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true},
	})
	if err != nil {
		l.Fatal(err)
	}
	return p, stop
}

func dialUnix(l *lab, socket string) *grpc.ClientConn {
	l.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (p *devicePlugin) set(device, health string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.devices[device] = health
	close(p.moved)
	p.moved = make(chan struct{})
}

// ListAndWatch implements pluginapi.DevicePluginServer.
func (p *devicePlugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		p.mu.Lock()
		list, moved := &pluginapi.ListAndWatchResponse{}, p.moved
		for id, health := range p.devices {
			list.Devices = append(list.Devices, &pluginapi.Device{ID: id, Health: health, Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 0}}}})
		}
		p.mu.Unlock()
		if err := stream.Send(list); err != nil {
			return err
		}
		select {
		case <-moved:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// GetPreferredAllocation implements pluginapi.DevicePluginServer: the last come first.
func (p *devicePlugin) GetPreferredAllocation(_ context.Context, r *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	out := &pluginapi.PreferredAllocationResponse{}
	for _, c := range r.ContainerRequests {
		ids := slices.Sorted(slices.Values(c.AvailableDeviceIDs))
		slices.Reverse(ids)
		out.ContainerResponses = append(out.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: ids[:c.AllocationSize]})
	}
	return out, nil
}

// Allocate implements pluginapi.DevicePluginServer.
func (p *devicePlugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	out := &pluginapi.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		answer := &pluginapi.ContainerAllocateResponse{
			Envs:    map[string]string{"TOYS": strings.Join(c.DevicesIds, " ")},
			Mounts:  []*pluginapi.Mount{{ContainerPath: "/toy/hostname", HostPath: "/etc/hostname", ReadOnly: true}},
			Devices: []*pluginapi.DeviceSpec{{ContainerPath: "/dev/toy", HostPath: "/dev/zero", Permissions: "r"}},
		}
		for _, id := range c.DevicesIds {
			answer.CdiDevices = append(answer.CdiDevices, &pluginapi.CDIDevice{Name: p.cdi + "=" + id})
		}
		out.ContainerResponses = append(out.ContainerResponses, answer)
	}
	return out, nil
}

// PreStartContainer implements pluginapi.DevicePluginServer.
func (p *devicePlugin) PreStartContainer(_ context.Context, r *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = append(p.started, r.DevicesIds)
	return &pluginapi.PreStartContainerResponse{}, nil
}

// GetDevicePluginOptions implements pluginapi.DevicePluginServer.
func (p *devicePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

// writeCDI tells the runtime of devices that are variables, until the test ends.
func (l *lab) writeCDI(kind string, devices ...string) {
	l.Helper()
	type device struct {
		Name  string              `json:"name"`
		Edits map[string][]string `json:"containerEdits"`
	}
	spec := struct {
		Version string   `json:"cdiVersion"`
		Kind    string   `json:"kind"`
		Devices []device `json:"devices"`
	}{"0.6.0", kind, nil}
	for _, name := range devices {
		spec.Devices = append(spec.Devices, device{name, map[string][]string{"env": {"DEVICE_" + strings.ToUpper(name) + "=yes"}}})
	}
	data, err := json.Marshal(spec)
	if err != nil {
		l.Fatal(err)
	}
	const dir = "/var/run/cdi"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		l.Fatal(err)
	}
	file := filepath.Join(dir, strings.ReplaceAll(kind, "/", "-")+".json")
	if err := os.WriteFile(file, data, 0o644); err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { _ = os.Remove(file) })
}

// holds waits until the node has so much of a resource, and so much of it for pods.
func (p *devicePlugin) holds(capacity, allocatable string) {
	p.l.Helper()
	eventually(p.l.T, settle, func() error {
		list, err := clients().CoreV1().Nodes().List(p.l.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		s := list.Items[0].Status
		all, healthy := s.Capacity[corev1.ResourceName(p.resource)], s.Allocatable[corev1.ResourceName(p.resource)]
		if all.String() != capacity || healthy.String() != allocatable {
			return fmt.Errorf("the node has %s of %s, want %s of %s", healthy.String(), all.String(), allocatable, capacity)
		}
		return nil
	})
}

// Devices of a plugin are counted by the node, given to containers and told of.
func TestDevicePlugin(t *testing.T) {
	l := newLab(t)
	l.writeCDI(l.ns+".example.com/toy", "a", "b", "c", "d")
	p, stop := l.startPlugin("a", "b", "c", "d")
	p.holds("4", "4")
	pod := func(name, count, more string) string {
		limit := ", resources: {limits: {" + p.resource + ": " + count + "}}}"
		return podManifest(name, more+"  containers: ["+strings.TrimSuffix(busybox("c", "sleep 3600"), "}")+limit+"]")
	}
	init := "  initContainers: [" + strings.TrimSuffix(busybox("i", "echo $TOYS"), "}") + ", resources: {limits: {" + p.resource + ": 1}}}]\n"
	l.apply(pod("two", "2", init) + pod("one", "1", ""))
	l.ready("two")
	l.ready("one")
	toys := strings.Fields(l.exec("two", "sh", "-c", "echo $TOYS"))
	if all := append(strings.Fields(l.exec("one", "sh", "-c", "echo $TOYS")), toys...); len(slices.Compact(slices.Sorted(slices.Values(all)))) != 3 || slices.Contains(all, "a") {
		t.Errorf("the pods have %q, and a is the one that the plugin gives last", all)
	}
	if first := strings.TrimSpace(l.logs("two", "i")); !slices.Contains(toys, first) {
		t.Errorf("the container does not use %s of the init container again, but %q", first, toys)
	}
	l.is("the CDI devices", l.devices("two", "c"), strings.Join(toys, " "))
	l.is("bytes read of the device", strings.TrimSpace(l.exec("two", "sh", "-c", "head -c 8 /dev/toy | wc -c; test -s /toy/hostname")), "8")
	p.mu.Lock()
	if len(p.started) != 3 {
		t.Errorf("the plugin was told of the starts %q", p.started)
	}
	p.mu.Unlock()
	p.monitored("two", toys)

	l.apply(pod("three", "2", ""))
	l.await("three", "unschedulable", func(p *corev1.Pod) bool { return conditionIs(p, corev1.PodScheduled, corev1.ConditionFalse) })

	p.set(toys[0], pluginapi.Unhealthy)
	p.holds("4", "3")
	l.health("two", toys[0], corev1.ResourceHealthStatusUnhealthy)
	l.health("two", toys[1], corev1.ResourceHealthStatusHealthy)
	stop()
	p.holds("4", "0")
	l.health("two", toys[1], corev1.ResourceHealthStatusUnknown)
	p, _ = l.startPlugin("a", "b", "c", "d")
	p.holds("4", "4")
	l.health("two", toys[1], corev1.ResourceHealthStatusHealthy)
	l.kubectl("delete", "pod", "two")
	l.ready("three")
}

// health waits until the status of a pod's container tells this of a device.
func (l *lab) health(pod, device string, want corev1.ResourceHealthStatus) {
	l.Helper()
	l.await(pod, "with device "+device+" "+string(want), func(p *corev1.Pod) bool {
		for _, s := range status(p, "c").AllocatedResourcesStatus {
			for _, r := range s.Resources {
				if string(r.ResourceID) == device {
					return r.Health == want
				}
			}
		}
		return false
	})
}

// monitored reads what the node tells monitors of a pod.
func (p *devicePlugin) monitored(pod string, want []string) {
	p.l.Helper()
	client := podresources.NewPodResourcesListerClient(dialUnix(p.l, filepath.Join(shared.dir, "kubelet", "pod-resources", "kubelet.sock")))
	one, err := client.Get(p.l.Context(), &podresources.GetPodResourcesRequest{PodName: pod, PodNamespace: p.l.ns})
	if err != nil {
		p.l.Fatal(err)
	}
	c := one.PodResources.Containers
	if len(c) != 1 || len(c[0].Devices) != 1 || c[0].Devices[0].ResourceName != p.resource || !slices.Equal(c[0].Devices[0].DeviceIds, want) || c[0].Devices[0].Topology == nil {
		p.l.Errorf("Get tells %v", c)
	}
	list, err := client.List(p.l.Context(), &podresources.ListPodResourcesRequest{})
	if err != nil || !slices.ContainsFunc(list.PodResources, func(r *podresources.PodResources) bool { return r.Name == pod && r.Namespace == p.l.ns }) {
		p.l.Errorf("List tells %v, %v", list, err)
	}
	all, err := client.GetAllocatableResources(p.l.Context(), &podresources.AllocatableResourcesRequest{})
	if err != nil || !slices.ContainsFunc(all.GetDevices(), func(d *podresources.ContainerDevices) bool {
		return d.ResourceName == p.resource && len(d.DeviceIds) == 4
	}) {
		p.l.Errorf("GetAllocatableResources tells %v, %v", all, err)
	}
}
