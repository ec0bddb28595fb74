package http2

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	frame "golang.org/x/net/http2"
)

// maxOut is how many bytes of frames may wait to be written before those that write
// bodies wait themselves.
const maxOut = 128 << 10

// maxAnswers is by how much the answers to a client's settings, pings and mistakes may
// exceed that. A client that asks on and does not read is cut off.
const maxAnswers = 64 << 10

// outputs are buffers for frames. A connection with nothing to say holds none.
var outputs = sync.Pool{New: func() any { b := make([]byte, 0, 16<<10); return &b }}

// flushLocked writes what waits, until nothing does, unless somebody is at it: then
// they write it. The lock is released around writing.
func (c *conn) flushLocked() {
	if c.flushing || c.err != nil {
		return
	}
	c.flushing = true
	const rounds = 4 // that one request's goroutine writes, others' frames included
	for range rounds {
		if !c.writeLocked() {
			c.flushing = false
			return
		}
	}
	c.handlers.Go(c.flushRest)
}

// flushSoonLocked is flushLocked for those who must not wait for the client.
func (c *conn) flushSoonLocked() {
	if len(c.out) > 0 && !c.flushing && c.err == nil {
		c.flushing = true
		c.handlers.Go(c.flushRest)
	}
}

func (c *conn) flushRest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.writeLocked() {
	}
	c.flushing = false
}

// writeLocked writes once and reports whether there was something to be written.
func (c *conn) writeLocked() bool {
	if len(c.out) == 0 || c.err != nil {
		c.out = nil
		return false
	}
	b := c.out
	c.out = nil
	c.mu.Unlock()
	c.tls.SetWriteDeadline(time.Now().Add(c.server.config.WriteTimeout))
	err := c.send(b)
	if cap(b) <= 4*maxOut {
		b = b[:0]
		outputs.Put(&b)
	}
	c.mu.Lock()
	if err != nil {
		c.failLocked(err)
		c.tls.SetReadDeadline(time.Now()) // the reader ends the connection
	}
	c.written.Broadcast()
	return true
}

// oneRecord is how many bytes TLS writes at once.
const oneRecord = 16 << 10

// send writes frames, those of many records with few writes of the kernel's.
func (c *conn) send(b []byte) error {
	below, ok := c.tls.NetConn().(*corked)
	if !ok || len(b) <= oneRecord {
		_, err := c.tls.Write(b)
		return err
	}
	below.hold()
	_, err := c.tls.Write(b)
	return errors.Join(err, below.release())
}

// bufferLocked returns the frames that wait, to append to.
func (c *conn) bufferLocked() []byte {
	if c.out == nil {
		c.out = *outputs.Get().(*[]byte)
	}
	return c.out
}

var errFlood = errors.New("http2: the client asks on and reads nothing")

// answerLocked has the answer to a frame written, by another goroutine than the
// reader: a client may stop to read until what it sends is read.
func (c *conn) answerLocked() error {
	if len(c.out) > maxOut+maxAnswers {
		return errFlood
	}
	c.flushSoonLocked()
	return nil
}

// resetLocked ends a stream that failed.
func (c *conn) resetLocked(id uint32, code frame.ErrCode) {
	if c.err != nil {
		return
	}
	c.out = binary.BigEndian.AppendUint32(appendFrame(c.bufferLocked(), frame.FrameRSTStream, 0, id, 4), uint32(code))
	if st := c.streams[id]; st != nil {
		c.dropLocked(st, errReset)
	}
}

// useLocked accounts for received bytes that need no more room, and lets the client
// send as many again once it is worth a frame.
func (c *conn) useLocked(st *stream, n int) {
	const worth = 2 // half of a window
	window := c.server.config.Window
	if c.credit += n; c.credit >= window*c.server.config.MaxStreams/worth {
		c.out = appendCredit(c.bufferLocked(), 0, c.credit)
		c.mayReceive += c.credit
		c.credit = 0
	}
	if st == nil || st.closed || st.received {
		return
	}
	if st.credit += n; st.credit >= window/worth {
		c.out = appendCredit(c.bufferLocked(), st.id, st.credit)
		st.mayReceive += st.credit
		st.credit = 0
	}
}

// appendFrame appends the nine bytes before a frame's payload of n bytes.
func appendFrame(b []byte, typ frame.FrameType, flags frame.Flags, id uint32, n int) []byte {
	b = append(b, byte(n>>16), byte(n>>8), byte(n), byte(typ), byte(flags))
	return binary.BigEndian.AppendUint32(b, id)
}

func appendCredit(b []byte, id uint32, n int) []byte {
	return binary.BigEndian.AppendUint32(appendFrame(b, frame.FrameWindowUpdate, 0, id, 4), uint32(n))
}

func appendGoAway(b []byte, newest uint32, code frame.ErrCode) []byte {
	b = binary.BigEndian.AppendUint32(appendFrame(b, frame.FrameGoAway, 0, 0, 8), newest)
	return binary.BigEndian.AppendUint32(b, uint32(code))
}

func appendSettings(b []byte, settings ...frame.Setting) []byte {
	b = appendFrame(b, frame.FrameSettings, 0, 0, 6*len(settings))
	for _, s := range settings {
		b = binary.BigEndian.AppendUint16(b, uint16(s.ID))
		b = binary.BigEndian.AppendUint32(b, s.Val)
	}
	return b
}

// appendHeaderLocked appends what the encoder has made of a header, in as many frames
// as the client wants it in.
func (c *conn) appendHeaderLocked(id uint32, end bool) {
	rest, typ := c.header.Bytes(), frame.FrameHeaders
	var flags frame.Flags
	if end {
		flags = frame.FlagHeadersEndStream
	}
	for {
		part := rest[:min(len(rest), c.maxFrame)]
		if rest = rest[len(part):]; len(rest) == 0 {
			flags |= frame.FlagHeadersEndHeaders
		}
		c.out = append(appendFrame(c.bufferLocked(), typ, flags, id, len(part)), part...)
		if len(rest) == 0 {
			break
		}
		typ, flags = frame.FrameContinuation, 0
	}
	c.header.Reset()
}

// writeBodyLocked appends a part of a stream's body, its last if end is set, as far as
// the client's windows reach and the buffer has room, and waits for more of both.
func (c *conn) writeBodyLocked(st *stream, p []byte, end bool) error {
	for {
		if st.closed {
			return st.cause
		}
		for len(p) > 0 && len(c.out) < maxOut {
			n := int(min(int64(len(p)), st.maySend, c.maySend, int64(c.maxFrame)))
			if n <= 0 {
				break
			}
			c.appendDataLocked(st, p[:n], end && n == len(p))
			p = p[n:]
			st.maySend -= int64(n)
			c.maySend -= int64(n)
			if len(p) == 0 {
				return nil
			}
		}
		switch {
		case len(p) == 0:
			if end {
				c.appendDataLocked(st, nil, true)
			}
			return nil
		case len(c.out) > 0 && !c.flushing:
			c.flushLocked()
		case len(c.out) >= maxOut:
			c.written.Wait()
		default:
			st.changed.Wait()
		}
	}
}

func (c *conn) appendDataLocked(st *stream, p []byte, end bool) {
	var flags frame.Flags
	if end {
		flags = frame.FlagDataEndStream
	}
	b := slices.Grow(c.bufferLocked(), 9+len(p))
	c.out = append(appendFrame(b, frame.FrameData, flags, st.id, len(p)), p...)
}
