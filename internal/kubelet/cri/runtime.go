// Package cri is the container runtime as the node agent sees it: a connection
// to a CRI v1 endpoint, the state of pods read back from it, and its event
// stream. It keeps nothing in memory: what a call returns is what the runtime
// said just now, so the agent can be killed and started again at any time. What
// has to survive rides on the containers as labels and annotations.
package cri

import (
	"context"
	"errors"
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

	endpoints []string
	conns     []*grpc.ClientConn
}

// Config says where a runtime is. An endpoint is a unix socket, given as a path or
// a unix:// address.
type Config struct {
	Endpoint string
	Images   string        // endpoint that manages images; default Endpoint
	Timeout  time.Duration // of calls that are not long by nature; default 2 min
}

const callTimeout = 2 * time.Minute

// Connect returns a Runtime. The connection is made on first use and again whenever
// it breaks.
func Connect(c Config) (*Runtime, error) {
	if c.Timeout == 0 {
		c.Timeout = callTimeout
	}
	r := &Runtime{}
	conn, err := r.dial(c.Endpoint, c.Timeout)
	if err != nil {
		return nil, err
	}
	r.RuntimeServiceClient = runtimeapi.NewRuntimeServiceClient(conn)
	if c.Images != "" && c.Images != c.Endpoint {
		if conn, err = r.dial(c.Images, c.Timeout); err != nil {
			return nil, errors.Join(err, r.Close())
		}
	}
	r.Images = runtimeapi.NewImageServiceClient(conn)
	return r, nil
}

func (r *Runtime) dial(endpoint string, timeout time.Duration) (*grpc.ClientConn, error) {
	target := endpoint
	if !strings.Contains(target, "://") {
		target = "unix://" + target
	}
	if !strings.HasPrefix(target, "unix://") {
		return nil, fmt.Errorf("dial runtime %s: only unix sockets are supported", endpoint)
	}
	conn, err := grpc.NewClient(target,
		grpc.WithUnaryInterceptor(limit(timeout)),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 5 * time.Second}),
	)
	if err != nil {
		return nil, fmt.Errorf("dial runtime %s: %w", endpoint, err)
	}
	r.endpoints, r.conns = append(r.endpoints, endpoint), append(r.conns, conn)
	return conn, nil
}

// long are the calls whose length is their caller's to say.
var long = map[string]bool{
	runtimeapi.ImageService_PullImage_FullMethodName:             true,
	runtimeapi.RuntimeService_ExecSync_FullMethodName:            true,
	runtimeapi.RuntimeService_StopContainer_FullMethodName:       true,
	runtimeapi.RuntimeService_CheckpointContainer_FullMethodName: true,
}

// limit gives each call a deadline. A sandbox waits for its network: twice the time.
func limit(timeout time.Duration) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if long[method] {
			return call(ctx, method, req, reply, conn, opts...)
		}
		bound := timeout
		if method == runtimeapi.RuntimeService_RunPodSandbox_FullMethodName {
			bound *= 2
		}
		ctx, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		return call(ctx, method, req, reply, conn, opts...)
	}
}

// ErrOtherVersion is of endpoints that answer, but not in CRI v1.
var ErrOtherVersion = errors.New("the endpoint does not serve CRI v1")

// Check returns the runtime's name if it serves CRI v1, images included.
func (r *Runtime) Check(ctx context.Context) (name string, err error) {
	v, err := r.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return "", r.unfit("runtime", r.endpoints[0], err)
	}
	if _, err := r.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{}); err != nil {
		return "", r.unfit("image", r.endpoints[len(r.endpoints)-1], err)
	}
	return v.RuntimeName, nil
}

func (r *Runtime) unfit(api, endpoint string, err error) error {
	wrapped := fmt.Errorf("validate service connection: validate CRI v1 %s API for endpoint %q: %w", api, endpoint, err)
	if grpcstatus.Code(err) == codes.Unimplemented {
		return fmt.Errorf("%w (%w)", wrapped, ErrOtherVersion)
	}
	return wrapped
}

// Close ends the connections and every call on them.
func (r *Runtime) Close() error {
	var errs []error
	for _, conn := range r.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

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
