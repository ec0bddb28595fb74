// Package podresources tells monitors on the node, over a socket, which devices its
// containers have (KEP-606, KEP-3695).
package podresources

import (
	"context"
	"fmt"
	"path/filepath"

	"google.golang.org/grpc"

	corev1 "k8s.io/api/core/v1"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"proa/internal/kubelet/plugins"
)

// Config of a Server. All fields are required.
type Config struct {
	RootDir string // the kubelet's directory; pod-resources/ lies in it
	// Pods are those that take up room on the node.
	Pods func() []*corev1.Pod
	// Devices and Claims are what a container has of plugins and of ResourceClaims.
	Devices func(*corev1.Pod, *corev1.Container) []*api.ContainerDevices
	Claims  func(*corev1.Pod, *corev1.Container) []*api.DynamicResource
	// Allocatable are the healthy devices of plugins.
	Allocatable func() []*api.ContainerDevices
}

// Server of the v1 API.
type Server struct {
	api.UnimplementedPodResourcesListerServer
	c Config
}

// New returns a Server that Run opens.
func New(c Config) *Server { return &Server{c: c} }

// Run serves on RootDir/pod-resources/kubelet.sock until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	listener, err := plugins.Listen(filepath.Join(s.c.RootDir, "pod-resources", "kubelet.sock"))
	if err != nil {
		return fmt.Errorf("serve pod resources: %w", err)
	}
	server := grpc.NewServer()
	api.RegisterPodResourcesListerServer(server, s)
	defer context.AfterFunc(ctx, server.Stop)()
	if err := server.Serve(listener); err != nil {
		return fmt.Errorf("serve pod resources: %w", err)
	}
	return ctx.Err()
}

// List implements api.PodResourcesListerServer.
func (s *Server) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	out := &api.ListPodResourcesResponse{}
	for _, pod := range s.c.Pods() {
		out.PodResources = append(out.PodResources, s.pod(pod))
	}
	return out, nil
}

// Get implements api.PodResourcesListerServer.
func (s *Server) Get(_ context.Context, r *api.GetPodResourcesRequest) (*api.GetPodResourcesResponse, error) {
	for _, pod := range s.c.Pods() {
		if pod.Name == r.PodName && pod.Namespace == r.PodNamespace {
			return &api.GetPodResourcesResponse{PodResources: s.pod(pod)}, nil
		}
	}
	return nil, fmt.Errorf("pod %s in namespace %s not found", r.PodName, r.PodNamespace)
}

// GetAllocatableResources implements api.PodResourcesListerServer.
func (s *Server) GetAllocatableResources(context.Context, *api.AllocatableResourcesRequest) (*api.AllocatableResourcesResponse, error) {
	return &api.AllocatableResourcesResponse{Devices: s.c.Allocatable()}, nil
}

// pod tells of the containers that run with the pod: not of init containers, which
// end before.
func (s *Server) pod(pod *corev1.Pod) *api.PodResources {
	out := &api.PodResources{Name: pod.Name, Namespace: pod.Namespace}
	add := func(c *corev1.Container) {
		out.Containers = append(out.Containers, &api.ContainerResources{Name: c.Name, Devices: s.c.Devices(pod, c), DynamicResources: s.c.Claims(pod, c)})
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return out
}
