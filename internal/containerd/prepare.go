package containerd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"proa/internal/images"
	"proa/internal/payload"
)

const (
	// startLimit is how long containerd may take from start to readiness: it recovers its
	// containers first.
	startLimit = 2 * time.Minute
	poll       = 5 * time.Millisecond
)

// prepare waits until containerd's CRI service is ready for pods and loads the pause image.
func (r *Runtime) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := r.awaitSocket(ctx); err != nil {
		return err
	}
	if err := r.awaitRuntime(ctx); err != nil {
		return err
	}
	store, err := images.Dial(r.Endpoint())
	if err != nil {
		return err
	}
	defer store.Close()
	if _, err := store.Get(ctx, payload.PauseImage); !errors.Is(err, images.ErrNotFound) {
		return err
	}
	archive, err := os.Open(r.config.Bin.PauseArchive)
	if err != nil {
		return err
	}
	defer archive.Close()
	_, err = store.Load(ctx, archive)
	return err
}

// awaitSocket waits until something listens: a socket file alone may be an earlier containerd's.
func (r *Runtime) awaitSocket(ctx context.Context) error {
	for {
		conn, err := net.Dial("unix", r.Socket())
		if err == nil {
			return conn.Close()
		}
		if err := r.sleep(ctx, poll); err != nil {
			return fmt.Errorf("containerd does not listen: %w", err)
		}
	}
}

func (r *Runtime) awaitRuntime(ctx context.Context) error {
	conn, err := grpc.NewClient(r.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	runtime := runtimeapi.NewRuntimeServiceClient(conn)
	for {
		status, err := runtime.Status(ctx, &runtimeapi.StatusRequest{}, grpc.WaitForReady(true))
		if err == nil && runtimeReady(status) {
			return nil
		}
		if sleepErr := r.sleep(ctx, poll); sleepErr != nil {
			return fmt.Errorf("containerd is not ready: %w", errors.Join(err, sleepErr))
		}
	}
}

func runtimeReady(status *runtimeapi.StatusResponse) bool {
	for _, condition := range status.GetStatus().GetConditions() {
		if condition.Type == runtimeapi.RuntimeReady {
			return condition.Status
		}
	}
	return false
}

func (r *Runtime) sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-r.config.Clock.After(d):
		return nil
	}
}
