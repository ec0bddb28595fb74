package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	konnectivity "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"
)

// connectProxy is a proxy that opens tunnels by HTTP CONNECT.
type connectProxy struct {
	network, address string
	tls              *tls.Config // nil: in the clear
}

// dial opens a tunnel. Ctx bounds its opening, not its life.
func (p *connectProxy) dial(ctx context.Context, _, to string) (net.Conn, error) {
	a := begin("http_connect", p.transport())
	conn, err := p.reach(ctx)
	if err != nil {
		a.failed(stageConnect)
		return nil, err
	}
	interrupt := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err = p.ask(conn, to)
	if !interrupt() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		a.failed(stageProxy)
		conn.Close()
		return nil, err
	}
	a.opened()
	return conn, nil
}

// transport is what metrics call the network to the proxy.
func (p *connectProxy) transport() string {
	if p.network == "unix" {
		return "uds"
	}
	return p.network
}

func (p *connectProxy) reach(ctx context.Context) (net.Conn, error) {
	if p.tls != nil {
		return (&tls.Dialer{Config: p.tls}).DialContext(ctx, p.network, p.address)
	}
	return (&net.Dialer{}).DialContext(ctx, p.network, p.address)
}

// ask has the proxy lead the connection on.
func (p *connectProxy) ask(conn net.Conn, to string) error {
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, "127.0.0.1"); err != nil {
		return fmt.Errorf("CONNECT to %s via proxy %s: %w", to, p.address, err)
	}
	answer := bufio.NewReader(io.LimitReader(conn, http.DefaultMaxHeaderBytes))
	resp, err := http.ReadResponse(answer, nil)
	if err != nil {
		return fmt.Errorf("reading HTTP response from CONNECT to %s via proxy %s failed: %w", to, p.address, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("proxy error from %s while dialing %s, code %d: %v", p.address, to, resp.StatusCode, resp.Status)
	}
	// What follows is TLS or HTTP, in which the client speaks first.
	if n := answer.Buffered(); n > 0 {
		return fmt.Errorf("unexpected %d bytes of buffered data from CONNECT proxy %q", n, p.address)
	}
	return nil
}

// tunnelTime is how long a konnectivity server may take to accept a tunnel.
const tunnelTime = 30 * time.Second

// throughKonnectivity opens each connection through a tunnel of its own to the
// konnectivity server at a socket. The tunnel ends with the connection.
func throughKonnectivity(socket string) utilnet.DialFunc {
	return func(ctx context.Context, _, to string) (net.Conn, error) {
		a := begin("grpc", "uds")
		opening, opened := context.WithTimeout(ctx, tunnelTime)
		defer opened()
		life, end := context.WithCancel(context.WithoutCancel(ctx))
		tunnel, err := konnectivity.CreateSingleUseGrpcTunnelWithContext(opening, life, socket,
			grpc.WithBlock(), grpc.WithReturnConnectionError(),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", socket)
			}),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
		)
		if err != nil {
			a.failed(stageConnect)
			end()
			return nil, fmt.Errorf("tunnel of konnectivity server %s: %w", socket, err)
		}
		go func() {
			<-tunnel.Done()
			end()
		}()
		conn, err := tunnel.DialContext(ctx, "tcp", to)
		if err != nil {
			a.failed(stageProxy)
			end()
			return nil, err
		}
		a.opened()
		return conn, nil
	}
}
