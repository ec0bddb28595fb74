package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

var protobufEncoder = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)

// encode gives the protobuf of an object, as clients of scale send it.
func encode(obj runtime.Object) ([]byte, error) {
	gvks, _, err := scheme.Scheme.ObjectKinds(obj)
	if err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(gvks[0])
	var out bytes.Buffer
	err = protobufEncoder.Encode(obj, &out)
	return out.Bytes(), err
}

// makers create objects from several connections at once.
type makers struct{ clients []*client }

func (t *target) newMakers(n int) (*makers, error) {
	clients, err := t.newClients(n)
	return &makers{clients}, err
}

func (m *makers) close() { closeAll(m.clients) }

// each calls fn for 0 to n-1 on all connections.
func (m *makers) each(ctx context.Context, n int, fn func(ctx context.Context, c *client, i int) error) error {
	return together(ctx, len(m.clients), func(ctx context.Context, worker int) error {
		for i := worker; i < n && ctx.Err() == nil; i += len(m.clients) {
			if err := fn(ctx, m.clients[worker], i); err != nil {
				return err
			}
		}
		return nil
	})
}

// create makes n objects; object gives the i-th and the path of its collection.
func (m *makers) create(ctx context.Context, n int, object func(i int) (string, runtime.Object)) error {
	return m.each(ctx, n, func(ctx context.Context, c *client, i int) error {
		path, obj := object(i)
		return c.post(ctx, path, obj)
	})
}

func (c *client) post(ctx context.Context, path string, obj runtime.Object) error {
	body, err := encode(obj)
	if err != nil {
		return err
	}
	_, err = c.drain(ctx, request{method: http.MethodPost, path: path, body: body, media: mediaProtobuf, accept: mediaProtobuf})
	return err
}

// remove deletes n objects; those that are not there are as well.
func (m *makers) remove(ctx context.Context, n int, path func(i int) string) error {
	return m.each(ctx, n, func(ctx context.Context, c *client, i int) error {
		_, err := c.drain(ctx, request{method: http.MethodDelete, path: path(i) + "?gracePeriodSeconds=0", accept: mediaProtobuf})
		if isCode(err, http.StatusNotFound) {
			return nil
		}
		return err
	})
}

// counter counts what a watch reports, and notes when.
type counter struct {
	client *client
	body   io.ReadCloser
	done   chan error

	mu    sync.Mutex // guards what follows
	grown chan struct{}
	seen  []time.Time
	times sample // since the event's object was sent, of objects that say when
}

// count watches path, a collection with selectors and no watch yet, for events
// of one type.
func (t *target) count(ctx context.Context, path, eventType string) (*counter, error) {
	c, err := t.newClient()
	if err != nil {
		return nil, err
	}
	base, _, _ := cutQuery(path)
	revision, err := t.revision(ctx, c, base)
	if err != nil {
		c.close()
		return nil, err
	}
	resp, err := c.open(ctx, request{
		method: http.MethodGet, path: path + "&watch=1&allowWatchBookmarks=false&resourceVersion=" + revision, accept: mediaProtobuf + ";stream=watch",
	})
	if err != nil {
		c.close()
		return nil, err
	}
	k := &counter{client: c, body: resp.Body, done: make(chan error, 1), grown: make(chan struct{})}
	go func() { k.done <- k.read(eventType) }() // ends with close
	return k, nil
}

func cutQuery(path string) (base, query string, found bool) {
	for i := range path {
		if path[i] == '?' {
			return path[:i], path[i+1:], true
		}
	}
	return path, "", false
}

func (k *counter) close() {
	k.body.Close()
	<-k.done
	k.client.close()
}

func (k *counter) read(eventType string) error {
	buf := make([]byte, 64<<10)
	kept := 0
	for {
		if kept == len(buf) {
			buf = append(buf, make([]byte, len(buf))...)
		}
		n, err := k.body.Read(buf[kept:])
		now := time.Now()
		rest := buf[:kept+n]
		found := 0
		for {
			frame, after, ok := cutFrame(rest)
			if !ok {
				break
			}
			rest = after
			if eventOf(frame) != eventType {
				continue
			}
			found++
			if sent, ok := stampAfter(frame, protobufMark); ok {
				k.times.add(now.Sub(sent))
			}
		}
		k.note(found, now)
		if err != nil {
			return err
		}
		kept = copy(buf, rest)
	}
}

// eventOf is the type of a watch event: the first field of its message.
func eventOf(frame []byte) string {
	name, err := bytesField(frame, 1)
	if err != nil {
		return ""
	}
	return string(name)
}

func (k *counter) note(n int, now time.Time) {
	if n == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for range n {
		k.seen = append(k.seen, now)
	}
	close(k.grown)
	k.grown = make(chan struct{})
}

func (k *counter) count() (int, <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.seen), k.grown
}

// stall is how long nothing may happen before a measurement is given up.
const stall = 2 * time.Minute

// wait waits until n events have been seen.
func (k *counter) wait(ctx context.Context, n int) error {
	for {
		have, grown := k.count()
		if have >= n {
			return nil
		}
		timer := time.NewTimer(stall)
		select {
		case <-grown:
		case err := <-k.done:
			k.done <- err
			return fmt.Errorf("a watch ended after %d of %d events: %w", have, n, err)
		case <-timer.C:
			return fmt.Errorf("%d of %d, and nothing more for %s", have, n, stall)
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		timer.Stop()
	}
}

// calm waits until no event has come for so long.
func (k *counter) calm(ctx context.Context, long time.Duration) error {
	for {
		_, grown := k.count()
		timer := time.NewTimer(long)
		select {
		case <-grown:
		case <-timer.C:
			return nil
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		timer.Stop()
	}
}

// rates are those of whole seconds from a time on.
func (k *counter) rates(from time.Time) *Rates {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.seen) == 0 {
		return nil
	}
	seconds := make([]float64, int(k.seen[len(k.seen)-1].Sub(from)/time.Second)+1)
	for _, at := range k.seen {
		if i := int(at.Sub(from) / time.Second); i >= 0 && i < len(seconds) {
			seconds[i]++
		}
	}
	if len(seconds) > 1 {
		seconds = seconds[:len(seconds)-1] // the last one is not whole
	}
	slices.Sort(seconds)
	at := func(part float64) float64 { return seconds[min(int(part*float64(len(seconds))), len(seconds)-1)] }
	return &Rates{P50: at(0.5), P90: at(0.9), P95: at(0.95), P99: at(0.99)}
}

// gone waits until an object is not there any more.
func (t *target) gone(ctx context.Context, path string) error {
	c, err := t.newClient()
	if err != nil {
		return err
	}
	defer c.close()
	const interval = 50 * time.Millisecond
	for end := time.Now().Add(10 * stall); time.Now().Before(end); {
		_, err := c.drain(ctx, request{method: http.MethodGet, path: path})
		if isCode(err, http.StatusNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.New(path + " does not go")
}
