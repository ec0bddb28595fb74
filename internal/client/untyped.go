package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"
)

// A watch that fails is tried again after shortestPause, then after twice as long each
// time, up to longestPause; one that lasted or brought news begins anew.
const (
	shortestPause = time.Second
	longestPause  = 30 * time.Second
)

// Follower tells of every object of one kind, whichever the API serves, and of
// every change to them. It keeps nothing itself. Its functions are called one at
// a time, in order, and must not block.
type Follower struct {
	API      API
	Resource schema.GroupVersionResource
	Options  metav1.ListOptions // selectors
	Clock    clock.Clock        // nil: the real one

	// Begin tells that a full list starts. It happens at first and when a watch
	// cannot be resumed: what Change does not report until Complete is gone.
	Begin    func()
	Complete func()
	// Change reports an object as it is, or as it was when it was removed. An
	// error of it ends the watch; it is resumed later.
	Change func(obj Object, removed bool) error
	// Reached reports the resourceVersion that all changes so far lead to. Nil: nobody asks.
	Reached func(resourceVersion string)
}

// Run follows until ctx ends, resuming where a closed watch stopped and starting
// over from a full list when the server has forgotten that point.
func (f *Follower) Run(ctx context.Context) error {
	clk := f.Clock
	if clk == nil {
		clk = clock.RealClock{}
	}
	resume, pause := "", shortestPause
	for ctx.Err() == nil {
		before, begun := resume, clk.Now()
		var err error
		resume, err = f.watch(ctx, resume)
		if resume != before || clk.Since(begun) > longestPause {
			pause = shortestPause
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			resume = ""
			continue
		}
		level := slog.LevelWarn
		if apierrors.IsNotFound(err) || pause > shortestPause { // the kind is not served any more, and who follows it will stop; or it was told
			level = slog.LevelDebug
		}
		slog.Log(ctx, level, "watch ended", "resource", f.Resource.Resource, "err", err)
		select {
		case <-clk.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, longestPause)
	}
	return nil
}

// watch reads one watch to its end and returns where the next one can resume.
func (f *Follower) watch(ctx context.Context, resume string) (string, error) {
	opts := f.Options
	opts.AllowWatchBookmarks = true
	listing := resume == "" // until the full list is complete
	if listing {
		send := true
		opts.SendInitialEvents = &send
		opts.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	} else {
		opts.ResourceVersion = resume
	}
	w, err := f.API.Watch(ctx, Ref{Resource: f.Resource}, opts)
	if listing && apierrors.IsInvalid(err) { // the server streams no lists
		return f.list(ctx)
	}
	if err != nil {
		return resume, err
	}
	defer w.Stop()
	if listing {
		f.Begin()
	}
	for {
		events, err := w.Next(ctx)
		if errors.Is(err, io.EOF) {
			return resume, nil
		}
		if err != nil {
			return resume, err
		}
		for _, ev := range events {
			switch ev.Type {
			case watch.Error:
				return resume, fmt.Errorf("watch %s: %v", f.Resource.Resource, ev.Object)
			case watch.Bookmark:
				if listing && ev.Object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
					listing = false
					f.Complete()
				}
			default:
				if err := f.Change(ev.Object, ev.Type == watch.Deleted); err != nil {
					return resume, err
				}
			}
			if listing {
				continue
			}
			resume = ev.Object.GetResourceVersion()
			if f.Reached != nil {
				f.Reached(resume)
			}
		}
	}
}

// page is how many objects a list brings at once.
const page = 500

// list reads the full list and returns where a watch takes over.
func (f *Follower) list(ctx context.Context) (string, error) {
	f.Begin()
	opts := f.Options
	opts.Limit = page
	for {
		l, err := f.API.List(ctx, Ref{Resource: f.Resource}, opts)
		if err != nil {
			return "", err
		}
		for _, obj := range l.Items {
			if err := f.Change(obj, false); err != nil {
				return "", err
			}
		}
		if opts.Continue = l.Continue; opts.Continue != "" {
			continue
		}
		f.Complete()
		if f.Reached != nil {
			f.Reached(l.ResourceVersion)
		}
		return l.ResourceVersion, nil
	}
}
