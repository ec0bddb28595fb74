package http2

import (
	"time"

	frame "golang.org/x/net/http2"
)

// SetReadDeadline bounds reads of the request's body, for http.ResponseController.
// The zero time: no bound. What has come can be read even after that.
func (w *response) SetReadDeadline(at time.Time) error {
	st := w.stream
	st.alarm(&st.readBy, at, func() {
		st.late = true
		st.changed.Broadcast()
	})
	return nil
}

// SetWriteDeadline bounds writes of the answer: the stream is reset then.
func (w *response) SetWriteDeadline(at time.Time) error {
	st := w.stream
	st.alarm(&st.writeBy, at, func() {
		st.conn.resetLocked(st.id, frame.ErrCodeInternal)
		st.conn.flushSoonLocked() // a timer does not wait for the client
	})
	return nil
}

// alarm has a function run at a time, with the connection's lock, unless the stream
// has ended by then.
func (st *stream) alarm(timer **time.Timer, at time.Time, ring func()) {
	c := st.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if *timer != nil {
		(*timer).Stop()
		*timer = nil
	}
	if at.IsZero() || st.closed {
		return
	}
	*timer = time.AfterFunc(time.Until(at), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !st.closed {
			ring()
		}
	})
}
