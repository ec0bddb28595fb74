package apiserver

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// dial opens a connection of its own, over which a test can send what no client
// library would.
func (w *world) dial(protocol string) net.Conn {
	w.t.Helper()
	plain, err := net.Dial("tcp", strings.TrimPrefix(w.config.Host, "https://"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { plain.Close() })
	plain.(*net.TCPConn).SetReadBuffer(64 << 10)
	return tls.Client(plain, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}})
}

const asAdmin = "Host: x\r\nAuthorization: Bearer admin\r\n"

// A client that keeps a request open by doing nothing loses its place when its time
// is up.
func TestWhoSendsNothingIsCutOff(t *testing.T) {
	w := newWorld(t)
	w.namespace("default")
	t.Run("over HTTP/1.1", func(t *testing.T) {
		conn := w.dial("http/1.1")
		fmt.Fprintf(conn, "POST /api/v1/namespaces/default/configmaps?timeout=200ms HTTP/1.1\r\n%sContent-Type: application/json\r\nContent-Length: 3000000\r\n\r\n{", asAdmin)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		if s := status(t, string(body)); resp.StatusCode != http.StatusGatewayTimeout || s.Reason != metav1.StatusReasonTimeout {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	})
	t.Run("over HTTP/2", func(t *testing.T) {
		client, err := rest.HTTPClientFor(w.config)
		if err != nil {
			t.Fatal(err)
		}
		body, never := io.Pipe()
		defer never.Close()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.config.Host+"/api/v1/namespaces/default/configmaps?timeout=200ms", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusGatewayTimeout || resp.ProtoMajor != 2 {
			t.Errorf("%s %d", resp.Proto, resp.StatusCode)
		}
	})
}

// A client that does not read its answer does not hold a place for ever either.
func TestWhoReadsNothingIsCutOff(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxReads = 1 })
	w.namespace("default")
	for i := range 24 { // more than the buffers of a connection take
		cm := w.configMap(fmt.Sprint("c", i))
		cm.Data["k"] = strings.Repeat("x", 1<<20-1)
		if _, err := w.client().CoreV1().ConfigMaps("default").Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	conn := w.dial("http/1.1")
	fmt.Fprintf(conn, "GET /api/v1/configmaps?timeout=500ms HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer bob\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil) // it is being served
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%+v, %v", resp, err)
	}
	w.until("its place is free", func() bool {
		resp, _ := w.doAs("jane", "GET", "/api/v1/namespaces/default")
		return resp.StatusCode == http.StatusOK
	})
	if n, err := io.Copy(io.Discard, conn); n > 23<<20 {
		t.Errorf("all was sent to one who did not read: %d bytes, %v", n, err)
	}
}
