package apiserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// rawHTTP2 speaks HTTP/2 by hand.
type rawHTTP2 struct {
	*http2.Framer
	t    *testing.T
	conn net.Conn
}

func (w *world) http2() *rawHTTP2 {
	w.t.Helper()
	conn := w.dial("h2")
	r := &rawHTTP2{http2.NewFramer(conn, conn), w.t.(*testing.T), conn}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		w.t.Fatal(err)
	}
	if err := r.WriteSettings(); err != nil {
		w.t.Fatal(err)
	}
	return r
}

// header is the block of a GET.
func (r *rawHTTP2) header(path, token string, more ...string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	fields := append([]string{":method", "GET", ":scheme", "https", ":authority", "x", ":path", path, "authorization", "Bearer " + token}, more...)
	for i := 0; i < len(fields); i += 2 {
		e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return b.Bytes()
}

// ended reads until the server ends the connection, and returns the code it gave.
func (r *rawHTTP2) ended() http2.ErrCode {
	code := http2.ErrCodeNo
	for {
		f, err := r.ReadFrame()
		if err != nil {
			return code
		}
		if away, ok := f.(*http2.GoAwayFrame); ok {
			code = away.ErrCode
		}
	}
}

// CVE-2023-44487: streams that are opened and reset at once cost the server no more
// handlers than a connection may have streams, and end the connection.
func TestStreamsThatAreResetAtOnceEndTheConnection(t *testing.T) {
	g := gate{make(chan struct{}, 1000), make(chan struct{})}
	const streams = 10
	w := newWorld(t, func(c *Config) {
		c.MaxStreams, c.MaxReads, c.Authorizer = streams, -1, authorizer.AuthorizerFunc(g.authorize)
	})
	r := w.http2()
	go func() {
		for id := uint32(1); id < 20_000; id += 2 {
			if r.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.header("/version", "admin"), EndStream: true, EndHeaders: true}) != nil ||
				r.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
				return // as it should be
			}
		}
	}()
	if code := r.ended(); code != http2.ErrCodeEnhanceYourCalm {
		t.Errorf("the connection ends with %v", code)
	}
	if n := len(g.entered); n > streams {
		t.Errorf("%d handlers at a time", n)
	}
	close(g.leave)
}

// CVE-2023-45288: a header that never ends ends the connection, within bounds.
func TestAHeaderWithoutEndEndsTheConnection(t *testing.T) {
	w := newWorld(t)
	r := w.http2()
	if err := r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: r.header("/version", "admin")}); err != nil {
		t.Fatal(err)
	}
	go func() {
		block := bytes.Repeat(hpack.AppendHuffmanString([]byte{0x00, 0x81, 'x', 0x7f, 0x81, 0x06}, ""), 1)
		block = append(block, bytes.Repeat([]byte{'y'}, 127+0x301)...)
		for range 10_000 {
			if r.WriteContinuation(1, false, block[:min(len(block), 16<<10)]) != nil {
				return
			}
		}
	}()
	if code := r.ended(); code == http2.ErrCodeNo {
		t.Error("the connection goes on")
	}
	if resp, _ := w.do("GET", "/healthz", ""); resp.StatusCode != http.StatusOK {
		t.Errorf("others get %d", resp.StatusCode)
	}
}

// More streams than a connection may have are refused, not queued.
func TestStreamsOfAConnectionAreBounded(t *testing.T) {
	g := gate{make(chan struct{}, 100), make(chan struct{})}
	w := newWorld(t, func(c *Config) {
		c.MaxStreams, c.MaxReads, c.Authorizer = 3, -1, authorizer.AuthorizerFunc(g.authorize)
	})
	r := w.http2()
	for id := uint32(1); id <= 9; id += 2 {
		if err := r.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.header("/version", "admin"), EndStream: true, EndHeaders: true}); err != nil {
			t.Fatal(err)
		}
	}
	announced := false
	for refused := 0; refused < 2; {
		f, err := r.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if n, ok := f.Value(http2.SettingMaxConcurrentStreams); ok {
				announced = n == 3
			}
		case *http2.RSTStreamFrame:
			if f.ErrCode != http2.ErrCodeRefusedStream && f.ErrCode != http2.ErrCodeProtocol {
				t.Errorf("stream %d ends with %v", f.StreamID, f.ErrCode)
			}
			refused++
		}
	}
	if !announced {
		t.Error("the limit is not announced")
	}
	for range 3 {
		<-g.entered
	}
	close(g.leave)
}

// A stranger gets one answer per connection, and nothing of what it sends is kept.
func TestStrangersAreSentAwayWithTheirConnection(t *testing.T) {
	w := newWorld(t)
	r := w.http2()
	if err := r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: r.header("/api", "stranger"), EndStream: true, EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	away := false
	for !away {
		f, err := r.ReadFrame()
		if err != nil {
			t.Fatalf("no GOAWAY: %v", err)
		}
		_, away = f.(*http2.GoAwayFrame)
	}
}

// What is announced is not believed: a body gets room as it comes.
func TestAnnouncedBodiesTakeNoMemory(t *testing.T) {
	w := newWorld(t)
	w.namespace("default")
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const clients = 60
	for range clients {
		conn := w.dial("http/1.1")
		fmt.Fprintf(conn, "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\n%sContent-Type: application/json\r\nContent-Length: 3145728\r\nExpect: 100-continue\r\n\r\n", asAdmin)
		line := make([]byte, len("HTTP/1.1 100 Continue\r\n"))
		if _, err := io.ReadFull(conn, line); err != nil || !strings.HasPrefix(string(line), "HTTP/1.1 100") { // it is reading the body
			t.Fatalf("%q, %v", line, err)
		}
	}
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > clients<<20 {
		t.Errorf("%d clients that send nothing take %d bytes", clients, grown)
	}
}

// Requests that two readers could take apart in two ways are refused.
func TestAmbiguousRequestsAreRefused(t *testing.T) {
	w := newWorld(t)
	w.namespace("default")
	revision := w.store.Revision()
	const create = `{"metadata":{"name":"smuggled"}}`
	const end = asAdmin + "Connection: close\r\n"
	const post = "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\n" + end + "Content-Type: application/json\r\n"
	tests := []struct{ name, request string }{
		{"two lengths", post + "Content-Length: 3\r\nContent-Length: 32\r\n\r\n" + create},
		{"a chunk size with a sign", post + "Transfer-Encoding: chunked\r\n\r\n+20\r\n" + create + "\r\n0\r\n\r\n"},
		{"an unknown transfer coding", post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"},
		{"a transfer coding twice", post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		{"a space before the colon", post + "X-Remote-User : root\r\nContent-Length: 32\r\n\r\n" + create},
		{"a folded header", post + "X-A: b\r\n Content-Length: 0\r\nContent-Length: 3\r\n\r\n" + create},
		{"a NUL in a header", post + "X-A: b\x00c\r\nContent-Length: 32\r\n\r\n" + create},
		{"a bare line feed in a header", post + "X-A: b\rX-B: c\r\nContent-Length: 32\r\n\r\n" + create},
		{"no host", "GET /api HTTP/1.1\r\nConnection: close\r\n\r\n"},
		{"two hosts", "GET /api HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n"},
		{"a space in the path", "GET /api/v1/pods /x HTTP/1.1\r\n" + end + "\r\n"},
		{"a control character in the path", "GET /api/v1/pods\x01 HTTP/1.1\r\n" + end + "\r\n"},
		{"a broken escape in the path", "GET /api/v1/pods/%zz HTTP/1.1\r\n" + end + "\r\n"},
		{"an unknown version", "GET /api HTTP/3.0\r\n" + end + "\r\n"},
		{"a header of two megabytes", "GET /api HTTP/1.1\r\n" + end + "X-A: " + strings.Repeat("a", 2<<20) + "\r\n\r\n"},
		{"a URL of two megabytes", "GET /api/v1/pods?labelSelector=" + strings.Repeat("a", 2<<20) + " HTTP/1.1\r\n" + end + "\r\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			conn := w.dial("http/1.1")
			go io.WriteString(conn, tt.request) // who is refused early need not be heard to the end
			answer, err := io.ReadAll(conn)
			if err != nil && len(answer) == 0 && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(answer), "HTTP/1.1 4") && !strings.HasPrefix(string(answer), "HTTP/1.1 50") && len(answer) > 0 {
				t.Errorf("answered with %.200q", answer)
			}
			if strings.Count(string(answer), "HTTP/1.1 ") > 1 {
				t.Errorf("taken for two requests: %.500q", answer)
			}
		})
	}
	if now := w.store.Revision(); now != revision {
		t.Errorf("the store went from revision %d to %d", revision, now)
	}
}
