package http2

import (
	"net"
	"sync"
)

// Corked makes the connections of a listener below TLS hand many records to the kernel
// in one write. Connections that the package does not serve write as before.
func Corked(l net.Listener) net.Listener { return corkedListener{l} }

type corkedListener struct{ net.Listener }

// Accept waits for a connection.
func (l corkedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &corked{Conn: c}, nil
}

// corked is a connection whose writes can be held back: TLS makes one for each record
// of 16 KiB.
type corked struct {
	net.Conn

	mu   sync.Mutex // guards what follows; held while it writes
	held *[]byte    // nil: nothing is held back
}

// mostHeld is how many bytes are held back at most; the kernel takes no more at once.
const mostHeld = 64 << 10

var corks = sync.Pool{New: func() any { b := make([]byte, 0, mostHeld+(20<<10)); return &b }}

// Write holds p back, or writes it.
func (c *corked) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		return c.Conn.Write(p)
	}
	*c.held = append(*c.held, p...)
	if len(*c.held) < mostHeld {
		return len(p), nil
	}
	_, err := c.Conn.Write(*c.held)
	*c.held = (*c.held)[:0]
	return len(p), err
}

// hold holds back what is written until release.
func (c *corked) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		c.held = corks.Get().(*[]byte)
	}
}

// release writes what was held back.
func (c *corked) release() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := c.held
	if c.held = nil; held == nil {
		return nil
	}
	var err error
	if len(*held) > 0 {
		_, err = c.Conn.Write(*held)
	}
	*held = (*held)[:0]
	corks.Put(held)
	return err
}
