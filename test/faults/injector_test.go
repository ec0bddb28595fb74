// Package faults runs every controller and the scheduler while things go wrong
// around them: writes are refused, made without an answer, or the last thing that
// the process does; what is read lags behind; watches break and miss what happened
// meanwhile; the API server loses power and opens its store again; the clock jumps by
// hours. The end state must be that of a run in which nothing goes wrong.
package faults

import (
	"context"
	"errors"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/client"
)

// trouble is what happens to one call.
type trouble int

const (
	none    trouble = iota
	refused         // the server says no and nothing is changed
	lost            // the change is made, and the answer lost
	killed          // the process ends before it can write
	orphan          // the process ends once it has written
)

// fate decides which calls meet trouble. Whether one does depends on the seed, on
// what the call is about and on how often that was asked before, and not on which
// goroutine came first: a seed tells the same story again as far as it can.
type fate struct {
	seed uint64

	mu    sync.Mutex
	asked map[string]int
	left  int // of troubles: a run must come to rest
}

// In one call of twelve there is trouble, and in one of those eight a crash.
const (
	oneIn   = 12
	crashIn = 8
)

func newFate(seed uint64, troubles int) *fate {
	return &fate{seed: seed, asked: map[string]int{}, left: troubles}
}

// of decides on one call.
func (f *fate) of(call string) trouble {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left == 0 {
		return none
	}
	f.asked[call]++
	random := f.random(call, f.asked[call])
	if random.IntN(oneIn) != 0 {
		return none
	}
	f.left--
	if random.IntN(crashIn) == 0 {
		return killed + trouble(random.IntN(2))
	}
	return refused + trouble(random.IntN(2))
}

func (f *fate) random(call string, nth int) *rand.Rand {
	h := fnv.New64a()
	io.WriteString(h, call)
	return rand.New(rand.NewPCG(f.seed, h.Sum64()+uint64(nth)))
}

func (f *fate) over() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.left == 0
}

// process is one life of the programs under test. All their calls go through it.
type process struct {
	writes, reads *fate
	dead          atomic.Bool
	kill          context.CancelFunc
}

// as is the API of one user, in a process that trouble may befall.
func (p *process) as(user string, api client.API) client.API { return &troubled{p, user, api} }

type troubled struct {
	*process
	user string
	api  client.API
}

// call makes one call, whatever becomes of it.
func call[T any](t *troubled, verb string, ref client.Ref, do func() (T, error)) (T, error) {
	var nothing T
	if t.dead.Load() {
		return nothing, context.Canceled
	}
	name := t.user + " " + verb + " " + ref.Resource.Resource + "/" + ref.Subresource + " " + ref.Namespace + "/" + ref.Name
	fate := t.writes
	if verb == "get" || verb == "list" || verb == "watch" {
		fate = t.reads
	}
	switch fated := fate.of(name); fated {
	case refused:
		return nothing, apierrors.NewInternalError(errors.New("injected: nothing was written"))
	case lost:
		if _, err := do(); err != nil {
			return nothing, err
		}
		return nothing, apierrors.NewTimeoutError("injected: the answer is lost", 0)
	case killed, orphan:
		if t.dead.Swap(true) {
			return nothing, context.Canceled
		}
		defer t.kill()
		if fated == orphan {
			_, _ = do()
		}
		return nothing, context.Canceled
	}
	return do()
}

func (t *troubled) Get(ctx context.Context, ref client.Ref, o metav1.GetOptions) (client.Object, error) {
	return call(t, "get", ref, func() (client.Object, error) { return t.api.Get(ctx, ref, o) })
}

func (t *troubled) List(ctx context.Context, ref client.Ref, o metav1.ListOptions) (*client.List, error) {
	return call(t, "list", ref, func() (*client.List, error) { return t.api.List(ctx, ref, o) })
}

func (t *troubled) Create(ctx context.Context, ref client.Ref, obj client.Object, o metav1.CreateOptions) (client.Object, error) {
	return call(t, "create", ref, func() (client.Object, error) { return t.api.Create(ctx, ref, obj, o) })
}

func (t *troubled) Update(ctx context.Context, ref client.Ref, obj client.Object, o metav1.UpdateOptions) (client.Object, error) {
	return call(t, "update", ref, func() (client.Object, error) { return t.api.Update(ctx, ref, obj, o) })
}

func (t *troubled) Patch(ctx context.Context, ref client.Ref, pt types.PatchType, data []byte, o metav1.PatchOptions) (client.Object, error) {
	return call(t, "patch", ref, func() (client.Object, error) { return t.api.Patch(ctx, ref, pt, data, o) })
}

func (t *troubled) Delete(ctx context.Context, ref client.Ref, o metav1.DeleteOptions) (client.Object, error) {
	return call(t, "delete", ref, func() (client.Object, error) { return t.api.Delete(ctx, ref, o) })
}

func (t *troubled) DeleteCollection(ctx context.Context, ref client.Ref, o metav1.DeleteOptions, l metav1.ListOptions) error {
	_, err := call(t, "deletecollection", ref, func() (struct{}, error) { return struct{}{}, t.api.DeleteCollection(ctx, ref, o, l) })
	return err
}

func (t *troubled) Watch(ctx context.Context, ref client.Ref, o metav1.ListOptions) (client.Watch, error) {
	w, err := call(t, "watch", ref, func() (client.Watch, error) { return t.api.Watch(ctx, ref, o) })
	if err != nil {
		return nil, err
	}
	return &troubledWatch{Watch: w, t: t, of: t.user + " next " + ref.Resource.Resource}, nil
}

// troubledWatch lags, and now and then has to begin anew, without what happened
// between.
type troubledWatch struct {
	client.Watch
	t  *troubled
	of string
}

const longestLag = 80 * time.Millisecond

func (w *troubledWatch) Next(ctx context.Context) ([]client.Event, error) {
	events, err := w.Watch.Next(ctx)
	if err != nil || w.t.dead.Load() {
		return events, err
	}
	switch w.t.reads.of(w.of) {
	case lost:
		return nil, apierrors.NewResourceExpired("injected: too old resource version")
	case refused:
		lag := w.t.reads.random(w.of, len(events)).Int64N(int64(longestLag))
		select {
		case <-time.After(time.Duration(lag)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return events, nil
}
