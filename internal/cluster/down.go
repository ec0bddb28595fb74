package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"proa/internal/containerd"
	"proa/internal/kubelet"
	"proa/internal/network"
	"proa/internal/payload"
)

// DownOptions say how much Down takes away.
type DownOptions struct {
	KeepPods bool // leave containers and their network as they are
	Delete   bool // remove the data too
}

const (
	stopGrace    = 20 * time.Second
	podStopGrace = 10 // seconds that each container gets
)

// Down stops the cluster of l: the process, then its pods, containerd and what
// they had in the kernel (links, nft table, mounts, cgroups). The data stays
// unless Delete. It is idempotent and works after a crash, too.
func Down(ctx context.Context, l Layout, o DownOptions) error {
	if os.Geteuid() != 0 {
		return errors.New("stopping a node needs root: run the same command with sudo")
	}
	settings, err := readSettings(l)
	if err != nil {
		return err
	}
	if settings == nil && !o.Delete {
		return fmt.Errorf("there is no cluster in %s", l.Data)
	}
	if _, err := Terminate(l, stopGrace); err != nil {
		return err
	}
	if o.KeepPods {
		return nil
	}
	if err := stopNode(ctx, l, settings, o.Delete); err != nil {
		return err
	}
	if !o.Delete {
		return nil
	}
	if err := removeFromKubeconfig(l); err != nil {
		return err
	}
	return errors.Join(kubelet.RemoveLogLinks(l.Logs()), os.RemoveAll(l.Run), os.RemoveAll(l.Data))
}

// stopNode takes away what runs below the API, in the order it was built on:
// containers, networks, mounts.
func stopNode(ctx context.Context, l Layout, s *Settings, remove bool) error {
	bin, err := payload.Unpack(ctx, l.Payload())
	if err != nil {
		return err
	}
	runtime, err := containerd.New(containerdConfig(l, bin))
	if err != nil {
		return err
	}
	if remove {
		err = runtime.Delete(ctx)
	} else {
		err = stopPods(ctx, runtime)
	}
	if err != nil {
		return fmt.Errorf("stop containers: %w", err)
	}
	if err := network.Remove(networkRemains(l, s)); err != nil {
		return fmt.Errorf("remove the pod network: %w", err)
	}
	if err := containerd.UnmountBelow(l.Kubelet()); err != nil {
		return fmt.Errorf("unmount volumes: %w", err)
	}
	return nil
}

// stopPods ends all pods, each container with its grace, and then containerd,
// which is started for that where it does not run.
func stopPods(ctx context.Context, runtime *containerd.Runtime) error {
	supervised, end := context.WithCancel(ctx)
	defer end()
	done := make(chan error, 1)
	go func() { done <- runtime.Run(supervised) }()
	limit, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := runtime.Ready(limit)
	if err == nil {
		err = runtime.StopPods(limit, podStopGrace)
	}
	end()
	return errors.Join(err, <-done, runtime.Stop(ctx))
}
