package apiserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apiserver/codec"
	"proa/internal/apiserver/negotiate"
	"proa/internal/apiserver/registry"
	"proa/internal/apiserver/table"
)

// watch streams changes until its time is up, the client leaves or the server stops.
func (c *call) watch() error {
	if c.format.Media == negotiate.YAML {
		return negotiate.NotAcceptable([]negotiate.Media{negotiate.JSON + ";stream=watch", negotiate.Protobuf + ";stream=watch"})
	}
	opts, err := c.listOptions()
	if err == nil {
		err = c.checkStreamed(&opts)
	}
	if err != nil {
		return err
	}
	if opts.TimeoutSeconds == nil || *opts.TimeoutSeconds <= 0 {
		// Spread over twice the time, so that watches do not all return at once.
		seconds := int64(c.s.config.MinWatch.Seconds() * (1 + rand.Float64()))
		opts.TimeoutSeconds = &seconds
	}
	stream := &stream{call: c, form: c.form()}
	if c.format.As == "Table" {
		if stream.table, err = c.printer(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	stop := context.AfterFunc(c.s.draining, cancel)
	defer stop()
	w, err := c.s.config.Registry.Watch(ctx, c.req, opts)
	if err != nil {
		return err
	}
	defer w.Stop()
	if websocket.IsWebSocketUpgrade(c.r) {
		return stream.serveWebSocket(ctx, cancel, w)
	}
	return stream.serveHTTP(ctx, w)
}

// checkStreamed refuses a watch that is to begin with a list, which clients then ask
// for by itself, where the gate of that is off (KEP-3157).
func (c *call) checkStreamed(opts *metav1.ListOptions) error {
	if opts.SendInitialEvents == nil || c.s.config.Features.Enabled("WatchList") {
		return nil
	}
	return apierrors.NewInvalid(metav1.SchemeGroupVersion.WithKind("ListOptions").GroupKind(), "", field.ErrorList{
		field.Forbidden(field.NewPath("sendInitialEvents"), "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"),
	})
}

// stream writes the events of one watch.
type stream struct {
	*call
	form  *codec.Form
	table *table.Printer // nil: events carry objects
	rows  bool           // a row was written, so the columns were too
}

// frames holds a batch of events between encoding and the network. An idle watch
// holds none.
var frames = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// usualBatch is room for a few events of usual size.
const usualBatch = 16 << 10

// flushAbove bounds how much of a batch is encoded before it is sent.
const flushAbove = 64 << 10

func (s *stream) serveHTTP(ctx context.Context, w *registry.Watch) error {
	s.w.Header().Set("Content-Type", s.form.StreamType())
	s.w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(s.w)
	if control.Flush() != nil {
		return nil
	}
	s.s.watches.Add(1)
	defer s.s.watches.Add(-1)
	for {
		if w.Begun() {
			begun(s.r.Context())
		}
		events, err := w.Next(ctx)
		if err != nil {
			s.s.takeLeave(s.r.Context())
			s.last(s.w, w)
			s.end(s.w, err)
			return nil
		}
		if s.tell(ctx, w, events, control) != nil {
			return nil // the client is gone
		}
	}
}

// tell writes events and rests, unless there is more of the first state to tell.
func (s *stream) tell(ctx context.Context, w *registry.Watch, events []registry.Event, control *http.ResponseController) error {
	s.s.busy.Add(1)
	defer s.s.busy.Add(-1)
	if err := s.send(events); err != nil {
		return err
	}
	if err := control.Flush(); err != nil {
		return err
	}
	if w.Begun() {
		s.rest(ctx)
	}
	return nil
}

// Bounds of the rest between two writes to one watcher.
const (
	restEach = 100 * time.Microsecond // some times what a write costs
	minRest  = 2 * time.Millisecond   // less is not worth a timer
	maxRest  = 100 * time.Millisecond
)

// rest lets events gather while many watches have something to tell: writing to all of
// them then takes a part of one processor at most, and what comes fast travels
// together. An event that comes after a pause is not held up.
func (s *stream) rest(ctx context.Context) {
	d := restOf(s.s.busy.Load())
	if d == 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// restOf is how long each of so many watches rests that write or rest now. Those that
// wait for something to tell are not among them.
func restOf(busy int64) time.Duration {
	d := min(time.Duration(busy)*restEach, maxRest)
	if d < minRest {
		return 0
	}
	return d
}

// mostChanges is how many changes come in one batch at most. A larger one is a part
// of a long initial list.
const mostChanges = 256

// initial is a part of what a watch begins with, between encoding and the network.
type initial struct {
	frames []byte
	memo   codec.Memo
}

var initials = sync.Pool{New: func() any { return new(initial) }}

// sendInitial is send for many objects that are not worth keeping the bytes of.
func (s *stream) sendInitial(events []registry.Event) error {
	b := initials.Get().(*initial)
	defer func() {
		b.frames = b.frames[:0]
		b.memo.Reset()
		if cap(b.frames) <= 4*flushAbove {
			initials.Put(b)
		}
	}()
	for i := range events {
		var err error
		if b.frames, err = s.form.AppendInitial(b.frames, events[i].Type, events[i].Item, &b.memo); err != nil {
			return s.form.WriteError(s.w, statusOf(err))
		}
		if len(b.frames) < 2*flushAbove && i < len(events)-1 {
			continue
		}
		if _, err := s.w.Write(b.frames); err != nil {
			return err
		}
		b.frames = b.frames[:0]
		b.memo.Reset()
	}
	return nil
}

// send encodes a batch and writes it in few large pieces.
func (s *stream) send(events []registry.Event) error {
	if len(events) > mostChanges && s.table == nil {
		return s.sendInitial(events)
	}
	b := frames.Get().(*bytes.Buffer)
	b.Grow(usualBatch)
	defer func() {
		b.Reset()
		if b.Cap() <= 4*flushAbove {
			frames.Put(b)
		}
	}()
	for i := range events {
		if err := s.encode(b, &events[i]); err != nil {
			b.Reset()
			return s.form.WriteError(s.w, statusOf(err))
		}
		if b.Len() < flushAbove && i < len(events)-1 {
			continue
		}
		if _, err := s.w.Write(b.Bytes()); err != nil {
			return err
		}
		b.Reset()
	}
	return nil
}

func (s *stream) encode(w io.Writer, e *registry.Event) error {
	if s.table == nil {
		return s.form.WriteEvent(w, e.Type, e.Item)
	}
	row, err := s.table.Event(e.Item, !s.rows)
	if err != nil {
		return err
	}
	s.rows = true
	return s.form.WriteOther(w, e.Type, s.table.Kind(), row)
}

// last writes the bookmark from which a client can resume elsewhere when the
// server stops.
func (s *stream) last(to io.Writer, w *registry.Watch) {
	if s.s.draining.Err() == nil || s.r.Context().Err() != nil {
		return
	}
	if e, ok := w.Last(); ok {
		s.encode(to, &e) // a client that is gone needs none
	}
}

// end tells the client why the watch ends, unless it ends as it should.
func (s *stream) end(w io.Writer, err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return
	}
	s.form.WriteError(w, statusOf(err)) // a client that is gone needs no reason
}

// namesOrigin is upstream's rule: a page from anywhere may watch, as it has to show a
// token that browsers do not add by themselves, but it must say where it is from.
func namesOrigin(r *http.Request) bool {
	_, err := url.ParseRequestURI(r.Header.Get("Origin"))
	return err == nil
}

// serveWebSocket sends each event as a message of its own.
func (s *stream) serveWebSocket(ctx context.Context, cancel context.CancelFunc, w *registry.Watch) error {
	upgrader := websocket.Upgrader{WriteBufferPool: &sync.Pool{}, CheckOrigin: namesOrigin}
	conn, err := upgrader.Upgrade(s.w, s.r, nil)
	if err != nil {
		return nil // the upgrader has answered
	}
	defer conn.Close()
	var reader sync.WaitGroup
	reader.Go(func() { // what a client sends means nothing, but its close does
		defer cancel()
		for {
			if _, _, err := conn.NextReader(); err != nil {
				return
			}
		}
	})
	defer reader.Wait()
	defer conn.Close()
	kind := websocket.TextMessage
	if s.form.Media == negotiate.Protobuf || s.form.Media == negotiate.CBOR {
		kind = websocket.BinaryMessage
	}
	for {
		if w.Begun() {
			begun(s.r.Context())
		}
		events, err := w.Next(ctx)
		if err != nil {
			s.s.takeLeave(s.r.Context())
			for _, write := range []func(io.Writer){
				func(to io.Writer) { s.last(to, w) },
				func(to io.Writer) { s.end(to, err) },
			} {
				var b bytes.Buffer
				if write(&b); b.Len() > 0 {
					conn.WriteMessage(kind, s.message(b.Bytes())) // a client that is gone needs none
				}
			}
			deadline := time.Now().Add(time.Second)
			conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), deadline)
			return nil
		}
		for i := range events {
			var b bytes.Buffer
			if err := s.encode(&b, &events[i]); err != nil {
				return nil
			}
			if err := conn.WriteMessage(kind, s.message(b.Bytes())); err != nil {
				return nil
			}
		}
	}
}

// message is a frame without the length that a stream needs and a message has.
func (s *stream) message(frame []byte) []byte {
	if s.form.Media == negotiate.Protobuf {
		return frame[4:]
	}
	return frame
}
