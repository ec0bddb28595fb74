package apiserver

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apiserver/codec"
	"proa/internal/apiserver/negotiate"
	"proa/internal/latency"
)

// fail writes an error as a Status in the form the client accepts, or as JSON.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	status := statusOf(err)
	s.auditStatus(r, status)
	f, negotiateErr := negotiate.Response(r, s.offer(negotiate.Plain))
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		header.Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	if negotiateErr != nil {
		header.Set("Content-Type", string(negotiate.JSON))
		w.WriteHeader(int(status.Code))
		plain := *status
		plain.Kind, plain.APIVersion = "Status", "v1"
		if err := writeIndented(w, plain); err != nil {
			s.config.Log.Debug("a status was not delivered", "error", err)
		}
		return
	}
	if err := s.writeObject(w, r, f, int(status.Code), codec.StatusKind, status); err != nil {
		s.config.Log.Debug("a status was not delivered", "error", err)
	}
}

// offer adds CBOR to what an endpoint produces where its gate is on.
func (s *Server) offer(a negotiate.Accepts) negotiate.Accepts {
	if s.cbor {
		return a.Also(negotiate.CBOR)
	}
	return a
}

// bodies are the media types of request bodies.
func (s *Server) bodies(custom bool) []negotiate.Media {
	media := []negotiate.Media{negotiate.JSON, negotiate.YAML}
	if !custom {
		media = append(media, negotiate.Protobuf)
	}
	if s.cbor {
		media = append(media, negotiate.CBOR)
	}
	return media
}

// writeObject writes an object that is no item.
func (s *Server) writeObject(w http.ResponseWriter, r *http.Request, f negotiate.Format, code int, kind schema.GroupVersionKind, obj any) error {
	out := newSink(w, r, code, string(f.Media))
	if err := codec.WriteObject(out, f, kind, obj); err != nil {
		return err
	}
	return out.Close()
}

// compressAbove is the size above which a response is compressed for a client
// that accepts it.
const compressAbove = 128 << 10

// sink is a response body. It holds back the header until the body is
// complete or larger than compressAbove: small answers get a length, large ones
// are compressed if the client likes, and an error before that point can still
// become a Status.
type sink struct {
	w    http.ResponseWriter
	code int
	gzip bool // the client accepts it
	buf  *[]byte
	sent bool
	zip  *gzip.Writer
	time *latency.Breakdown
}

var (
	sinkBuffers = sync.Pool{New: func() any { b := make([]byte, 0, compressAbove+32<<10); return &b }}
	gzipWriters = sync.Pool{New: func() any { z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed); return z }}
)

func newSink(w http.ResponseWriter, r *http.Request, code int, contentType string) *sink {
	w.Header().Set("Content-Type", contentType)
	return &sink{w: w, code: code, gzip: acceptsGzip(r), time: latency.Of(r.Context())}
}

func acceptsGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, params, _ := strings.Cut(strings.TrimSpace(part), ";")
		if name == "gzip" && strings.ReplaceAll(params, " ", "") != "q=0" {
			return true
		}
	}
	return false
}

func (s *sink) Write(p []byte) (int, error) {
	if s.buf == nil {
		s.buf = sinkBuffers.Get().(*[]byte)
	}
	if len(p) >= compressAbove { // a part of a long list: not copied
		if err := s.flush(); err != nil {
			return 0, err
		}
		defer s.time.Track(latency.Network)()
		return s.body().Write(p)
	}
	*s.buf = append(*s.buf, p...)
	if len(*s.buf) < compressAbove {
		return len(p), nil
	}
	return len(p), s.flush()
}

// flush sends what is buffered, after the header if that is still due.
func (s *sink) flush() error {
	if !s.sent {
		s.sent = true
		header := s.w.Header()
		if s.gzip {
			header.Set("Content-Encoding", "gzip")
			header.Add("Vary", "Accept-Encoding")
			s.zip = gzipWriters.Get().(*gzip.Writer)
			s.zip.Reset(s.w)
		}
		s.w.WriteHeader(s.code)
	}
	written := s.time.Track(latency.Network)
	_, err := s.body().Write(*s.buf)
	written()
	*s.buf = (*s.buf)[:0]
	return err
}

// body is where the body goes.
func (s *sink) body() io.Writer {
	if s.zip != nil {
		return s.zip
	}
	return s.w
}

// Started reports whether the header is out.
func (s *sink) Started() bool { return s.sent }

// Close sends the rest. The sink is of no use afterwards.
func (s *sink) Close() error {
	defer s.release()
	if !s.sent {
		s.sent = true
		n := 0
		if s.buf != nil {
			n = len(*s.buf)
		}
		s.w.Header().Set("Content-Length", strconv.Itoa(n))
		s.w.WriteHeader(s.code)
		if n == 0 {
			return nil
		}
		written := s.time.Track(latency.Network)
		_, err := s.w.Write(*s.buf)
		written()
		return err
	}
	if err := s.flush(); err != nil || s.zip == nil {
		return err
	}
	return s.zip.Close()
}

// release gives buffers back. A buffer that grew large is left to the collector.
func (s *sink) release() {
	if s.buf != nil && cap(*s.buf) <= 4*compressAbove {
		*s.buf = (*s.buf)[:0]
		sinkBuffers.Put(s.buf)
	}
	s.buf = nil
	if s.zip != nil {
		s.zip.Reset(nil)
		gzipWriters.Put(s.zip)
		s.zip = nil
	}
}
