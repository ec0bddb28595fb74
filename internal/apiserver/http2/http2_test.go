package http2

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	frame "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// serving starts a server with this handler.
func serving(t testing.TB, c Config, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Listener = Corked(s.Listener)
	Serve(s.Config, c)
	s.TLS = &tls.Config{NextProtos: []string{"h2", "http/1.1"}}
	s.StartTLS()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		s.CloseClientConnections()
		if err := s.Config.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		s.Close()
	})
	return s
}

// client is Go's own, which speaks HTTP/2.
func client(t testing.TB, s *httptest.Server) *http.Client {
	config := s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos = nil
	tr := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func do(t testing.TB, c *http.Client, method, url string, body io.Reader) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(got)
}

func TestAnswers(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 1<<18) // 4 MiB: more than a window of the client's
	tests := []struct {
		name    string
		method  string
		handler http.HandlerFunc
		code    int
		length  int64
		body    string
	}{
		{"an empty answer is a 200", "GET", func(http.ResponseWriter, *http.Request) {}, 200, 0, ""},
		{"a short body has its length counted", "GET", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }, 200, 5, "hello"},
		{"a code is kept", "GET", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(418); w.WriteHeader(200) }, 418, 0, ""},
		{"a long body without a length", "GET", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, large) }, 200, -1, large},
		{"a long body with its length", "GET", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(large)))
			for i := 0; i < len(large); i += 100_000 {
				io.WriteString(w, large[i:min(i+100_000, len(large))])
			}
		}, 200, int64(len(large)), large},
		{"what is flushed has no length", "GET", func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "a")
			w.(http.Flusher).Flush()
			io.WriteString(w, "b")
		}, 200, -1, "ab"},
		{"HEAD has a length and no body", "HEAD", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			io.WriteString(w, "hello")
		}, 200, 5, ""},
		{"204 has no body", "GET", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(204)
			if _, err := io.WriteString(w, "x"); err != http.ErrBodyNotAllowed {
				panic(err)
			}
		}, 204, 0, ""},
		{"more than the length is refused", "GET", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "2")
			io.WriteString(w, "ab")
			if _, err := io.WriteString(w, "c"); err != http.ErrContentLength {
				panic(err)
			}
		}, 200, 2, "ab"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := serving(t, Config{}, tt.handler)
			resp, body := do(t, client(t, s), tt.method, s.URL, nil)
			if resp.ProtoMajor != 2 || resp.StatusCode != tt.code || resp.ContentLength != tt.length || body != tt.body {
				t.Errorf("HTTP/%d: %d, length %d, %d bytes of body; want %d, %d, %d", resp.ProtoMajor, resp.StatusCode, resp.ContentLength, len(body), tt.code, tt.length, len(tt.body))
			}
			if resp.Header.Get("Date") == "" {
				t.Error("the answer has no date")
			}
		})
	}
}

func TestRequestsArriveWhole(t *testing.T) {
	type seen struct {
		method, uri, host, agent, body string
		length                         int64
		tls                            bool
	}
	var got seen
	s := serving(t, Config{Window: 1 << 10}, func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = seen{r.Method, r.RequestURI, r.Host, r.UserAgent(), string(b), r.ContentLength, r.TLS != nil && r.RemoteAddr != ""}
	})
	c := client(t, s)
	large := strings.Repeat("x", 1<<20) // a thousand windows
	for _, body := range []struct {
		from   io.Reader
		want   string
		length int64
	}{
		{nil, "", 0}, {strings.NewReader("short"), "short", 5}, {strings.NewReader(large), large, 1 << 20}, {io.MultiReader(strings.NewReader(large)), large, -1},
	} {
		r, _ := http.NewRequest("POST", s.URL+"/a/b%2Fc?d=e", body.from)
		r.Header.Set("User-Agent", "tester")
		resp, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		want := seen{"POST", "/a/b%2Fc?d=e", strings.TrimPrefix(s.URL, "https://"), "tester", body.want, body.length, true}
		if got != want {
			t.Errorf("got %.200v\nwant %.200v", got, want)
		}
	}
}

func TestTrailersAndInformationalAnswers(t *testing.T) {
	s := serving(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "early")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Trailer", "Grpc-Status")
		io.Copy(w, r.Body)
		w.Header().Set("Grpc-Status", r.Trailer.Get("Sum"))
		w.Header().Set(http.TrailerPrefix+"More", "m")
	})
	r, _ := http.NewRequest("POST", s.URL, io.MultiReader(strings.NewReader("hello")))
	r.Trailer = http.Header{"Sum": {"7"}}
	resp, err := client(t, s).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || string(body) != "hello" || resp.Trailer.Get("Grpc-Status") != "7" || resp.Trailer.Get("More") != "m" {
		t.Errorf("body %q, trailer %v, error %v", body, resp.Trailer, err)
	}
}

func TestManyAtOnce(t *testing.T) {
	s := serving(t, Config{}, func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	c := client(t, s)
	do(t, c, "GET", s.URL, nil) // what comes now shares its connection
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			want := bytes.Repeat([]byte{byte(i)}, i*97)
			resp, err := c.Post(s.URL, "application/octet-stream", bytes.NewReader(want))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if got, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(got, want) {
				t.Errorf("request %d: %d bytes, want %d, error %v", i, len(got), len(want), err)
			}
		})
	}
	all.Wait()
}

func TestAStreamIsReadAsItIsWritten(t *testing.T) {
	more, ended := make(chan string), make(chan error, 1)
	s := serving(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		control := http.NewResponseController(w)
		for {
			select {
			case text := <-more:
				io.WriteString(w, text)
			case <-r.Context().Done():
				ended <- r.Context().Err()
				return
			}
			control.Flush()
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	r, _ := http.NewRequestWithContext(ctx, "GET", s.URL, nil)
	go func() { more <- "first" }()
	resp, err := client(t, s).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	buf := make([]byte, 16)
	for _, text := range []string{"first", "second"} {
		if text == "second" {
			more <- text
		}
		if _, err := io.ReadFull(resp.Body, buf[:len(text)]); err != nil || string(buf[:len(text)]) != text {
			t.Fatalf("read %q, %v", buf, err)
		}
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("the handler does not learn that its client is gone")
	}
}

func TestAPanicResetsTheStreamOnly(t *testing.T) {
	s := serving(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panic" {
			io.WriteString(w, "begun")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
	})
	c := client(t, s)
	resp, err := c.Get(s.URL + "/panic")
	if err == nil {
		_, err = io.ReadAll(resp.Body)
		resp.Body.Close()
	}
	if err == nil {
		t.Error("an answer that was broken off reads as whole")
	}
	do(t, c, "GET", s.URL, nil)
}

func TestConnectionCloseSendsTheClientElsewhere(t *testing.T) {
	var mu sync.Mutex
	from := map[string]bool{}
	s := serving(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		from[r.RemoteAddr] = true
		w.Header().Set("Connection", "close")
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
	})
	c := client(t, s)
	for range 3 {
		if resp, body := do(t, c, "GET", s.URL, nil); resp.StatusCode != 401 || body != "Unauthorized\n" {
			t.Errorf("%d: %q", resp.StatusCode, body)
		}
	}
	if len(from) != 3 {
		t.Errorf("3 requests came on %d connections", len(from))
	}
}

func TestShutdownLetsRequestsEnd(t *testing.T) {
	began, end := make(chan struct{}), make(chan struct{})
	s := serving(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
		close(began)
		<-end
		io.WriteString(w, "whole")
	})
	answer := make(chan string)
	go func() {
		_, body := do(t, client(t, s), "GET", s.URL, nil)
		answer <- body
	}()
	<-began
	done := make(chan error)
	go func() { done <- s.Config.Shutdown(context.Background()) }()
	close(end)
	if got := <-answer; got != "whole" {
		t.Errorf("answer %q", got)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// raw is a client that can break the rules.
type raw struct {
	*frame.Framer
	t    *testing.T
	conn net.Conn
	enc  *hpack.Encoder
	buf  bytes.Buffer
}

func dial(t *testing.T, s *httptest.Server) *raw {
	t.Helper()
	conn, err := tls.Dial("tcp", s.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	io.WriteString(conn, frame.ClientPreface)
	r := &raw{Framer: frame.NewFramer(conn, conn), t: t, conn: conn}
	r.enc = hpack.NewEncoder(&r.buf)
	r.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	return r
}

func (r *raw) header(id uint32, end bool, fields ...string) {
	r.buf.Reset()
	if len(fields) == 0 {
		fields = []string{":method", "GET", ":scheme", "https", ":path", "/", ":authority", "example"}
	}
	for i := 0; i < len(fields); i += 2 {
		r.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	r.WriteHeaders(frame.HeadersFrameParam{StreamID: id, BlockFragment: r.buf.Bytes(), EndHeaders: true, EndStream: end})
}

// outcome reads until a stream or the connection is ended by an error, or until a
// stream is answered.
func (r *raw) outcome() string {
	for {
		f, err := r.ReadFrame()
		switch f := f.(type) {
		case *frame.GoAwayFrame:
			return "GOAWAY " + f.ErrCode.String()
		case *frame.RSTStreamFrame:
			return "RST_STREAM " + f.ErrCode.String()
		case *frame.MetaHeadersFrame:
			return f.PseudoValue("status")
		}
		if err != nil {
			return "closed"
		}
	}
}

func TestWhatBreaksTheRulesIsRefused(t *testing.T) {
	get := func(more ...string) []string {
		return append([]string{":method", "GET", ":scheme", "https", ":path", "/", ":authority", "example"}, more...)
	}
	tests := []struct {
		name string
		send func(r *raw)
		want string
	}{
		{"a good request is answered", func(r *raw) { r.header(1, true) }, "200"},
		{"no settings first", func(r *raw) { r.WritePing(false, [8]byte{}) }, "GOAWAY PROTOCOL_ERROR"},
		{"even stream ids", func(r *raw) { r.header(2, true) }, "GOAWAY PROTOCOL_ERROR"},
		{"data on a stream that is not open", func(r *raw) { r.WriteData(5, true, nil) }, "GOAWAY PROTOCOL_ERROR"},
		{"credit on a stream that is not open", func(r *raw) { r.WriteWindowUpdate(5, 1) }, "GOAWAY PROTOCOL_ERROR"},
		{"a window above the most", func(r *raw) { r.WriteWindowUpdate(0, 1<<31-1) }, "GOAWAY FLOW_CONTROL_ERROR"},
		{"settings nobody sent are acknowledged", func(r *raw) { r.WriteSettingsAck(); r.WriteSettingsAck() }, "GOAWAY PROTOCOL_ERROR"},
		{"a pushed promise", func(r *raw) {
			r.WritePushPromise(frame.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true})
		}, "GOAWAY PROTOCOL_ERROR"},
		{"more data than the window", func(r *raw) {
			r.header(1, false, get()...)
			for range 5 {
				r.WriteData(1, false, make([]byte, 1<<14))
			}
		}, "RST_STREAM FLOW_CONTROL_ERROR"},
		{"more data than was declared", func(r *raw) {
			r.header(1, false, get("content-length", "2")...)
			r.WriteData(1, false, []byte("abc"))
		}, "RST_STREAM PROTOCOL_ERROR"},
		{"less data than was declared", func(r *raw) {
			r.header(1, false, get("content-length", "2")...)
			r.WriteData(1, true, []byte("a"))
		}, "RST_STREAM PROTOCOL_ERROR"},
		{"a length and no body", func(r *raw) { r.header(1, true, get("content-length", "2")...) }, "RST_STREAM PROTOCOL_ERROR"},
		{"two lengths", func(r *raw) { r.header(1, false, get("content-length", "2", "content-length", "3")...) }, "RST_STREAM PROTOCOL_ERROR"},
		{"a field of the connection", func(r *raw) { r.header(1, true, get("transfer-encoding", "chunked")...) }, "RST_STREAM PROTOCOL_ERROR"},
		{"a name in capitals", func(r *raw) { r.header(1, true, get("Name", "x")...) }, "RST_STREAM PROTOCOL_ERROR"},
		{"no path", func(r *raw) { r.header(1, true, ":method", "GET", ":scheme", "https", ":authority", "x") }, "RST_STREAM PROTOCOL_ERROR"},
		{"a relative path", func(r *raw) { r.header(1, true, ":method", "GET", ":scheme", "https", ":authority", "x", ":path", "a") }, "RST_STREAM PROTOCOL_ERROR"},
		{"a header that is too large", func(r *raw) {
			r.header(1, true, get("x", strings.Repeat("x", 3000), "y", strings.Repeat("y", 3000))...)
		}, "431"},
		{"a frame that is too large", func(r *raw) {
			r.header(1, false, get()...)
			r.WriteRawFrame(frame.FrameData, 0, 1, make([]byte, 1<<18))
		}, "GOAWAY FRAME_SIZE_ERROR"},
		{"more streams than are allowed", func(r *raw) {
			for i := range uint32(5) {
				r.header(2*i+1, false, get()...)
			}
		}, "RST_STREAM REFUSED_STREAM"},
		{"streams that are begun and given up, on and on", func(r *raw) {
			for i := range uint32(100) {
				r.header(2*i+1, false, get()...)
				r.WriteRSTStream(2*i+1, frame.ErrCodeCancel)
			}
		}, "GOAWAY ENHANCE_YOUR_CALM"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			end := make(chan struct{})
			s := serving(t, Config{MaxStreams: 4, Window: 1 << 16, MaxHeader: 4 << 10}, func(_ http.ResponseWriter, r *http.Request) {
				if r.ContentLength != 0 {
					<-end
				}
			})
			defer close(end)
			r := dial(t, s)
			if tt.name != "no settings first" {
				r.WriteSettings()
			}
			tt.send(r)
			if got := r.outcome(); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

func TestAClientThatAsksOnAndReadsNothingIsCutOff(t *testing.T) {
	s := serving(t, Config{}, func(http.ResponseWriter, *http.Request) {})
	r := dial(t, s)
	r.WriteSettings()
	var pings bytes.Buffer
	many := frame.NewFramer(&pings, nil)
	for range 4 << 10 {
		many.WritePing(false, [8]byte{})
	}
	for range 4 << 10 { // far more than the kernel holds
		if _, err := r.conn.Write(pings.Bytes()); err != nil {
			return
		}
	}
	t.Error("sixteen million pings were taken")
}

func TestAnIdleConnectionEnds(t *testing.T) {
	s := serving(t, Config{IdleTimeout: time.Millisecond}, func(http.ResponseWriter, *http.Request) {})
	r := dial(t, s)
	r.WriteSettings()
	if got := r.outcome(); got != "GOAWAY NO_ERROR" {
		t.Errorf("%s", got)
	}
}

func TestSmallWindowsAreKept(t *testing.T) {
	const size = 100_000
	s := serving(t, Config{}, func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, size)) })
	r := dial(t, s)
	const window = 1000
	r.WriteSettings(frame.Setting{ID: frame.SettingInitialWindowSize, Val: window})
	r.header(1, true)
	for got, given := 0, window; ; {
		f, err := r.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		data, ok := f.(*frame.DataFrame)
		if !ok {
			continue
		}
		if got += len(data.Data()); got > given {
			t.Fatalf("%d bytes came, %d were allowed", got, given)
		}
		if data.StreamEnded() {
			if got != size {
				t.Errorf("%d bytes of %d", got, size)
			}
			return
		}
		given += len(data.Data())
		r.WriteWindowUpdate(0, uint32(max(1, len(data.Data()))))
		r.WriteWindowUpdate(1, uint32(max(1, len(data.Data()))))
	}
}

// FuzzFrames holds that no bytes crash the server or keep it from ending.
func FuzzFrames(f *testing.F) {
	var good bytes.Buffer
	w := frame.NewFramer(&good, nil)
	w.WriteSettings()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, field := range []hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "https"}, {Name: ":path", Value: "/"}, {Name: ":authority", Value: "x"}} {
		enc.WriteField(field)
	}
	w.WriteHeaders(frame.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
	w.WriteDataPadded(1, false, []byte("hello"), make([]byte, 3))
	w.WriteWindowUpdate(1, 10)
	w.WritePing(false, [8]byte{})
	w.WriteData(1, true, []byte("bye"))
	w.WriteGoAway(0, frame.ErrCodeNo, nil)
	f.Add(good.Bytes())
	f.Add(good.Bytes()[:good.Len()/2])
	noise := make([]byte, 100)
	rand.Read(noise)
	f.Add(noise)
	s := serving(f, Config{MaxStreams: 4, Window: 1 << 10}, func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	f.Fuzz(func(t *testing.T, data []byte) {
		conn, err := tls.Dial("tcp", s.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		io.WriteString(conn, frame.ClientPreface)
		conn.Write(data)
		conn.CloseWrite()
		if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Fatal("the connection does not end")
		}
	})
}
