package cri

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/backoff"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
)

// reconnect paces new connections to a runtime that is away.
var reconnect = backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second}

// Follow reports the UID of every pod in which a container was created,
// started, stopped or removed, until ctx ends. After every (re)connection it
// calls relist first, because events may have been missed; lost says that the
// stream broke, and may be nil.
func (r *Runtime) Follow(ctx context.Context, clk clock.Clock, relist func(), changed func(types.UID), lost func(error)) error {
	delay := time.Second
	for {
		err := r.follow(ctx, relist, func(uid types.UID) {
			delay = time.Second
			changed(uid)
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if lost != nil && !errors.Is(err, io.EOF) {
			lost(err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-clk.After(delay):
			delay = min(2*delay, 10*time.Second)
		}
	}
}

func (r *Runtime) follow(ctx context.Context, relist func(), changed func(types.UID)) error {
	stream, err := r.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return err
	}
	relist()
	for {
		ev, err := stream.Recv()
		if err != nil {
			return err
		}
		if uid := ev.PodSandboxStatus.GetMetadata().GetUid(); uid != "" {
			changed(types.UID(uid))
			continue
		}
		for _, c := range ev.ContainersStatuses {
			if uid := c.Labels[labelPodUID]; uid != "" {
				changed(types.UID(uid))
				break
			}
		}
	}
}
