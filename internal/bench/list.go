package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"
)

// lists fills the namespace and measures how it is read whole: by lists, in
// pages, by ten clients at once and as the start of a watch.
func (r *apiRun) lists(ctx context.Context) error {
	if err := r.fill(ctx); err != nil {
		return err
	}
	const atOnce = 10
	c, err := r.target.newClients(atOnce)
	if err != nil {
		return err
	}
	defer closeAll(c)
	for _, how := range []struct{ name, media string }{{"json", mediaJSON}, {"protobuf", mediaProtobuf}} {
		what := fmt.Sprintf("%d pods, %s", r.Pods, how.name)
		list := func(ctx context.Context, i int) (int64, error) {
			return c[i].drain(ctx, request{method: http.MethodGet, path: r.pods(), accept: how.media})
		}
		pages := func(ctx context.Context, i int) (int64, error) { return r.readPages(ctx, c[i], how.media) }
		watch := func(ctx context.Context, i int) (int64, error) { return r.readInitial(ctx, c[i], how.media) }
		for _, task := range []struct {
			name   string
			at     int
			repeat int
			read   func(context.Context, int) (int64, error)
		}{
			{"list", 1, r.Repeat, list}, {"list in pages of 500", 1, r.Repeat, pages}, {"watch-list", 1, r.Repeat, watch}, {"list, ten at once", atOnce, 1, list},
		} {
			if err := r.measureReads(ctx, task.name, what, task.at, task.repeat, task.read); err != nil {
				return fmt.Errorf("%s: %w", task.name, err)
			}
		}
	}
	return nil
}

// fill creates pods and reports what they take.
func (r *apiRun) fill(ctx context.Context) error {
	const writers = 32
	clients, err := r.target.newClients(writers)
	if err != nil {
		return err
	}
	defer closeAll(clients)
	var s sample
	var made atomic.Int64
	m := r.Server.start(ctx)
	err = together(ctx, writers, func(ctx context.Context, i int) error {
		var times []time.Duration
		for n := made.Add(1); n <= int64(r.Pods); n = made.Add(1) {
			began := time.Now()
			_, err := clients[i].do(ctx, request{method: http.MethodPost, path: r.pods(), body: podBody(r.Namespace, fmt.Sprintf("list-%06d", n)), media: mediaJSON})
			if err != nil {
				return err
			}
			times = append(times, time.Since(began))
		}
		s.merge(times)
		return nil
	})
	used := m.stop()
	if err != nil {
		return fmt.Errorf("create %d pods: %w", r.Pods, err)
	}
	f := s.figure("create", fmt.Sprintf("%d clients, to %d pods", writers, r.Pods), used.took, used.cpu)
	f.Memory = r.Server.usage().resident
	r.report(f)
	return nil
}

// measureReads does a read several times, so many at once each time.
func (r *apiRun) measureReads(ctx context.Context, task, how string, atOnce, repeat int, read func(context.Context, int) (int64, error)) error {
	var s sample
	var bytes atomic.Int64
	m := r.Server.start(ctx)
	for range repeat {
		err := together(ctx, atOnce, func(ctx context.Context, i int) error {
			began := time.Now()
			n, err := read(ctx, i)
			s.add(time.Since(began))
			bytes.Add(n)
			return err
		})
		if err != nil {
			m.stop()
			return err
		}
	}
	used := m.stop()
	f := s.figure(task, how, used.took, used.cpu)
	f.Bytes, f.Memory, f.PerSecond = bytes.Load()/int64(f.Count), used.memory, 0
	r.report(f)
	return nil
}

// readPages follows the continue tokens, which are asked for as metadata would
// be: from the end or the beginning of a page, without decoding it.
func (r *apiRun) readPages(ctx context.Context, c *client, media string) (int64, error) {
	var total int64
	for token := ""; ; {
		page, err := c.do(ctx, request{method: http.MethodGet, path: r.pods() + "?limit=500&continue=" + url.QueryEscape(token), accept: media})
		if err != nil {
			return total, err
		}
		total += int64(len(page))
		if token, err = continueOf(page, media); token == "" || err != nil {
			return total, err
		}
	}
}

// continueOf finds the continue token of a list.
func continueOf(page []byte, media string) (string, error) {
	if media == mediaProtobuf {
		return protobufContinue(page)
	}
	const mark = `"continue":"`
	at := bytes.Index(page, []byte(mark))
	if at < 0 {
		return "", nil
	}
	var token string
	err := json.NewDecoder(bytes.NewReader(page[at+len(mark)-1:])).Decode(&token)
	return token, err
}

// initialEnd is in the bookmark after the last of the initial events.
var initialEnd = []byte("k8s.io/initial-events-end")

// readInitial opens a watch that begins with what there is, and reads that.
func (r *apiRun) readInitial(ctx context.Context, c *client, media string) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	path := r.pods() + "?watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
	if media == mediaProtobuf {
		media += ";stream=watch"
	}
	resp, err := c.open(ctx, request{method: http.MethodGet, path: path, accept: media})
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return readUntil(resp.Body, initialEnd)
}

// readUntil reads up to a mark, and a little more.
func readUntil(from io.Reader, mark []byte) (int64, error) {
	buf := make([]byte, 256<<10)
	kept, total := 0, int64(0) // kept: the end of what was read before, in which the mark may begin
	for {
		n, err := from.Read(buf[kept:])
		total += int64(n)
		seen := buf[:kept+n]
		if bytes.Contains(seen, mark) {
			return total, nil
		}
		if err != nil {
			return total, fmt.Errorf("the stream ended before its mark: %w", err)
		}
		kept = copy(buf, seen[max(0, len(seen)-len(mark)+1):])
	}
}
