package http2

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"sync"
	"time"

	frame "golang.org/x/net/http2"
)

// stream is one request and its answer.
type stream struct {
	conn     *conn
	id       uint32
	request  *http.Request
	cancel   context.CancelFunc // of the request's context
	tooLarge bool               // the header was not kept whole

	// What follows is guarded by the connection's lock.
	changed    sync.Cond // of anything below
	maySend    int64     // bytes that the client takes
	mayReceive int       // bytes that the client may send
	credit     int       // bytes that were used since the client was last given more
	declared   int64     // the body's length; -1: not known
	length     int64     // of what was received of it
	body       []byte    // received and not read
	received   bool      // the client has sent all
	trailer    http.Header
	expects    bool  // the client waits to be told that the body is wanted
	late       bool  // the time to read the body is over
	closed     bool  // nothing more is sent or received
	cause      error // why

	readBy, writeBy *time.Timer // nil: no deadline
}

var (
	errGivenUp = errors.New("http2: the client gave up the stream")
	errReset   = errors.New("http2: the stream was reset")
	errEnded   = errors.New("http2: the stream has ended")
)

// serve runs the handler and ends the answer.
func (st *stream) serve() {
	w := &response{stream: st, header: make(http.Header, 8), length: -1}
	defer func() {
		if p := recover(); p != nil {
			if p != http.ErrAbortHandler && st.conn.http.ErrorLog != nil {
				st.conn.http.ErrorLog.Printf("http2: panic serving %s: %v\n%s", st.request.RemoteAddr, p, debug.Stack())
			}
			st.abort()
		}
	}()
	defer st.cancel()
	if st.tooLarge {
		w.WriteHeader(http.StatusRequestHeaderFieldsTooLarge)
	} else {
		st.conn.handler.ServeHTTP(w, st.request)
	}
	w.finish()
}

// abort resets the stream of a handler that did not come to its end.
func (st *stream) abort() {
	c := st.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !st.closed {
		c.resetLocked(st.id, frame.ErrCodeInternal)
		c.flushLocked()
	}
}

// dropLocked forgets a stream. Its handler learns it from its context and from what it
// reads or writes next.
func (c *conn) dropLocked(st *stream, cause error) {
	if st.closed {
		return
	}
	st.closed, st.cause = true, cause
	delete(c.streams, st.id)
	if n := len(st.body); n > 0 {
		st.body = nil
		c.useLocked(st, n)
	}
	if cause != errEnded { // a handler may go on after its answer; its context ends with it
		st.cancel()
	}
	st.changed.Broadcast()
	c.written.Broadcast()
	c.partLocked()
}

// data takes a part of a request's body.
func (c *conn) data(f *frame.DataFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, data := int(f.Length), f.Data()
	st, err := c.streamLocked(f.StreamID)
	if err != nil {
		return err
	}
	if n > c.mayReceive {
		return frame.ConnectionError(frame.ErrCodeFlowControl)
	}
	c.mayReceive -= n
	if st == nil || st.received {
		c.useLocked(nil, n)
		if st != nil {
			return frame.StreamError{StreamID: f.StreamID, Code: frame.ErrCodeStreamClosed}
		}
		return c.answerLocked()
	}
	if n > st.mayReceive {
		c.useLocked(nil, n)
		return frame.StreamError{StreamID: f.StreamID, Code: frame.ErrCodeFlowControl}
	}
	st.mayReceive -= n
	st.length += int64(len(data))
	if st.declared >= 0 && (st.length > st.declared || f.StreamEnded() && st.length < st.declared) {
		c.useLocked(nil, n)
		return frame.StreamError{StreamID: f.StreamID, Code: frame.ErrCodeProtocol}
	}
	if st.body == nil && st.declared > 0 && st.declared <= int64(c.server.config.Window) {
		st.body = make([]byte, 0, st.declared)
	}
	st.body = append(st.body, data...)
	if st.received = f.StreamEnded(); n > len(data) {
		c.useLocked(st, n-len(data))
	}
	st.changed.Broadcast()
	return c.answerLocked()
}

// trailerLocked takes the fields after a request's body, which end it.
func (c *conn) trailerLocked(st *stream, f *frame.MetaHeadersFrame) error {
	if st.received || !f.StreamEnded() || len(f.PseudoFields()) > 0 || st.declared >= 0 && st.length != st.declared {
		return frame.StreamError{StreamID: st.id, Code: frame.ErrCodeProtocol}
	}
	st.trailer = http.Header{}
	for _, field := range f.RegularFields() {
		if key := c.canonical(field.Name); st.request.Trailer != nil {
			if _, declared := st.request.Trailer[key]; declared {
				st.trailer.Add(key, field.Value)
			}
		}
	}
	st.received = true
	st.changed.Broadcast()
	return nil
}

// body is what a handler reads a request's body from.
type body struct{ stream *stream }

// Read returns what has been received, after waiting for some.
func (b body) Read(p []byte) (int, error) {
	st, c := b.stream, b.stream.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.expects && len(p) > 0 {
		st.expects = false
		if len(st.body) == 0 && !st.received && !st.closed {
			c.statusLocked(http.StatusContinue)
			c.appendHeaderLocked(st.id, false)
			c.flushLocked()
		}
	}
	for len(st.body) == 0 && len(p) > 0 {
		switch {
		case st.received && !st.closed:
			for key, values := range st.trailer {
				st.request.Trailer[key] = values
			}
			return 0, io.EOF
		case st.closed:
			return 0, st.cause
		case st.late:
			return 0, os.ErrDeadlineExceeded
		}
		st.changed.Wait()
	}
	n := copy(p, st.body)
	st.body = st.body[n:]
	if c.useLocked(st, n); len(c.out) > 0 {
		c.flushLocked()
	}
	return n, nil
}

// Close throws away what has not been read.
func (b body) Close() error {
	c := b.stream.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(b.stream.body); n > 0 {
		b.stream.body = nil
		c.useLocked(b.stream, n)
	}
	return nil
}
