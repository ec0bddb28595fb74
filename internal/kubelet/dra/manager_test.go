package dra

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	draapi "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	"k8s.io/utils/ptr"

	"proa/internal/client"
	"proa/internal/kubelet/plugins"
)

// claims answers the reads of a Manager.
type claims struct {
	client.API
	objects map[string]*resourcev1.ResourceClaim
}

func (c *claims) Get(_ context.Context, ref client.Ref, _ metav1.GetOptions) (client.Object, error) {
	if obj := c.objects[ref.Name]; obj != nil {
		return obj, nil
	}
	return nil, errors.New("no claim " + ref.Name)
}

// toyDriver prepares one device for each request, and remembers what it was asked.
type toyDriver struct {
	draapi.UnimplementedDRAPluginServer
	mu    sync.Mutex
	calls []string // guarded by mu
	fail  string   // guarded by mu
}

func (d *toyDriver) NodePrepareResources(_ context.Context, r *draapi.NodePrepareResourcesRequest) (*draapi.NodePrepareResourcesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := &draapi.NodePrepareResourcesResponse{Claims: map[string]*draapi.NodePrepareResourceResponse{}}
	for _, c := range r.Claims {
		d.calls = append(d.calls, "prepare "+c.Name)
		out.Claims[c.Uid] = &draapi.NodePrepareResourceResponse{Error: d.fail, Devices: []*draapi.Device{
			{RequestNames: []string{"a"}, PoolName: "p", DeviceName: "1", CdiDeviceIds: []string{"x/y=1"}},
			{PoolName: "p", DeviceName: "2", CdiDeviceIds: []string{"x/y=2"}},
		}}
	}
	return out, nil
}

func (d *toyDriver) NodeUnprepareResources(_ context.Context, r *draapi.NodeUnprepareResourcesRequest) (*draapi.NodeUnprepareResourcesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := &draapi.NodeUnprepareResourcesResponse{Claims: map[string]*draapi.NodeUnprepareResourceResponse{}}
	for _, c := range r.Claims {
		d.calls = append(d.calls, "unprepare "+c.Name)
		out.Claims[c.Uid] = &draapi.NodeUnprepareResourceResponse{}
	}
	return out, nil
}

func (d *toyDriver) took() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	calls := strings.Join(d.calls, ", ")
	d.calls = nil
	return calls
}

func (d *toyDriver) failing(why string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = why
}

// serve returns how a driver registers whose service has one of two versions.
func (d *toyDriver) serve(t *testing.T, version string) plugins.Plugin {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "dra.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	if version == draapi.DRAPluginService {
		draapi.RegisterDRAPluginServer(server, d)
	} else {
		drav1beta1.RegisterDRAPluginServer(server, drav1beta1.V1ServerWrapper{DRAPluginServer: d})
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return plugins.Plugin{Name: "toys.example.com", Endpoint: socket, Versions: []string{version}}
}

func claimOf(name string, pods ...*corev1.Pod) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)}}
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p.Name, UID: p.UID})
	}
	c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
		Results: []resourcev1.DeviceRequestAllocationResult{{Driver: "toys.example.com", Pool: "p", Device: "1", Request: "a"}},
	}}
	return c
}

func podOf(name, claim string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)}}
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: ptr.To(claim)}}
	p.Spec.Containers = []corev1.Container{
		{Name: "all", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "c"}}}},
		{Name: "b", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "c", Request: "b"}}}},
		{Name: "none"},
	}
	return p
}

func newManager(t *testing.T, root string, api *claims) *Manager {
	t.Helper()
	m, err := New(Config{API: api, NodeName: "n1", RootDir: root})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// stop ends what waits for a driver to come back.
func stop(m *Manager) {
	m.mu.Lock()
	for _, cancel := range m.wipes {
		cancel()
	}
	m.mu.Unlock()
	m.wg.Wait()
}

func TestAClaimIsPreparedOnceAndGivenBackAfterItsLastPod(t *testing.T) {
	for _, version := range []string{draapi.DRAPluginService, drav1beta1.DRAPluginService} {
		t.Run(version, func(t *testing.T) {
			one, two, root, driver := podOf("one", "shared"), podOf("two", "shared"), t.TempDir(), &toyDriver{}
			api := &claims{objects: map[string]*resourcev1.ResourceClaim{"shared": claimOf("shared", one, two)}}
			m := newManager(t, root, api)
			if err := m.Prepare(t.Context(), one); err == nil || err.Error() != "DRA driver toys.example.com is not registered" {
				t.Errorf("without its driver: %v", err)
			}
			if err := m.Release(t.Context(), "one"); err != nil {
				t.Errorf("release what was never prepared: %v", err)
			}
			plugin := driver.serve(t, version)
			if err := m.Register(plugin); err != nil {
				t.Fatal(err)
			}
			driver.failing("broken")
			if err := m.Prepare(t.Context(), one); err == nil || err.Error() != "NodePrepareResources failed for ResourceClaim shared: broken" {
				t.Errorf("a driver that fails: %v", err)
			}
			driver.failing("")
			for _, p := range []*corev1.Pod{one, two, one} {
				if err := m.Prepare(t.Context(), p); err != nil {
					t.Fatal(err)
				}
			}
			if calls := driver.took(); calls != "prepare shared, prepare shared" {
				t.Errorf("the driver was asked: %s", calls)
			}
			m.Unregister(plugin)
			stop(m)

			m = newManager(t, root, api) // a new life
			for i, want := range [][]string{{"x/y=1", "x/y=2"}, {"x/y=2"}, nil} {
				if got, err := m.CDI(one, &one.Spec.Containers[i]); err != nil || !slices.Equal(got, want) {
					t.Errorf("container %s gets %v, %v", one.Spec.Containers[i].Name, got, err)
				}
			}
			if err := m.Release(t.Context(), "one"); err != nil {
				t.Errorf("while another pod has the claim: %v", err)
			}
			if err := m.Release(t.Context(), "two"); err == nil {
				t.Error("a claim is given back without its driver")
			}
			if err := m.Register(plugin); err != nil {
				t.Fatal(err)
			}
			if err := m.Release(t.Context(), "two"); err != nil {
				t.Fatal(err)
			}
			if calls := driver.took(); calls != "unprepare shared" || len(m.Pods()) != 0 {
				t.Errorf("the driver was asked: %s; pods left: %v", calls, m.Pods())
			}
			m.Unregister(plugin)
			stop(m)
		})
	}
}

func TestClaimsThatAPodMayNotUse(t *testing.T) {
	p, other := podOf("p", "c"), podOf("other", "c")
	foreign := claimOf("c", other)
	pending := claimOf("c", p)
	pending.Status.Allocation = nil
	for want, c := range map[string]*resourcev1.ResourceClaim{
		"fetch ResourceClaim c: no claim c":                   nil,
		"pod p (p) is not allowed to use ResourceClaim c (c)": foreign,
		"ResourceClaim c: claim is not allocated":             pending,
	} {
		m := newManager(t, t.TempDir(), &claims{objects: map[string]*resourcev1.ResourceClaim{"c": c}})
		if err := m.Prepare(t.Context(), p); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
