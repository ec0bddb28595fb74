package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	konnectivity "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"proa/internal/auth/pki"
	"proa/internal/egress/egresstest"
)

// echo answers every line with itself, and tells where it listens.
func echo(t *testing.T) string {
	t.Helper()
	l := listen(t, "tcp", "127.0.0.1:0")
	egresstest.Serve(t, l, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
	return l.Addr().String()
}

func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// konnectivityServer leads each stream to where it asks.
type konnectivityServer struct {
	konnectivity.UnimplementedProxyServiceServer
	mu  sync.Mutex // guards log
	log []string
}

func (k *konnectivityServer) Proxy(stream konnectivity.ProxyService_ProxyServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	request := first.GetDialRequest()
	k.mu.Lock()
	k.log = append(k.log, request.Address)
	k.mu.Unlock()
	answer := &konnectivity.DialResponse{Random: request.Random, ConnectID: 1}
	far, err := net.Dial(request.Protocol, request.Address)
	if err != nil {
		answer.Error = err.Error()
	}
	err = errors.Join(err, stream.Send(&konnectivity.Packet{Type: konnectivity.PacketType_DIAL_RSP, Payload: &konnectivity.Packet_DialResponse{DialResponse: answer}}))
	if err != nil {
		return err
	}
	defer far.Close()
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := far.Read(buf)
			if err != nil {
				return
			}
			data := &konnectivity.Data{ConnectID: 1, Data: slices.Clone(buf[:n])}
			if stream.Send(&konnectivity.Packet{Type: konnectivity.PacketType_DATA, Payload: &konnectivity.Packet_Data{Data: data}}) != nil {
				return
			}
		}
	}()
	for {
		p, err := stream.Recv()
		if err != nil || p.Type == konnectivity.PacketType_CLOSE_REQ {
			return err
		}
		if _, err := far.Write(p.GetData().GetData()); err != nil {
			return err
		}
	}
}

func write(t *testing.T, name string, data []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func read(t *testing.T, selections string) (Dialers, error) {
	t.Helper()
	return Read(write(t, "egress.yaml", []byte("apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n"+selections)))
}

// says sends a line through a connection and wants it back.
func says(t *testing.T, d func(ctx context.Context, network, address string) (net.Conn, error), to string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	conn, err := d(ctx, "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	cancel() // bounds the opening only
	defer conn.Close()
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); line != "hello\n" {
		t.Errorf("%q, %v", line, err)
	}
}

func TestConnectionsGoThroughAProxyAtASocket(t *testing.T) {
	proxy, far := &egresstest.Proxy{}, echo(t)
	socket := proxy.Socket(t)
	d, err := read(t, fmt.Sprintf("- {name: Cluster, connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %s}}}}\n- {name: etcd, connection: {proxyProtocol: Direct}}\n", socket))
	if err != nil {
		t.Fatal(err)
	}
	if d.Etcd != nil || d.ControlPlane != nil {
		t.Error("what is direct, or not named, has a dialer")
	}
	says(t, d.Cluster, far)
	if got := proxy.Asked(); !slices.Equal(got, []string{far}) {
		t.Errorf("the proxy was asked for %q", got)
	}
}

func TestConnectionsGoThroughAProxyOverTLS(t *testing.T) {
	authority, err := pki.LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	certPEM, keyPEM, err := authority.Server([]string{"proxy.example.com"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	clientCert, clientKey, err := authority.Cluster.Issue(pki.Leaf{CommonName: "apiserver", Usage: x509.ExtKeyUsageClientAuth})
	if err != nil {
		t.Fatal(err)
	}
	proxy, far := &egresstest.Proxy{}, echo(t)
	l := listen(t, "tcp", "127.0.0.1:0")
	egresstest.Serve(t, tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authority.Cluster.Pool()}), proxy.Handle)
	selection := func(server string) string {
		return fmt.Sprintf("- {name: controlplane, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: \"https://%s\", tlsConfig: {caBundle: %s, clientCert: %s, clientKey: %s, tlsServerName: %s}}}}}\n",
			l.Addr(), write(t, "ca", authority.CAPEM()), write(t, "cert", clientCert), write(t, "key", clientKey), server)
	}
	d, err := read(t, selection("proxy.example.com"))
	if err != nil {
		t.Fatal(err)
	}
	says(t, d.ControlPlane, far)
	if d, err = read(t, selection("other.example.com")); err != nil {
		t.Fatal(err)
	}
	if conn, err := d.ControlPlane(t.Context(), "tcp", far); err == nil {
		conn.Close()
		t.Error("a proxy of another name is trusted")
	}
}

func TestConnectionsGoThroughKonnectivity(t *testing.T) {
	socket, far := filepath.Join(t.TempDir(), "s"), echo(t)
	k, server := &konnectivityServer{}, grpc.NewServer()
	konnectivity.RegisterProxyServiceServer(server, k)
	done := make(chan error, 1)
	l := listen(t, "unix", socket)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-done })
	d, err := read(t, fmt.Sprintf("- {name: etcd, connection: {proxyProtocol: GRPC, transport: {uds: {udsName: %s}}}}\n", socket))
	if err != nil {
		t.Fatal(err)
	}
	says(t, d.Etcd, far)
	k.mu.Lock()
	defer k.mu.Unlock()
	if !slices.Equal(k.log, []string{far}) {
		t.Errorf("asked for %q", k.log)
	}
}

func TestWhatAProxyMayNotAnswer(t *testing.T) {
	tests := []struct{ name, answer, want string }{
		{"a refusal", "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "code 403: 403 Forbidden"},
		{"no HTTP", "nonsense\r\n\r\n", "reading HTTP response from CONNECT"},
		{"data before it was asked", "HTTP/1.1 200 OK\r\n\r\nhello", "unexpected 5 bytes of buffered data"},
		{"headers without end", "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", http.DefaultMaxHeaderBytes/6+1), "reading HTTP response from CONNECT"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			socket := (&egresstest.Proxy{Answer: tt.answer}).Socket(t)
			conn, err := (&connectProxy{network: "unix", address: socket}).dial(t.Context(), "tcp", "10.0.0.1:443")
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, %v, want %q", conn, err, tt.want)
			}
		})
	}
}

func TestAProxyThatDoesNotAnswerIsNotWaitedFor(t *testing.T) {
	socket, accepted := filepath.Join(t.TempDir(), "s"), make(chan struct{})
	egresstest.Serve(t, listen(t, "unix", socket), func(conn net.Conn) {
		close(accepted)
		_, _ = io.Copy(io.Discard, conn)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-accepted; cancel() }()
	if _, err := (&connectProxy{network: "unix", address: socket}).dial(ctx, "tcp", "10.0.0.1:443"); err == nil {
		t.Error("a connection without an answer")
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	tests := []struct{ name, selections, want string }{
		{"an unknown name", "- {name: moon, connection: {proxyProtocol: Direct}}\n", `Unsupported value: "moon": supported values: "cluster", "controlplane", "etcd"`},
		{"a name given twice", "- {name: etcd, connection: {proxyProtocol: Direct}}\n- {name: Etcd, connection: {proxyProtocol: Direct}}\n", `Duplicate value: "etcd"`},
		{"an unknown protocol", "- {name: etcd, connection: {proxyProtocol: SOCKS}}\n", `service.connection.protocol: Unsupported value: "SOCKS"`},
		{"a transport of a direct connection", "- {name: etcd, connection: {proxyProtocol: Direct, transport: {uds: {udsName: /s}}}}\n", "config must be absent for direct connect"},
		{"no transport", "- {name: etcd, connection: {proxyProtocol: HTTPConnect}}\n", "transport must be set for HTTPConnect"},
		{"an empty transport", "- {name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {}}}\n", "One of TCP or UDS must be set"},
		{"two transports", "- {name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: /s}, tcp: {url: \"http://p\"}}}}\n", "TCP and UDS cannot both be set"},
		{"gRPC over TCP", "- {name: etcd, connection: {proxyProtocol: GRPC, transport: {tcp: {url: \"http://p\"}}}}\n", "UDS must be set with GRPC"},
		{"no socket", "- {name: etcd, connection: {proxyProtocol: GRPC, transport: {uds: {udsName: \"\"}}}}\n", "must be present for UDS connections"},
		{"another scheme", "- {name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: \"ftp://p\"}}}}\n", "supported connection protocols are http:// and https://"},
		{"TLS of plain HTTP", "- {name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: \"http://p\", tlsConfig: {}}}}}\n", "config must not be present when using HTTP"},
		{"HTTPS without TLS", "- {name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: \"https://p\"}}}}\n", "TLSConfig must be present when using HTTPS"},
		{"files that are not there", "- {name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: \"https://p\", tlsConfig: {caBundle: /no, clientCert: /no}}}}}\n", "TLS config ca bundle does not exist"},
		{"an unknown field", "- {name: etcd, port: 1, connection: {proxyProtocol: Direct}}\n", `unknown field "egressSelections[0].port"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := read(t, tt.selections); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("err is %v, want %q", err, tt.want)
			}
		})
	}
}
