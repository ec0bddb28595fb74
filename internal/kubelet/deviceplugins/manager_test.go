package deviceplugins

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	clocktesting "k8s.io/utils/clock/testing"
)

const toys = "example.com/toy"

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// toyPlugin has two devices.
type toyPlugin struct {
	pluginapi.UnimplementedDevicePluginServer
}

func (toyPlugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{{ID: "a", Health: pluginapi.Healthy}, {ID: "b", Health: pluginapi.Healthy}}})
	if err == nil {
		<-stream.Context().Done()
	}
	return err
}

func (toyPlugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	out := &pluginapi.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		out.ContainerResponses = append(out.ContainerResponses, &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"TOYS": strings.Join(c.DevicesIds, " ")}})
	}
	return out, nil
}

// life is one life of the agent.
type life struct {
	*Manager
	t       *testing.T
	changed chan struct{}
	end     func()
}

func begin(t *testing.T, root string, clock *clocktesting.FakeClock) *life {
	t.Helper()
	l := &life{t: t, changed: make(chan struct{}, 100)}
	var err error
	l.Manager, err = New(Config{RootDir: root, Clock: clock, Changed: func(...types.UID) { l.changed <- struct{}{} }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- l.Run(ctx) }()
	ended := false
	l.end = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(l.end)
	return l
}

// serve starts a plugin and registers it as plugins do.
func (l *life) serve(root string) *grpc.Server {
	l.t.Helper()
	conn, err := grpc.NewClient("unix:"+filepath.Join(root, "device-plugins", "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		l.t.Fatal(err)
	}
	defer conn.Close()
	registry := pluginapi.NewRegistrationClient(conn)
	wrong := &pluginapi.RegisterRequest{Version: "v1alpha", Endpoint: "toy.sock", ResourceName: toys}
	if _, err := registry.Register(l.t.Context(), wrong, grpc.WaitForReady(true)); err == nil {
		l.t.Error("a plugin of another version is taken")
	}
	for _, name := range []string{"toy", "kubernetes.io/toy", "requests.example.com/toy"} {
		if _, err := registry.Register(l.t.Context(), &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: "toy.sock", ResourceName: name}); err == nil {
			l.t.Errorf("a plugin of %s is taken", name)
		}
	}
	listener, err := net.Listen("unix", filepath.Join(root, "device-plugins", "toy.sock"))
	if err != nil {
		l.t.Fatal(err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, toyPlugin{})
	go func() { _ = server.Serve(listener) }()
	l.t.Cleanup(server.Stop)
	if _, err := registry.Register(l.t.Context(), &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: "toy.sock", ResourceName: toys}); err != nil {
		l.t.Fatal(err)
	}
	return server
}

// counts waits until the node has so many devices, and so many that are healthy.
func (l *life) counts(all, healthy int64) {
	l.t.Helper()
	for {
		capacity, allocatable := l.Capacity()
		a, h := capacity[toys], allocatable[toys]
		if a.Value() == all && h.Value() == healthy {
			return
		}
		select {
		case <-l.changed:
		case <-l.t.Context().Done():
			l.t.Fatalf("the node has %d of %d devices", h.Value(), a.Value())
		}
	}
}

func podOf(uid string, count int64) *corev1.Pod {
	p := &corev1.Pod{}
	p.UID = types.UID(uid)
	p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{toys: *resource.NewQuantity(count, resource.DecimalSI)}}}}
	return p
}

func TestANewLifeGivesNoDeviceTwice(t *testing.T) {
	root, clock := t.TempDir(), clocktesting.NewFakeClock(epoch)
	first := begin(t, root, clock)
	server := first.serve(root)
	first.counts(2, 2)
	one := podOf("one", 1)
	if err := first.Allocate(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	before, err := first.Give(t.Context(), one, &one.Spec.Containers[0])
	if err != nil || len(before.Env) != 1 {
		t.Fatalf("given %+v, %v", before, err)
	}
	first.end()
	server.Stop()

	second := begin(t, root, clock)
	second.counts(2, 0) // until the plugin is back
	if err := second.Allocate(t.Context(), podOf("two", 1)); err == nil || err.Error() != "requested number of devices unavailable for example.com/toy. Requested: 1, Available: 0" {
		t.Errorf("without the plugin: %v", err)
	}
	second.serve(root)
	second.counts(2, 2)
	two := podOf("two", 1)
	if err := second.Allocate(t.Context(), two); err != nil {
		t.Fatal(err)
	}
	kept, _ := second.Give(t.Context(), one, &one.Spec.Containers[0])
	other, _ := second.Give(t.Context(), two, &two.Spec.Containers[0])
	if string(kept.Env[0].Value) != string(before.Env[0].Value) || string(other.Env[0].Value) == string(before.Env[0].Value) {
		t.Errorf("the pods have %s and %s, the first had %s", kept.Env[0].Value, other.Env[0].Value, before.Env[0].Value)
	}
	if err := second.Allocate(t.Context(), podOf("three", 1)); err == nil {
		t.Error("a device is given twice")
	}
	if err := second.Release("one"); err != nil {
		t.Fatal(err)
	}
	if err := second.Allocate(t.Context(), podOf("three", 1)); err != nil {
		t.Errorf("after another was released: %v", err)
	}
}

func TestAPluginThatStaysAwayHasNoCapacity(t *testing.T) {
	root, clock := t.TempDir(), clocktesting.NewFakeClock(epoch)
	l := begin(t, root, clock)
	server := l.serve(root)
	l.counts(2, 2)
	server.Stop()
	l.counts(2, 0)
	clock.Step(grace)
	capacity, _ := l.Capacity()
	if q := capacity[toys]; q.Value() != 0 {
		t.Errorf("the node still has %d", q.Value())
	}
}
