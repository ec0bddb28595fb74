package containerd

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StopPods stops every container and pod sandbox, giving each container grace seconds, and
// removes them. containerd must be running. It goes on after a failure and returns them all.
func (r *Runtime) StopPods(ctx context.Context, grace int64) error {
	conn, err := grpc.NewClient(r.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	runtime := runtimeapi.NewRuntimeServiceClient(conn)
	if err := stopContainers(ctx, runtime, grace); err != nil {
		return err
	}
	sandboxes, err := runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list pod sandboxes: %w", err)
	}
	var failures []error
	for _, sandbox := range sandboxes.Items {
		_, err := runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox.Id})
		if err == nil {
			_, err = runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox.Id})
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("stop sandbox of pod %s/%s: %w", sandbox.GetMetadata().GetNamespace(), sandbox.GetMetadata().GetName(), err))
		}
	}
	return errors.Join(failures...)
}

// stopContainers stops the running containers all at once, so that they share one grace period.
func stopContainers(ctx context.Context, runtime runtimeapi.RuntimeServiceClient, grace int64) error {
	running := &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}
	list, err := runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{State: running}})
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	results := make(chan error)
	for _, container := range list.Containers {
		go func() {
			_, err := runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: container.Id, Timeout: grace})
			results <- err
		}()
	}
	var failures []error
	for range list.Containers {
		failures = append(failures, <-results)
	}
	return errors.Join(failures...)
}
