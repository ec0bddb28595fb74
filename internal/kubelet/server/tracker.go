package server

import (
	"net"
	"sync"
)

// tracker is a listener that can close the connections it accepted: those of
// upgraded streams have left the http.Server's care.
type tracker struct {
	net.Listener

	mu    sync.Mutex // guards conns
	conns map[*conn]bool
}

type conn struct {
	net.Conn
	t *tracker
}

func newTracker(l net.Listener) *tracker {
	return &tracker{Listener: l, conns: map[*conn]bool{}}
}

func (t *tracker) Accept() (net.Conn, error) {
	c, err := t.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tracked := &conn{Conn: c, t: t}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conns[tracked] = true
	return tracked, nil
}

func (c *conn) Close() error {
	c.t.mu.Lock()
	delete(c.t.conns, c)
	c.t.mu.Unlock()
	return c.Conn.Close()
}

func (t *tracker) closeAll() {
	t.mu.Lock()
	open := make([]*conn, 0, len(t.conns))
	for c := range t.conns {
		open = append(open, c)
	}
	t.mu.Unlock()
	for _, c := range open {
		c.Close()
	}
}
