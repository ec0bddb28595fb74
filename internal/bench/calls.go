package bench

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// collection is where the objects are that calls are made for.
type collection struct {
	what string // put before the names of the calls
	path string
	body func(name string) []byte // of an object to be created
}

func (c *collection) of(name string) string { return c.path + "/" + name }

// caller is one client of the calls task with objects of its own.
type caller struct {
	*client
	*collection
	names  []string
	bodies [][]byte // as the server last answered, of the first few objects
	next   int
	times  []time.Duration
}

// worked is how many objects a caller changes in turn.
const worked = 8

// calls measures each kind of call for pods.
func (r *apiRun) calls(ctx context.Context) error {
	pods := &collection{path: r.pods(), body: func(name string) []byte { return podBody(r.Namespace, name) }}
	return r.callsFor(ctx, pods)
}

// callsFor measures each kind of call with so many clients at once.
func (r *apiRun) callsFor(ctx context.Context, objects *collection) error {
	for _, n := range r.Clients {
		clients, err := r.target.newClients(n)
		if err != nil {
			return err
		}
		err = r.callsOf(ctx, clients, objects)
		closeAll(clients)
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *apiRun) callsOf(ctx context.Context, clients []*client, objects *collection) error {
	callers := make([]*caller, len(clients))
	for i, c := range clients {
		callers[i] = &caller{client: c, collection: objects}
	}
	if err := r.warm(ctx, callers); err != nil {
		return err
	}
	for _, task := range []struct {
		name string
		call func(ctx context.Context, c *caller, i int) (more bool, err error)
	}{
		{"create", r.create}, {"get", r.get}, {"update", r.update}, {"merge patch", r.mergePatch}, {"apply", r.apply}, {"delete", r.remove},
	} {
		if err := r.measure(ctx, objects.what+task.name, callers, task.call); err != nil {
			return fmt.Errorf("%s: %w", task.name, err)
		}
	}
	return nil
}

// warm makes the connections, so that no handshake is measured.
func (r *apiRun) warm(ctx context.Context, callers []*caller) error {
	return together(ctx, len(callers), func(ctx context.Context, i int) error {
		_, err := callers[i].do(ctx, request{method: http.MethodGet, path: callers[i].path + "?limit=1"})
		return err
	})
}

// measure lets all callers call until the time is up or there is nothing more to do.
func (r *apiRun) measure(ctx context.Context, task string, callers []*caller, call func(context.Context, *caller, int) (bool, error)) error {
	var s sample
	until := time.Now().Add(r.Duration)
	m := r.Server.start(ctx)
	err := together(ctx, len(callers), func(ctx context.Context, i int) error {
		c := callers[i]
		c.times, c.next = c.times[:0], 0
		for done := false; !done; done = !strings.HasSuffix(task, "delete") && time.Now().After(until) {
			began := time.Now()
			more, err := call(ctx, c, i)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err != nil && c.next == 0:
				return err // nothing works
			case err != nil:
				s.fail(err)
			case !more:
				s.merge(c.times)
				return nil
			}
			c.next++
			c.times = append(c.times, time.Since(began))
		}
		s.merge(c.times)
		return nil
	})
	used := m.stop()
	if err != nil {
		return err
	}
	clients := "1 client"
	if len(callers) > 1 {
		clients = fmt.Sprintf("%d clients", len(callers))
	}
	r.report(s.figure(task, clients, used.took, used.cpu))
	return nil
}

func (r *apiRun) create(ctx context.Context, c *caller, i int) (bool, error) {
	name := fmt.Sprintf("called-%02d-%06d", i, c.next)
	body, err := c.do(ctx, request{method: http.MethodPost, path: c.path, body: c.body(name), media: mediaJSON})
	if err != nil {
		return false, err
	}
	c.names = append(c.names, name)
	if len(c.bodies) < worked {
		c.bodies = append(c.bodies, bytes.Clone(body))
	}
	return true, nil
}

func (r *apiRun) get(ctx context.Context, c *caller, _ int) (bool, error) {
	_, err := c.do(ctx, request{method: http.MethodGet, path: c.of(c.names[c.next%len(c.names)])})
	return true, err
}

// update writes back what the server answered last, with a new time in it.
func (r *apiRun) update(ctx context.Context, c *caller, _ int) (bool, error) {
	k := c.next % len(c.bodies)
	if !setStamp(c.bodies[k], time.Now()) {
		return false, fmt.Errorf("the server's answer lacks the annotation %s", sentAnnotation)
	}
	body, err := c.do(ctx, request{method: http.MethodPut, path: c.of(c.names[k]), body: c.bodies[k], media: mediaJSON})
	if err == nil {
		c.bodies[k] = append(c.bodies[k][:0], body...)
	}
	return true, err
}

func (r *apiRun) mergePatch(ctx context.Context, c *caller, _ int) (bool, error) {
	name := c.names[c.next%len(c.bodies)]
	_, err := c.do(ctx, request{method: http.MethodPatch, path: c.of(name), body: stampPatch(time.Now()), media: mediaMerge})
	return true, err
}

// applied is how many objects each client applies, again and again: that is what
// people and their tools do.
const applied = 16

// apply says about an object what its creation said, with a new time.
func (r *apiRun) apply(ctx context.Context, c *caller, _ int) (bool, error) {
	name := c.names[c.next%min(applied, len(c.bodies))]
	body := c.body(name)
	setStamp(body, time.Now())
	_, err := c.do(ctx, request{method: http.MethodPatch, path: c.of(name) + "?fieldManager=bench&force=true", body: body, media: mediaApply})
	return true, err
}

func (r *apiRun) remove(ctx context.Context, c *caller, _ int) (bool, error) {
	if c.next == len(c.names) {
		c.names, c.bodies = nil, nil
		return false, nil
	}
	_, err := c.do(ctx, request{method: http.MethodDelete, path: c.of(c.names[c.next]) + "?gracePeriodSeconds=0"})
	return true, err
}
