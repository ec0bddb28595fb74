package connect

import (
	"bufio"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// fuzzedAgent answers every connection with an upgrade and then with anything.
type fuzzedAgent struct {
	says    []byte
	running sync.WaitGroup
}

func (a *fuzzedAgent) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	a.running.Go(func() {
		defer far.Close()
		in := bufio.NewReader(far)
		if _, err := http.ReadRequest(in); err != nil {
			return
		}
		a.running.Go(func() { _, _ = io.Copy(io.Discard, in) })
		_, _ = io.WriteString(far, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v5.channel.k8s.io\r\n\r\n")
		_, _ = far.Write(a.says)
	})
	return near, nil
}

// FuzzStreams has a client and a node agent send anything once a connection was
// upgraded: WebSocket v5 and tunnels of port-forward, which are translated to SPDY, and
// what is copied as it is. Whatever they send, the request ends.
func FuzzStreams(f *testing.F) {
	end := []byte{0x88, 0x80, 0, 0, 0, 0}
	reply := []byte{0x80, 3, 0, 2, 0, 0, 0, 4, 0, 0, 0, 1}
	f.Add(byte(0), append([]byte{0x82, 0x82, 0, 0, 0, 0, 0, 'a'}, end...), reply)
	f.Add(byte(0), []byte{0x82, 0x82, 0, 0, 0, 0, 255, 0}, []byte{})
	f.Add(byte(0), []byte{0x89, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, []byte{0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff})
	f.Add(byte(1), append([]byte{0x82, 0x84, 0, 0, 0, 0, 0x80, 3, 0, 1}, end...), []byte{0x80, 3, 0, 7, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add(byte(2), []byte("anything"), []byte("else"))
	f.Fuzz(func(t *testing.T, kind byte, says, answers []byte) {
		if len(says)+len(answers) > 4096 {
			return
		}
		agent := &fuzzedAgent{says: answers}
		to := target{url: &url.URL{Scheme: "http", Host: "node", Path: "/exec/default/p/c"}, transport: &http.Transport{DialContext: agent.dial}}
		done := make(chan struct{})
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(done)
			if kind%3 == 1 {
				streamPorts(w, r, to, func(error) {})
			} else {
				streamExec(w, r, to, &corev1.PodExecOptions{Stdin: true, Stdout: true}, func(error) {})
			}
		}))
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.Start()
		defer server.Close()
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		protocol := []string{"v5.channel.k8s.io", "SPDY/3.1+portforward.k8s.io", "v4.channel.k8s.io"}[kind%3]
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"+
			"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: "+protocol+"\r\n\r\n")
		_, _ = conn.Write(says)
		_ = conn.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, conn)
		conn.Close()
		<-done
		agent.running.Wait()
	})
}
