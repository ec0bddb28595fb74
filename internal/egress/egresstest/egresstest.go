// Package egresstest is an HTTP CONNECT proxy for tests.
package egresstest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// Proxy leads on what it is asked for. It is safe for concurrent use.
type Proxy struct {
	// Leads are real addresses by those that are asked for; others are refused. Nil:
	// every address is real.
	Leads map[string]string
	// Answer is written instead of leading anywhere, when it is not empty.
	Answer string

	mu    sync.Mutex // guards asked
	asked []string
}

// Asked are the addresses that were asked for so far.
func (p *Proxy) Asked() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

// Socket serves at a socket until the test ends.
func (p *Proxy) Socket(t testing.TB) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	Serve(t, l, p.Handle)
	return socket
}

// Serve handles the connections of a listener until the test ends.
func Serve(t testing.TB, l net.Listener, handle func(net.Conn)) {
	var serving sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			serving.Go(func() {
				defer stop()
				defer conn.Close()
				handle(conn)
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		l.Close()
		serving.Wait()
	})
}

// Handle serves one connection.
func (p *Proxy) Handle(conn net.Conn) {
	in := bufio.NewReader(conn)
	r, err := http.ReadRequest(in)
	if err != nil || r.Method != http.MethodConnect {
		return
	}
	p.mu.Lock()
	p.asked = append(p.asked, r.RequestURI)
	p.mu.Unlock()
	if p.Answer != "" {
		_, _ = io.WriteString(conn, p.Answer)
		_, _ = io.Copy(io.Discard, conn)
		return
	}
	to := r.RequestURI
	if p.Leads != nil {
		to = p.Leads[to]
	}
	far, err := net.Dial("tcp", to)
	if err != nil {
		fmt.Fprintf(conn, "HTTP/1.1 502 Bad Gateway\r\n\r\n")
		return
	}
	defer far.Close()
	_, _ = io.WriteString(conn, "HTTP/1.1 200 Connection established\r\n\r\n")
	go func() {
		_, _ = io.Copy(far, in)
		far.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(conn, far)
}
