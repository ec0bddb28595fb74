package connect

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestAddressesOfThisMachineAreRefused(t *testing.T) {
	for address, refused := range map[string]bool{
		"127.0.0.1": true, "127.8.8.8": true, "169.254.169.254": true, "0.0.0.0": true, "224.0.0.1": true, "255.255.255.255": true,
		"::1": true, "fe80::1": true, "::ffff:127.0.0.1": true, "::": true, "ff02::1": true,
		"10.0.0.1": false, "192.168.1.1": false, "fd00::1": false, "8.8.8.8": false,
	} {
		if got := localOnly(netip.MustParseAddr(address)); got != refused {
			t.Errorf("%s: refused %t", address, got)
		}
		network := netip.AddrPortFrom(netip.MustParseAddr(address), 80).String()
		if err := guard(false)("tcp", network, nil); (err != nil) != refused {
			t.Errorf("dial %s: %v", network, err)
		}
	}
	if guard(true)("tcp", "127.0.0.1:80", nil) != nil || guard(true)("tcp", "169.254.169.254:80", nil) == nil {
		t.Error("loopback alone can be allowed")
	}
}

func TestOnlyStreamsOfPodsMayStayOnThisMachine(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := New(Config{LoopbackStreams: true})
	defer c.Close()
	for name, tt := range map[string]struct {
		transport *http.Transport
		refused   bool
	}{"streams": {c.streamTransport, false}, "a node's proxy": {c.kubeletTransport, true}, "other proxies": {c.proxyTransport, true}} {
		conn, err := tt.transport.DialContext(t.Context(), "tcp", l.Addr().String())
		if (err != nil) != tt.refused {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			conn.Close()
		}
	}
}

func TestDecodeQuery(t *testing.T) {
	values, _ := url.ParseQuery("command=a&command=b&stdin&tty=0&stdout=True&container=c")
	var exec corev1.PodExecOptions
	if err := decodeQuery(values, &exec); err != nil {
		t.Fatal(err)
	}
	if want := (corev1.PodExecOptions{Command: []string{"a", "b"}, Stdin: true, Stdout: true, Container: "c"}); !reflect.DeepEqual(exec, want) {
		t.Errorf("%+v", exec)
	}
	values, _ = url.ParseQuery("tailLines=3&sinceTime=2026-01-02T03:04:05Z&stream=Stdout")
	var log corev1.PodLogOptions
	if err := decodeQuery(values, &log); err != nil || *log.TailLines != 3 || log.SinceTime.Year() != 2026 || *log.Stream != "Stdout" {
		t.Errorf("%+v, %v", log, err)
	}
	for _, bad := range []string{"tailLines=x", "sinceTime=now"} {
		values, _ = url.ParseQuery(bad)
		if decodeQuery(values, &corev1.PodLogOptions{}) == nil {
			t.Errorf("%s is fine", bad)
		}
	}
	values, _ = url.ParseQuery("ports=80,443&ports=8080")
	var forward corev1.PodPortForwardOptions
	if err := decodeQuery(values, &forward); err != nil || !reflect.DeepEqual(forward.Ports, []int32{80, 443, 8080}) {
		t.Errorf("%+v, %v", forward, err)
	}
}

func TestLogOptionsThatContradict(t *testing.T) {
	for _, o := range []corev1.PodLogOptions{
		{TailLines: ptr.To[int64](-1)}, {LimitBytes: ptr.To[int64](0)}, {SinceSeconds: ptr.To[int64](0)},
		{Stream: ptr.To("Nothing")}, {Stream: ptr.To(corev1.LogStreamStdout), TailLines: ptr.To[int64](1)},
	} {
		if len(validateLogOptions(&o)) != 1 {
			t.Errorf("%+v is fine", o)
		}
	}
	if errs := validateLogOptions(&corev1.PodLogOptions{TailLines: ptr.To[int64](0), Stream: ptr.To(corev1.LogStreamAll)}); len(errs) > 0 {
		t.Error(errs)
	}
}

func TestOnlyReadsOfABareProxyPathAreRedirected(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, r.Method+" "+r.URL.RequestURI())
	}))
	defer backend.Close()
	far, err := url.Parse(backend.URL)
	if err != nil {
		t.Fatal(err)
	}
	bare := "/api/v1/namespaces/default/pods/web/proxy"
	for _, test := range []struct {
		method, path, rest, location, body string
	}{
		{"GET", bare + "?q=1", "", bare + "/?q=1", ""},
		{"HEAD", bare, "", bare + "/", ""},
		{"GET", bare + "/?q=1", "/", "", "GET /?q=1"},
		{"DELETE", bare + "?q=1", "", "", "DELETE /?q=1"},
		{"OPTIONS", bare, "", "", "OPTIONS /"},
		{"PATCH", bare, "", "", "PATCH /"},
		{"POST", bare + "/a/b", "/a/b", "", "POST /a/b"},
		{"PUT", bare, "", "", "PUT /"},
	} {
		location := *far
		w := httptest.NewRecorder()
		r := httptest.NewRequest(test.method, test.path, nil)
		err := new(Connector).proxy(w, r, target{url: &location, transport: http.DefaultTransport}, nil, test.rest, func(err error) { t.Error(err) })
		if err != nil {
			t.Fatal(err)
		}
		code := http.StatusOK
		if test.location != "" {
			code = http.StatusMovedPermanently
		}
		if w.Code != code || w.Header().Get("Location") != test.location || w.Body.String() != test.body {
			t.Errorf("%s %s: %d, location %q, body %q", test.method, test.path, w.Code, w.Header().Get("Location"), w.Body)
		}
	}
}

func TestAStreamInMessagesOfAWebSocket(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sendMessages(w, r, io.NopCloser(strings.NewReader("alive\n")))
	}))
	defer server.Close()
	for _, test := range []struct {
		name     string
		asked    []string
		protocol string
		kind     int
		text     string
	}{
		{"binary where nothing is asked", nil, "", websocket.BinaryMessage, "alive\n"},
		{"binary", []string{"unknown", "binary.k8s.io"}, "binary.k8s.io", websocket.BinaryMessage, "alive\n"},
		{"base64 as text", []string{"base64.binary.k8s.io"}, "base64.binary.k8s.io", websocket.TextMessage, "YWxpdmUK"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dialer := websocket.Dialer{Subprotocols: test.asked}
			conn, _, err := dialer.Dial("ws"+strings.TrimPrefix(server.URL, "http"), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if conn.Subprotocol() != test.protocol {
				t.Errorf("subprotocol %q", conn.Subprotocol())
			}
			for _, want := range []string{"", test.text} {
				if kind, got, err := conn.ReadMessage(); err != nil || kind != test.kind || string(got) != want {
					t.Errorf("message %d %q (%v), want %q", kind, got, err, want)
				}
			}
			if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
				t.Errorf("end: %v", err)
			}
		})
	}
	dialer := websocket.Dialer{Subprotocols: []string{"unknown"}}
	if _, resp, err := dialer.Dial("ws"+strings.TrimPrefix(server.URL, "http"), nil); err == nil || resp.StatusCode != http.StatusForbidden {
		t.Errorf("an unknown subprotocol: %v", err)
	}
}

func TestAClientThatClosesItsWebSocketEndsTheStream(t *testing.T) {
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		endless, hold := io.Pipe()
		defer hold.Close()
		sendMessages(w, r, endless)
	}))
	defer server.Close()
	conn, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(server.URL, "http"), nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	<-ended
}
