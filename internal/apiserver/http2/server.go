// Package http2 answers HTTP/2 on the TLS connections of an http.Server.
//
// A connection has one goroutine that reads frames, and one for each request. What
// they have to say they append to one buffer. Whoever appends last before the
// connection is free writes the buffer, with what others have appended by then, so
// that an answer needs neither a goroutine that writes nor a write of its own for
// header, body and end:
//
//	reader ──► settings, pings, credit ──┐
//	request ─► HEADERS DATA DATA(end) ───┼──► out ──► TLS records of 16 KiB
//	request ─► HEADERS DATA(end) ────────┘
//
// What a client can make the server hold is bounded: streams, handlers of streams
// that it gave up (CVE-2023-44487), headers (CVE-2023-45288), bodies by their
// windows, frames that wait for a client that does not read (CVE-2019-9512). Frames
// and header compression are read by golang.org/x/net.
package http2

import (
	"crypto/tls"
	"net/http"
	"sync"
	"time"
)

// Config says what one connection may use. Zero values are the defaults.
type Config struct {
	MaxStreams   int           // requests at a time; default 100
	Window       int           // bytes of a body that a client may send before they are read; default 256 KiB
	MaxHeader    int           // bytes of a request's header; default 1 MiB
	IdleTimeout  time.Duration // a connection that has been without requests for so long ends, within twice the time; default 90 s
	WriteTimeout time.Duration // a client that takes nothing for so long is cut off; default 1 min
}

func (c *Config) setDefaults() {
	if c.MaxStreams <= 0 {
		c.MaxStreams = 100
	}
	if c.Window <= 0 {
		c.Window = 256 << 10
	}
	if c.MaxHeader <= 0 {
		c.MaxHeader = 1 << 20
	}
	if c.IdleTimeout <= 0 {
		c.IdleTimeout = 90 * time.Second
	}
	if c.WriteTimeout <= 0 {
		c.WriteTimeout = time.Minute
	}
}

// server is what the connections of one http.Server share.
type server struct {
	config Config

	mu       sync.Mutex // guards what follows
	conns    map[*conn]struct{}
	shutDown bool
}

// Serve makes s speak HTTP/2. It is called before s serves; s.Shutdown lets requests
// end, as it does on other connections.
func Serve(s *http.Server, c Config) {
	c.setDefaults()
	own := &server{config: c, conns: map[*conn]struct{}{}}
	s.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){"h2": own.serve}
	s.RegisterOnShutdown(own.leave)
}

// serve reads one connection to its end and waits for its handlers.
func (s *server) serve(of *http.Server, t *tls.Conn, h http.Handler) {
	c := newConn(s, of, t, h)
	if !s.add(c) {
		return
	}
	defer s.remove(c)
	c.serve()
}

func (s *server) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shutDown {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// leave tells all clients to go elsewhere once their requests have ended.
func (s *server) leave() {
	s.mu.Lock()
	s.shutDown = true
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.leave()
	}
}
