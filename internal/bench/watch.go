package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// watches measures how fast changes of pods reach many watchers. The delay of an
// event is counted from the moment before its write was sent.
func (r *apiRun) watches(ctx context.Context) error {
	const pods = 16
	writers, err := r.target.newClients(pods)
	if err != nil {
		return err
	}
	defer closeAll(writers)
	err = together(ctx, pods, func(ctx context.Context, i int) error {
		_, err := writers[i].do(ctx, request{method: http.MethodPost, path: r.pods(), body: podBody(r.Namespace, watchedPod(i)), media: mediaJSON})
		return err
	})
	if err != nil {
		return err
	}
	for _, n := range r.Watchers {
		for _, how := range []struct{ name, media string }{{"json", mediaJSON}, {"protobuf", mediaProtobuf}} {
			if err := r.fanOut(ctx, n, how.name, how.media, writers); err != nil {
				return fmt.Errorf("%d watchers: %w", n, err)
			}
		}
	}
	return together(ctx, pods, func(ctx context.Context, i int) error {
		_, err := writers[i].do(ctx, request{method: http.MethodDelete, path: r.pod(watchedPod(i)) + "?gracePeriodSeconds=0"})
		return err
	})
}

func watchedPod(i int) string { return fmt.Sprintf("watched-%02d", i) }

// fanOut opens n watches, lets every writer change its pod until the watchers
// have Events together, and waits for the last of them.
func (r *apiRun) fanOut(ctx context.Context, n int, how, media string, writers []*client) error {
	clients, err := r.target.newClients((n + r.Streams - 1) / r.Streams)
	if err != nil {
		return err
	}
	defer closeAll(clients)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	streams, err := r.openWatches(ctx, clients, n, media, writers[0])
	if err != nil {
		return err
	}
	const most = 64 // writes of every writer: few watchers would need many for their events
	each := min(max(1, r.Events/n/len(writers)), most)
	var s sample
	var readers sync.WaitGroup
	failed := make(chan error, n)
	m := r.Server.start(ctx)
	for _, stream := range streams {
		readers.Go(func() {
			times, err := readEvents(stream, media, each*len(writers))
			if s.merge(times); err != nil {
				failed <- err
				cancel()
			}
		})
	}
	err = together(ctx, len(writers), func(ctx context.Context, i int) error {
		for range each {
			body := stampPatch(time.Now())
			if _, err := writers[i].do(ctx, request{method: http.MethodPatch, path: r.pod(watchedPod(i)), body: body, media: mediaMerge}); err != nil {
				cancel()
				return err
			}
		}
		return nil
	})
	readers.Wait()
	used := m.stop()
	for _, stream := range streams {
		stream.Close()
	}
	select {
	case lost := <-failed:
		return errors.Join(lost, err)
	default:
	}
	if err != nil {
		return err
	}
	f := s.figure("fan-out", fmt.Sprintf("%d watchers, %s", n, how), used.took, used.cpu)
	f.Memory = used.memory
	r.report(f)
	return nil
}

// openWatches starts watches of what happens from now on.
func (r *apiRun) openWatches(ctx context.Context, clients []*client, n int, media string, asker *client) ([]io.ReadCloser, error) {
	revision, err := r.target.revision(ctx, asker, r.pods())
	if err != nil {
		return nil, err
	}
	if media == mediaProtobuf {
		media += ";stream=watch"
	}
	streams := make([]io.ReadCloser, n)
	const dialers = 16 // at once: handshakes are work for both sides
	err = together(ctx, dialers, func(_ context.Context, d int) error {
		for i := d; i < n; i += dialers {
			resp, err := clients[i/r.Streams].open(ctx, request{method: http.MethodGet, path: r.pods() + "?watch=1&resourceVersion=" + revision, accept: media})
			if err != nil {
				return err
			}
			streams[i] = resp.Body
		}
		return nil
	})
	if err != nil {
		for _, s := range streams {
			if s != nil {
				s.Close()
			}
		}
	}
	return streams, err
}
