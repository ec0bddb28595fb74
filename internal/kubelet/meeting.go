package kubelet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"proa/internal/kubelet/cri"
)

const systemdDriver, cgroupfsDriver = "systemd", "cgroupfs"

// meeting is what the runtime says of itself at the start.
type meeting struct {
	name    string
	systemd bool // its cgroup driver
	old     bool // it does not tell its cgroup driver
}

// meetRuntime waits for the runtime's first answer. One that does not speak CRI v1
// is an error.
func (k *Kubelet) meetRuntime(ctx context.Context, rt *cri.Runtime) (meeting, error) {
	wait := 20 * time.Millisecond
	for {
		name, err := rt.Check(ctx)
		if err == nil {
			return k.askDriver(ctx, rt, name)
		}
		if errors.Is(err, cri.ErrOtherVersion) {
			return meeting{}, err
		}
		if wait > time.Second {
			k.c.Log.Warn("wait for the container runtime", "endpoint", k.c.Configuration.ContainerRuntimeEndpoint, "err", err)
		}
		if err := k.pause(ctx, wait); err != nil {
			return meeting{}, err
		}
		wait = min(wait*3/2, 3*time.Second)
	}
}

func (k *Kubelet) pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-k.c.Clock.After(d):
		return nil
	}
}

// askDriver learns the cgroup driver, which goes before the configured one. A
// runtime that does not know the question uses the configured one.
func (k *Kubelet) askDriver(ctx context.Context, rt *cri.Runtime, name string) (meeting, error) {
	m := meeting{name: name, systemd: k.c.Configuration.CgroupDriver == systemdDriver}
	var resp *runtimeapi.RuntimeConfigResponse
	var err error
	for range 3 { // the runtime may be starting still
		resp, err = rt.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
		if err == nil || grpcstatus.Code(err) == codes.Unimplemented {
			break
		}
		if err := k.pause(ctx, 2*time.Second); err != nil {
			return m, err
		}
	}
	if grpcstatus.Code(err) == codes.Unimplemented {
		m.old = true
		k.c.Log.Info("CRI implementation should be updated to support RuntimeConfig. Falling back to using cgroupDriver from kubelet config.")
		return m, nil
	}
	if err != nil {
		return m, err
	}
	if resp.Linux == nil {
		return m, nil
	}
	switch d := resp.Linux.CgroupDriver; d {
	case runtimeapi.CgroupDriver_SYSTEMD:
		m.systemd = true
	case runtimeapi.CgroupDriver_CGROUPFS:
		m.systemd = false
	default:
		return m, fmt.Errorf("runtime returned an unknown cgroup driver %d", d)
	}
	return m, nil
}
