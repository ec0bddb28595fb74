// Package cri is the container runtime as the node agent sees it: a connection
// to a CRI v1 endpoint, the state of pods read back from it, and its event
// stream. It keeps nothing in memory: what a call returns is what the runtime
// said just now, so the agent can be killed and started again at any time. What
// has to survive rides on the containers as labels and annotations.
package cri

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxMessage bounds one CRI message, in bytes: a node's full list of containers
// with all annotations fits.
const maxMessage = 16 << 20

// Runtime speaks to one CRI endpoint. The embedded clients are the plain calls.
type Runtime struct {
	runtimeapi.RuntimeServiceClient
	Images runtimeapi.ImageServiceClient

	conn *grpc.ClientConn
}

// Dial connects to a unix socket, given as a path or a unix:// address. The
// connection is made on first use and again whenever it breaks.
func Dial(endpoint string) (*Runtime, error) {
	target := endpoint
	if !strings.Contains(target, "://") {
		target = "unix://" + target
	}
	conn, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 5 * time.Second}),
	)
	if err != nil {
		return nil, fmt.Errorf("dial runtime %s: %w", endpoint, err)
	}
	return &Runtime{
		RuntimeServiceClient: runtimeapi.NewRuntimeServiceClient(conn),
		Images:               runtimeapi.NewImageServiceClient(conn),
		conn:                 conn,
	}, nil
}

// Close ends the connection and every call on it.
func (r *Runtime) Close() error { return r.conn.Close() }

// IsNotFound reports whether the runtime does not know the object of a call.
func IsNotFound(err error) bool { return grpcstatus.Code(err) == codes.NotFound }

// Message is the text of a runtime error without gRPC's decoration.
func Message(err error) string {
	if s, ok := grpcstatus.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// Command runs a command in a container and returns its output. A command that
// ran and failed gives a nil error and its exit code.
func (r *Runtime) Command(ctx context.Context, containerID string, cmd []string, timeout time.Duration) (out []byte, code int32, err error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		// The runtime enforces the timeout; the deadline guards against a
		// runtime that does not answer.
		ctx, cancel = context.WithTimeout(ctx, timeout+10*time.Second)
		defer cancel()
	}
	resp, err := r.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
		ContainerId: containerID, Cmd: cmd, Timeout: int64((timeout + time.Second - 1) / time.Second),
	})
	if err != nil {
		return nil, 0, err
	}
	return append(resp.Stdout, resp.Stderr...), resp.ExitCode, nil
}
