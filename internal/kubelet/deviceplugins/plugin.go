package deviceplugins

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"proa/internal/kubelet/plugins"
)

// plugin serves one resource. Manager.mu guards devices and gone; the rest does not
// change.
type plugin struct {
	name    string
	socket  string
	conn    *grpc.ClientConn // nil: not since the agent started
	client  pluginapi.DevicePluginClient
	options *pluginapi.DevicePluginOptions
	cancel  context.CancelFunc

	devices map[string]*pluginapi.Device
	gone    time.Time // since when it does not answer; zero while it does
}

func (p *plugin) healthy() []string {
	var ids []string
	for id, d := range p.devices {
		if p.gone.IsZero() && d.Health == pluginapi.Healthy {
			ids = append(ids, id)
		}
	}
	return ids
}

func (p *plugin) expired(now time.Time) bool { return !p.gone.IsZero() && now.Sub(p.gone) >= grace }

func (p *plugin) allocate(ctx context.Context, ids []string) (*pluginapi.ContainerAllocateResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := p.client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return nil, err
	}
	if len(answer.ContainerResponses) == 0 {
		return nil, fmt.Errorf("no containers return in allocation response %v", answer)
	}
	return answer.ContainerResponses[0], nil
}

// prefer asks which devices the plugin would rather give, if it says so.
func (p *plugin) prefer(ctx context.Context, available, must []string, count int) ([]string, error) {
	if !p.options.GetGetPreferredAllocationAvailable() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := p.client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: available, MustIncludeDeviceIDs: must, AllocationSize: int32(count),
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("device plugin GetPreferredAllocation rpc failed with err: %w", err)
	}
	if len(answer.GetContainerResponses()) == 0 {
		return nil, nil
	}
	return answer.ContainerResponses[0].DeviceIDs, nil
}

// start tells the plugin that a container with these devices is about to start, if
// it asked for that.
func (p *plugin) start(ctx context.Context, ids []string) error {
	if p.client == nil || !p.options.GetPreStartRequired() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pluginapi.KubeletPreStartContainerRPCTimeoutInSecs*time.Second)
	defer cancel()
	if _, err := p.client.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: ids}); err != nil {
		return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
	}
	return nil
}

// registry is the service that plugins call.
type registry struct {
	pluginapi.UnimplementedRegistrationServer
	m *Manager
}

// Register takes a plugin that serves on a socket beside the registry's.
func (r registry) Register(_ context.Context, in *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if !slices.Contains(pluginapi.SupportedVersions[:], in.Version) {
		return nil, fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", in.Version, pluginapi.SupportedVersions)
	}
	return &pluginapi.Empty{}, r.m.add(in.ResourceName, filepath.Join(r.m.dir, filepath.Base(in.Endpoint)), in.Options)
}

// Register implements plugins.Handler, for plugins of the registration directory.
func (m *Manager) Register(p plugins.Plugin) error {
	if !slices.ContainsFunc(pluginapi.SupportedVersions[:], func(v string) bool { return slices.Contains(p.Versions, v) }) {
		return fmt.Errorf("manager expected one of these versions %v, plugin supports %v", pluginapi.SupportedVersions, p.Versions)
	}
	options, err := ask(p.Endpoint)
	if err != nil {
		return fmt.Errorf("ask device plugin %s for its options: %w", p.Name, err)
	}
	return m.add(p.Name, p.Endpoint, options)
}

func ask(socket string) (*pluginapi.DevicePluginOptions, error) {
	conn, err := plugins.Dial(socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	return pluginapi.NewDevicePluginClient(conn).GetDevicePluginOptions(ctx, &pluginapi.Empty{})
}

// Unregister implements plugins.Handler.
func (m *Manager) Unregister(p plugins.Plugin) {
	m.mu.Lock()
	current := m.resources[p.Name]
	m.mu.Unlock()
	if current != nil && current.socket == p.Endpoint {
		m.lose(current)
	}
}

// add takes in a plugin in place of the one that served its resource before.
func (m *Manager) add(name, socket string, options *pluginapi.DevicePluginOptions) error {
	if !extended(name) {
		return fmt.Errorf("the ResourceName %q is invalid", name)
	}
	conn, err := plugins.Dial(socket)
	if err != nil {
		return err
	}
	p := &plugin{name: name, socket: socket, conn: conn, client: pluginapi.NewDevicePluginClient(conn), options: options, devices: map[string]*pluginapi.Device{}}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		cancel()
		return conn.Close()
	}
	old := m.resources[name]
	if old != nil {
		p.devices, p.gone = old.devices, m.c.Clock.Now() // until it has listed its own
	}
	m.resources[name] = p
	m.wg.Go(func() { m.follow(ctx, p) })
	m.mu.Unlock()
	if old != nil && old.cancel != nil {
		old.cancel()
	}
	return nil
}

// extended tells whether a resource is one that plugins may serve.
func extended(name string) bool {
	domain, _, found := strings.Cut(name, "/")
	return found && !strings.HasSuffix(domain, "kubernetes.io") && !strings.HasPrefix(name, corev1.DefaultResourceRequestsPrefix) &&
		len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+name)) == 0
}

// follow keeps the list of a plugin's devices until the plugin ends or ctx does.
func (m *Manager) follow(ctx context.Context, p *plugin) {
	defer p.conn.Close()
	if err := m.listen(ctx, p); err != nil && ctx.Err() == nil {
		m.c.Log.Warn("device plugin ended", "resource", p.name, "err", err)
	}
	m.lose(p)
}

func (m *Manager) listen(ctx context.Context, p *plugin) error {
	stream, err := p.client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		return err
	}
	for {
		list, err := stream.Recv()
		if err != nil {
			return err
		}
		devices := make(map[string]*pluginapi.Device, len(list.Devices))
		for _, d := range list.Devices {
			devices[d.ID] = d
		}
		m.mu.Lock()
		if m.resources[p.name] == p {
			p.devices, p.gone = devices, time.Time{}
		}
		m.mu.Unlock()
		m.changed(p.name)
	}
}

// lose notes that a plugin does not answer any more.
func (m *Manager) lose(p *plugin) {
	m.mu.Lock()
	if m.resources[p.name] == p && p.gone.IsZero() {
		p.gone = m.c.Clock.Now()
	}
	m.mu.Unlock()
	p.cancel()
	m.changed(p.name)
}

// changed keeps the list of resources and tells who shows them.
func (m *Manager) changed(name string) {
	if err := m.save(); err != nil {
		m.c.Log.Warn("save device plugins", "err", err)
	}
	m.mu.Lock()
	var pods []types.UID
	for uid, containers := range m.given {
		for _, grants := range containers {
			if grants[name] != nil {
				pods = append(pods, uid)
				break
			}
		}
	}
	m.mu.Unlock()
	m.c.Changed(pods...)
}

// Run serves the registry until ctx ends. Plugins see its socket anew and register again.
func (m *Manager) Run(ctx context.Context) error {
	if err := m.clear(); err != nil {
		return err
	}
	listener, err := plugins.Listen(filepath.Join(m.dir, "kubelet.sock"))
	if err != nil {
		return fmt.Errorf("serve device plugins: %w", err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, registry{m: m})
	m.wg.Go(func() {
		if err := server.Serve(listener); err != nil {
			m.c.Log.Warn("serve device plugins", "err", err)
		}
	})
	tick := m.c.Clock.NewTicker(graceCheck)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C():
			if m.anyGone() {
				m.c.Changed()
			}
		}
	}
	server.Stop()
	m.mu.Lock()
	m.closed = true
	for _, p := range m.resources {
		if p.cancel != nil {
			p.cancel()
		}
	}
	m.mu.Unlock()
	m.wg.Wait()
	return ctx.Err()
}

// clear removes the sockets of an earlier life.
func (m *Manager) clear() error {
	if err := os.MkdirAll(m.dir, 0o750); err != nil {
		return err
	}
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type()&fs.ModeSocket == 0 {
			continue
		}
		if err := os.Remove(filepath.Join(m.dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// anyGone tells whether a plugin's absence has just become long.
func (m *Manager) anyGone() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.c.Clock.Now()
	return slices.ContainsFunc(slices.Collect(maps.Values(m.resources)), func(p *plugin) bool {
		return p.expired(now) && !p.expired(now.Add(-graceCheck))
	})
}
