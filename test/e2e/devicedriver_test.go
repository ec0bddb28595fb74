package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// deviceDriver is a DRA driver on upstream's library. Each of its devices is a
// variable in the containers that get it.
type deviceDriver struct {
	l    *lab
	name string
	stop func()

	mu         sync.Mutex // guards what follows
	prepared   map[types.UID]bool
	parameters []string // that came with claims
	reports    chan kubeletplugin.DeviceHealthReport
}

// nodeName of the shared cluster's only node.
func nodeName(l *lab) string {
	l.Helper()
	return strings.TrimSpace(shared.kubectl(l.T, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"))
}

// offer makes a class and a slice of devices of the driver named after the lab, with
// attributes written in YAML.
func (l *lab) offer(devices ...string) (driver string) {
	l.Helper()
	driver = l.ns + ".example.com"
	l.apply(`{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: ` + l.ns + `}, spec: {selectors: [{cel: {expression: 'device.driver == "` + driver + `"'}}]}}
---
{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: ` + l.ns + `}, spec: {nodeName: ` + nodeName(l) + `, driver: ` + driver + `, pool: {name: p, generation: 1, resourceSliceCount: 1}, devices: [` + strings.Join(devices, ", ") + `]}}`)
	l.Cleanup(func() {
		shared.tryKubectl("", "delete", "deviceclass/"+l.ns, "resourceslice/"+l.ns, "--ignore-not-found")
	})
	return driver
}

// startDriver registers a driver with the node until the test ends or stop is called.
func (l *lab) startDriver(name string, devices ...string) *deviceDriver {
	l.Helper()
	d := &deviceDriver{l: l, name: name, prepared: map[types.UID]bool{}, reports: make(chan kubeletplugin.DeviceHealthReport, 10)}
	l.writeCDI(name+"/dev", devices...)
	kubelet := filepath.Join(shared.dir, "kubelet")
	sockets := filepath.Join(kubelet, "plugins", name)
	if err := os.MkdirAll(sockets, 0o750); err != nil {
		l.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	helper, err := kubeletplugin.Start(ctx, d,
		kubeletplugin.DriverName(name), kubeletplugin.KubeClient(clients()), kubeletplugin.NodeName(nodeName(l)),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(kubelet, "plugins_registry")), kubeletplugin.PluginDataDirectoryPath(sockets))
	if err != nil {
		cancel()
		l.Fatal(err)
	}
	d.stop = sync.OnceFunc(func() { helper.Stop(); cancel() })
	l.Cleanup(func() {
		shared.tryKubectl("", "delete", "pods", "--all", "-n", l.ns) // which the driver has to give devices back for
		d.stop()
	})
	return d
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *deviceDriver) PrepareResourceClaims(_ context.Context, claims []*resourcev1.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		var result kubeletplugin.PrepareResult
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.Driver == d.name {
				result.Devices = append(result.Devices, kubeletplugin.Device{
					Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device, CDIDeviceIDs: []string{d.name + "/dev=" + r.Device},
				})
			}
		}
		for _, config := range c.Status.Allocation.Devices.Config {
			d.parameters = append(d.parameters, string(config.Opaque.Parameters.Raw))
		}
		d.prepared[c.UID] = true
		results[c.UID] = result
	}
	return results, nil
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *deviceDriver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	results := map[types.UID]error{}
	for _, c := range claims {
		results[c.UID] = nil
		delete(d.prepared, c.UID)
	}
	return results, nil
}

// HandleError implements kubeletplugin.DRAPlugin.
func (d *deviceDriver) HandleError(ctx context.Context, err error, msg string) {
	if errors.Is(err, kubeletplugin.ErrRecoverable) { // such as devices of which nothing new is told for a while
		return
	}
	if ctx.Err() == nil && !errors.Is(err, context.Canceled) {
		d.l.Errorf("driver: %s: %v", msg, err)
	}
}

// WatchHealthStatus implements kubeletplugin.DRAPlugin.
func (d *deviceDriver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case r := <-d.reports:
			reports <- r
		}
	}
}

func (d *deviceDriver) report(device string, health kubeletplugin.HealthStatus, message string) {
	d.reports <- kubeletplugin.DeviceHealthReport{Devices: []kubeletplugin.DeviceHealth{{PoolName: "p", DeviceName: device, Health: health, Message: message}}}
}

func (d *deviceDriver) inUse() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.prepared)
}

func (d *deviceDriver) seen() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.parameters)
}

// devices that a container shows, in the order of their names.
func (l *lab) devices(pod, container string) string {
	l.Helper()
	out := l.kubectl("exec", pod, "-c", container, "--", "sh", "-c", "env | sed -n 's/^DEVICE_\\(.*\\)=yes/\\1/p' | sort")
	return strings.ToLower(strings.Join(strings.Fields(out), " "))
}

// released waits until no pod holds a claim.
func (l *lab) released(claim string) {
	l.Helper()
	eventually(l.T, settle, func() error {
		if held, err := l.tryKubectl("get", "resourceclaim", claim, "-o", "jsonpath={.status.reservedFor}{.status.allocation}"); err != nil || held != "" {
			return fmt.Errorf("the claim of a pod that is gone holds %s %v", held, err)
		}
		return nil
	})
}
