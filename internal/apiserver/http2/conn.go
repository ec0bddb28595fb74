package http2

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	frame "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// conn is one connection.
type conn struct {
	server  *server
	http    *http.Server
	tls     *tls.Conn
	handler http.Handler
	model   *http.Request // what all requests of the connection have in common
	framer  *frame.Framer
	names   map[string]string // canonical header names; the reader's

	ctx      context.Context // of all requests: ends with the connection
	cancel   context.CancelFunc
	jobs     chan *stream   // to a goroutine that has served a stream and waits for another
	handlers sync.WaitGroup // and what else writes

	mu        sync.Mutex // guards what follows
	err       error      // why nothing more can be written
	out       []byte     // frames to be written
	flushing  bool       // somebody writes
	written   sync.Cond  // something was written, or nothing ever will be
	header    bytes.Buffer
	encoder   *hpack.Encoder // to header
	streams   map[uint32]*stream
	newest    uint32    // the highest id of a stream that was begun
	running   int       // handlers, those of streams that were given up included
	idlers    int       // goroutines that wait for jobs
	queue     []*stream // that wait for a handler to end
	begun     uint64    // streams, ever
	leaving   bool      // no more streams are taken
	unsettled int       // settings that the client has not acknowledged

	mayReceive int   // bytes of bodies that the client may send
	credit     int   // bytes that were received and used since the client was last given more
	maySend    int64 // bytes of bodies that the client takes
	ofStream   int64 // the same of a new stream
	maxFrame   int   // bytes of a frame that the client takes
}

const (
	windowAtFirst = 1<<16 - 1 // of connections and streams, before anybody says otherwise
	maxWindow     = 1<<31 - 1
	maxIdlers     = 2 // goroutines that wait for the next request of a connection
)

func newConn(s *server, of *http.Server, t *tls.Conn, h http.Handler) *conn {
	base := context.Background()
	if b, ok := h.(interface{ BaseContext() context.Context }); ok {
		base = b.BaseContext()
	}
	state := t.ConnectionState()
	c := &conn{
		server: s, http: of, tls: t, handler: h, names: map[string]string{}, jobs: make(chan *stream),
		model: &http.Request{
			Proto: "HTTP/2.0", ProtoMajor: 2, RemoteAddr: t.RemoteAddr().String(), TLS: &state,
		},
		framer:  frame.NewFramer(io.Discard, t),
		streams: map[uint32]*stream{}, maySend: windowAtFirst, ofStream: windowAtFirst, maxFrame: 16 << 10,
		mayReceive: s.config.Window * s.config.MaxStreams,
	}
	c.ctx, c.cancel = context.WithCancel(base)
	c.written.L = &c.mu
	c.encoder = hpack.NewEncoder(&c.header)
	c.framer.SetReuseFrames()
	c.framer.SetMaxReadFrameSize(uint32(c.mostInFrame()))
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.framer.MaxHeaderListSize = uint32(s.config.MaxHeader)
	return c
}

// mostInFrame is how many bytes of a body a client may send in one frame.
func (c *conn) mostInFrame() int { return min(max(c.server.config.Window, 16<<10), 1<<24-1) }

// serve reads frames until the client leaves or breaks the rules.
func (c *conn) serve() {
	idle := c.watchIdle()
	err := c.greet()
	for err == nil {
		err = c.readFrame()
	}
	idle.Stop()
	c.part(err)
	c.cancel()
	c.fail(fmt.Errorf("http2: the connection ended: %w", err))
	c.tls.Close()
	close(c.jobs)
	c.handlers.Wait()
}

// greet exchanges the first frames.
func (c *conn) greet() error {
	const patience = 10 * time.Second
	c.tls.SetReadDeadline(time.Now().Add(patience))
	preface := make([]byte, len(frame.ClientPreface))
	if _, err := io.ReadFull(c.tls, preface); err != nil {
		return err
	}
	if string(preface) != frame.ClientPreface {
		return errors.New("http2: the client speaks something else")
	}
	c.mu.Lock()
	c.unsettled++
	c.out = appendSettings(c.bufferLocked(),
		frame.Setting{ID: frame.SettingMaxConcurrentStreams, Val: uint32(c.server.config.MaxStreams)},
		frame.Setting{ID: frame.SettingInitialWindowSize, Val: uint32(c.server.config.Window)},
		frame.Setting{ID: frame.SettingMaxFrameSize, Val: uint32(c.mostInFrame())},
		frame.Setting{ID: frame.SettingMaxHeaderListSize, Val: uint32(c.server.config.MaxHeader)},
	)
	if more := c.mayReceive - windowAtFirst; more > 0 {
		c.out = appendCredit(c.bufferLocked(), 0, more)
	}
	c.flushLocked()
	c.mu.Unlock()
	first, err := c.framer.ReadFrame()
	if err != nil {
		return err
	}
	settings, ok := first.(*frame.SettingsFrame)
	if !ok {
		return frame.ConnectionError(frame.ErrCodeProtocol)
	}
	c.tls.SetReadDeadline(time.Time{})
	return c.settings(settings)
}

// readFrame reads one frame and acts on it. What only a stream does wrong ends the stream.
func (c *conn) readFrame() error {
	f, err := c.framer.ReadFrame()
	if err == nil {
		err = c.act(f)
	}
	var broken frame.StreamError
	if errors.As(err, &broken) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.resetLocked(broken.StreamID, broken.Code)
		return c.answerLocked()
	}
	return err
}

func (c *conn) act(f frame.Frame) error {
	switch f := f.(type) {
	case *frame.MetaHeadersFrame:
		return c.headers(f)
	case *frame.DataFrame:
		return c.data(f)
	case *frame.WindowUpdateFrame:
		return c.grow(f)
	case *frame.RSTStreamFrame:
		return c.givenUp(f)
	case *frame.SettingsFrame:
		return c.settings(f)
	case *frame.PingFrame:
		if f.IsAck() {
			return nil
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.out = append(appendFrame(c.bufferLocked(), frame.FramePing, frame.FlagPingAck, 0, len(f.Data)), f.Data[:]...)
		return c.answerLocked()
	case *frame.PushPromiseFrame:
		return frame.ConnectionError(frame.ErrCodeProtocol)
	case *frame.GoAwayFrame:
		c.leave()
	}
	return nil
}

// settings takes over what the client wants.
func (c *conn) settings(f *frame.SettingsFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.IsAck() {
		if c.unsettled--; c.unsettled < 0 {
			return frame.ConnectionError(frame.ErrCodeProtocol)
		}
		return nil
	}
	const most = 100
	if f.NumSettings() > most || f.HasDuplicates() {
		return frame.ConnectionError(frame.ErrCodeProtocol)
	}
	if err := f.ForeachSetting(c.setLocked); err != nil {
		return err
	}
	c.out = appendFrame(c.bufferLocked(), frame.FrameSettings, frame.FlagSettingsAck, 0, 0)
	return c.answerLocked()
}

func (c *conn) setLocked(s frame.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case frame.SettingHeaderTableSize:
		c.encoder.SetMaxDynamicTableSize(s.Val)
	case frame.SettingMaxFrameSize:
		c.maxFrame = int(min(s.Val, maxOut))
	case frame.SettingInitialWindowSize:
		more := int64(s.Val) - c.ofStream
		c.ofStream = int64(s.Val)
		for _, st := range c.streams {
			if st.maySend += more; st.maySend > maxWindow {
				return frame.ConnectionError(frame.ErrCodeFlowControl)
			}
			st.changed.Broadcast()
		}
	}
	return nil
}

// grow lets more be sent.
func (c *conn) grow(f *frame.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.StreamID == 0 {
		if c.maySend += int64(f.Increment); c.maySend > maxWindow {
			return frame.ConnectionError(frame.ErrCodeFlowControl)
		}
		for _, st := range c.streams {
			st.changed.Broadcast()
		}
		return nil
	}
	st, err := c.streamLocked(f.StreamID)
	if st == nil {
		return err
	}
	if st.maySend += int64(f.Increment); st.maySend > maxWindow {
		return frame.StreamError{StreamID: f.StreamID, Code: frame.ErrCodeFlowControl}
	}
	st.changed.Broadcast()
	return nil
}

func (c *conn) givenUp(f *frame.RSTStreamFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	st, err := c.streamLocked(f.StreamID)
	if st != nil {
		c.dropLocked(st, errGivenUp)
	}
	return err
}

// streamLocked finds an open stream. Of one that was closed, the client may not
// know yet; of one that was never opened it must not speak.
func (c *conn) streamLocked(id uint32) (*stream, error) {
	if st := c.streams[id]; st != nil {
		return st, nil
	}
	if id > c.newest || id%2 == 0 {
		return nil, frame.ConnectionError(frame.ErrCodeProtocol)
	}
	return nil, nil
}

// headers begins a stream, or ends a request's body.
func (c *conn) headers(f *frame.MetaHeadersFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := f.StreamID
	if st := c.streams[id]; st != nil {
		return c.trailerLocked(st, f)
	}
	switch {
	case id%2 == 0:
		return frame.ConnectionError(frame.ErrCodeProtocol)
	case id <= c.newest, c.leaving:
		return nil // a client learns late that a stream is closed, or that it has to go elsewhere
	}
	c.newest = id
	if len(c.streams) >= c.server.config.MaxStreams {
		return frame.StreamError{StreamID: id, Code: frame.ErrCodeRefusedStream}
	}
	st := &stream{conn: c, id: id, maySend: c.ofStream, mayReceive: c.server.config.Window, declared: -1}
	st.changed.L = &c.mu
	ctx, cancel := context.WithCancel(c.ctx)
	st.cancel = cancel
	var err error
	if st.request, err = c.request(ctx, st, f); err != nil {
		cancel()
		return err
	}
	st.tooLarge = f.Truncated
	c.streams[id] = st
	c.begun++
	return c.startLocked(st)
}

// startLocked has a handler serve a stream, when there is one to spare.
func (c *conn) startLocked(st *stream) error {
	if c.running >= c.server.config.MaxStreams {
		const patience = 4 // times as many streams as are allowed may wait for those that were given up
		if len(c.queue) >= patience*c.server.config.MaxStreams {
			return frame.ConnectionError(frame.ErrCodeEnhanceYourCalm)
		}
		c.queue = append(c.queue, st)
		return nil
	}
	c.running++
	select {
	case c.jobs <- st:
	default:
		c.handlers.Go(func() { c.work(st) })
	}
	return nil
}

// work serves a stream and then others, with the stack that has grown for the first.
func (c *conn) work(st *stream) {
	for st != nil {
		st.serve()
		next, idle := c.nextJob()
		if idle {
			next = <-c.jobs
			c.mu.Lock()
			c.idlers--
			c.mu.Unlock()
		}
		st = next
	}
}

// nextJob ends a handler's work. It returns a stream that has waited for it; none
// and true, when the goroutine is to wait for one.
func (c *conn) nextJob() (st *stream, wait bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) > 0 {
		st, c.queue = c.queue[0], c.queue[1:]
		if !st.closed {
			return st, false
		}
	}
	c.running--
	if c.err != nil || c.idlers >= maxIdlers {
		return nil, false
	}
	c.idlers++
	return nil, true
}

// leave ends the connection when the requests in flight have been answered.
func (c *conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaveLocked()
	c.flushSoonLocked()
}

func (c *conn) leaveLocked() {
	if c.leaving {
		return
	}
	c.leaving = true
	c.out = appendGoAway(c.bufferLocked(), c.newest, frame.ErrCodeNo)
	c.partLocked()
}

// partLocked gives a client that was told to leave, and has got all its answers, a
// moment to hang up first.
func (c *conn) partLocked() {
	const moment = time.Second
	if c.leaving && len(c.streams) == 0 {
		c.tls.SetReadDeadline(time.Now().Add(moment))
	}
}

// part tells a client what it did wrong, if it did, and lets what is on its way
// arrive when it is the server that leaves.
func (c *conn) part(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var broken frame.ConnectionError
	switch {
	case errors.Is(err, frame.ErrFrameTooLarge):
		c.out = appendGoAway(c.bufferLocked(), c.newest, frame.ErrCodeFrameSize)
	case errors.As(err, &broken):
		c.out = appendGoAway(c.bufferLocked(), c.newest, frame.ErrCode(broken))
	case !c.leaving || !errors.Is(err, os.ErrDeadlineExceeded):
		return
	}
	c.leaving = true
	for c.flushLocked(); c.flushing && c.err == nil; {
		c.written.Wait()
	}
}

// fail ends all streams.
func (c *conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(err)
}

func (c *conn) failLocked(err error) {
	if c.err == nil {
		c.err = err
	}
	for _, st := range c.streams {
		c.dropLocked(st, c.err)
	}
	c.queue = nil
	c.written.Broadcast()
}

// watchIdle ends the connection when there are no requests for a while.
func (c *conn) watchIdle() *time.Timer {
	var seen uint64
	timeout := c.server.config.IdleTimeout
	c.mu.Lock()
	defer c.mu.Unlock()
	var timer *time.Timer
	timer = time.AfterFunc(timeout, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.streams) == 0 && c.begun == seen {
			c.leaveLocked()
			c.flushSoonLocked()
		}
		seen = c.begun
		if c.err == nil && !c.leaving {
			timer.Reset(timeout)
		}
	})
	return timer
}
