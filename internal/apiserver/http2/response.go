package http2

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"
	frame "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// response is the ResponseWriter of a stream. The header goes out with the first bytes
// of the body. A handler that does not say how long the body is has it counted, as
// long as it is short.
type response struct {
	stream *stream
	header http.Header
	code   int         // 0: none was written
	kept   http.Header // the header as it was when the code was written, until it is sent
	body   []byte      // that waits for the header
	length int64       // declared; -1: none
	n      int64       // bytes of the body that were written
	sent   bool        // the header is on its way
	ended  bool        // the whole answer is
}

// countBelow is the longest body whose length is counted.
const countBelow = 4 << 10

// Header is http.ResponseWriter's.
func (w *response) Header() http.Header { return w.header }

// WriteHeader sends an informational answer, or decides the code of the final one.
func (w *response) WriteHeader(code int) {
	if w.code != 0 {
		return
	}
	if code < 100 || code > 999 {
		panic("http2: invalid code " + strconv.Itoa(code))
	}
	c := w.stream.conn
	if code < 200 {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !w.stream.closed && code != http.StatusSwitchingProtocols {
			c.statusLocked(code)
			c.fieldsLocked(w.header, nil)
			c.appendHeaderLocked(w.stream.id, false)
			c.flushLocked()
		}
		return
	}
	w.code = code
	if text := w.header["Content-Length"]; len(text) > 0 {
		n, err := strconv.ParseInt(text[0], 10, 64)
		if err == nil && n >= 0 {
			w.length = n
		} else {
			delete(w.header, "Content-Length")
		}
	}
	if w.length < 0 {
		w.kept = w.header.Clone()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w.sendHeaderLocked(w.header, w.length == 0 || w.bodiless())
}

// bodiless says that no body follows the header.
func (w *response) bodiless() bool {
	return w.stream.request.Method == http.MethodHead || w.code == http.StatusNoContent || w.code == http.StatusNotModified
}

// Write sends a part of the body.
func (w *response) Write(p []byte) (int, error) {
	if w.code == 0 {
		w.WriteHeader(http.StatusOK)
	}
	w.n += int64(len(p))
	switch {
	case len(p) == 0:
		return 0, nil
	case w.code == http.StatusNoContent || w.code == http.StatusNotModified:
		return 0, http.ErrBodyNotAllowed
	case w.length >= 0 && w.n > w.length:
		return 0, http.ErrContentLength
	case w.bodiless():
		return len(p), nil
	case !w.sent && len(w.body)+len(p) <= countBelow:
		w.body = append(w.body, p...)
		return len(p), nil
	}
	c := w.stream.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := w.startLocked(p); err != nil {
		return 0, err
	}
	end := w.length >= 0 && w.n == w.length && !w.hasTrailer()
	if err := c.writeBodyLocked(w.stream, p, end); err != nil {
		return 0, err
	}
	if end {
		w.endLocked()
	}
	return len(p), nil
}

// WriteString is io.StringWriter's.
func (w *response) WriteString(s string) (int, error) { return w.Write([]byte(s)) }

// startLocked sends what was held back: the header, and the body's beginning. Next is
// what comes then.
func (w *response) startLocked(next []byte) error {
	if w.sent {
		return nil
	}
	w.sniff(next)
	w.sendHeaderLocked(w.kept, false)
	held := w.body
	w.body = nil
	if len(held) == 0 {
		return nil
	}
	return w.stream.conn.writeBodyLocked(w.stream, held, false)
}

// sniff names the body's type when the handler did not.
func (w *response) sniff(next []byte) {
	if w.kept.Get("Content-Type") != "" || w.kept.Get("Content-Encoding") != "" {
		return
	}
	if _, refused := w.kept["Content-Type"]; refused {
		return
	}
	if begin := slices.Concat(w.body, next[:min(len(next), 512)]); len(begin) > 0 {
		w.kept.Set("Content-Type", http.DetectContentType(begin))
	}
}

// Flush is http.Flusher's.
func (w *response) Flush() { w.FlushError() } // who cares for the error asks for it

// FlushError sends what was written so far, or leaves it to who is writing already.
func (w *response) FlushError() error {
	if w.code == 0 {
		w.WriteHeader(http.StatusOK)
	}
	c := w.stream.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !w.bodiless() {
		if err := w.startLocked(nil); err != nil {
			return err
		}
	} else if !w.sent {
		w.sendHeaderLocked(w.kept, true)
	}
	c.flushLocked()
	if w.stream.closed && !w.ended {
		return w.stream.cause
	}
	return nil
}

// EnableFullDuplex is http.ResponseController's: streams are.
func (w *response) EnableFullDuplex() error { return nil }

// finish ends the answer of a handler that returned.
func (w *response) finish() {
	if w.code == 0 {
		w.WriteHeader(http.StatusOK)
	}
	st, c := w.stream, w.stream.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.flushLocked()
	if w.ended || st.closed {
		return
	}
	trailer := w.hasTrailer()
	if !w.sent {
		if n := len(w.body); !w.bodiless() || n > 0 {
			w.kept.Set("Content-Length", strconv.Itoa(n))
		}
		w.sniff(nil)
		end := len(w.body) == 0 && !trailer
		if w.sendHeaderLocked(w.kept, end); end {
			return
		}
	}
	if err := c.writeBodyLocked(st, w.body, !trailer); err != nil {
		return
	}
	if trailer {
		w.trailersLocked()
		c.appendHeaderLocked(st.id, true)
	}
	w.endLocked()
}

// endLocked closes the stream after its last frame. A client that still sends is told
// that nobody reads.
func (w *response) endLocked() {
	if w.ended {
		return
	}
	w.ended = true
	st, c := w.stream, w.stream.conn
	if st.closed {
		return
	}
	if !st.received {
		c.resetLocked(st.id, frame.ErrCodeNo)
		return
	}
	c.dropLocked(st, errEnded)
}

// sendHeaderLocked appends the header, which ends the answer if end is set.
func (w *response) sendHeaderLocked(header http.Header, end bool) {
	w.sent = true
	st, c := w.stream, w.stream.conn
	if st.closed {
		return
	}
	if values := header["Connection"]; len(values) > 0 && strings.EqualFold(values[0], "close") {
		defer c.leaveLocked()
	}
	end = end && !w.hasTrailer()
	c.statusLocked(w.code)
	c.fieldsLocked(header, w.declaredTrailer())
	if _, dated := header["Date"]; !dated {
		c.encoder.WriteField(hpack.HeaderField{Name: "date", Value: date()})
	}
	c.appendHeaderLocked(st.id, end)
	if end {
		w.endLocked()
	}
}

func (c *conn) statusLocked(code int) {
	c.encoder.WriteField(hpack.HeaderField{Name: ":status", Value: strconv.Itoa(code)})
}

// fieldsLocked encodes a header's fields in order, but those of connections, those of
// the trailer and those that cannot be sent.
func (c *conn) fieldsLocked(header http.Header, trailer []string) {
	var room [16]string
	keys := room[:0]
	for key := range header {
		if !ofConnections[key] && !strings.HasPrefix(key, http.TrailerPrefix) && !slices.Contains(trailer, key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		c.fieldLocked(key, header[key])
	}
}

func (c *conn) fieldLocked(key string, values []string) {
	name, known := lowerNames[key]
	if !known {
		if name = strings.ToLower(key); !httpguts.ValidHeaderFieldName(name) {
			return
		}
	}
	for _, value := range values {
		if httpguts.ValidHeaderFieldValue(value) {
			c.encoder.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: neverTwice[key]})
		}
	}
}

// lowerNames are the names of usual fields as they are sent.
var lowerNames = map[string]string{}

// neverTwice are fields whose values do not come again: remembering them would push out
// of the compressor's table what does.
var neverTwice = map[string]bool{"Audit-Id": true, "Content-Length": true}

func init() {
	for _, key := range []string{
		"Audit-Id", "Cache-Control", "Content-Encoding", "Content-Length", "Content-Type", "Date", "Etag", "Location", "Retry-After", "Vary",
		"Warning", "X-Content-Type-Options", "X-Kubernetes-Pf-Flowschema-Uid", "X-Kubernetes-Pf-Prioritylevel-Uid",
	} {
		lowerNames[key] = strings.ToLower(key)
	}
}

// declaredTrailer are the fields that the handler has announced to set after the body.
func (w *response) declaredTrailer() (keys []string) {
	header := w.header
	if w.kept != nil {
		header = w.kept
	}
	for _, text := range header["Trailer"] {
		for part := range strings.SplitSeq(text, ",") {
			if key := http.CanonicalHeaderKey(strings.TrimSpace(part)); httpguts.ValidTrailerHeader(key) {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// hasTrailer says whether fields follow the body.
func (w *response) hasTrailer() bool {
	if len(w.declaredTrailer()) > 0 {
		return true
	}
	for key := range w.header {
		if strings.HasPrefix(key, http.TrailerPrefix) {
			return true
		}
	}
	return false
}

// trailersLocked encodes the fields that follow the body.
func (w *response) trailersLocked() {
	trailer := http.Header{}
	for _, key := range w.declaredTrailer() {
		if values := w.header[key]; len(values) > 0 {
			trailer[key] = values
		}
	}
	for key, values := range w.header {
		if name, ok := strings.CutPrefix(key, http.TrailerPrefix); ok && httpguts.ValidTrailerHeader(name) {
			trailer[http.CanonicalHeaderKey(name)] = values
		}
	}
	w.stream.conn.fieldsLocked(trailer, nil)
}

// now is the current second as headers write it.
var now atomic.Pointer[second]

type second struct {
	unix int64
	text string
}

func date() string {
	t := time.Now()
	if known := now.Load(); known != nil && known.unix == t.Unix() {
		return known.text
	}
	text := t.UTC().Format(http.TimeFormat)
	now.Store(&second{t.Unix(), text})
	return text
}
