package egress

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"proa/internal/egress/egresstest"
)

func TestConnectionsAreCounted(t *testing.T) {
	far := echo(t)
	socket := (&egresstest.Proxy{}).Socket(t)
	refusing := (&egresstest.Proxy{Answer: "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"}).Socket(t)
	nobody := filepath.Join(t.TempDir(), "s")
	connect := func(socket string) func() error {
		return func() error {
			conn, err := (&connectProxy{network: "unix", address: socket}).dial(t.Context(), "tcp", far)
			if err == nil {
				conn.Close()
			}
			return err
		}
	}
	for _, tt := range []struct {
		name, protocol, transport string
		dial                      func() error
		stage                     string // empty: it succeeds
	}{
		{"through a proxy", "http_connect", "uds", connect(socket), ""},
		{"through one that is not there", "http_connect", "uds", connect(nobody), "connect"},
		{"through one that refuses", "http_connect", "uds", connect(refusing), "proxy"},
		{"over TCP to nobody", "http_connect", "tcp", func() error {
			_, err := (&connectProxy{network: "tcp", address: "127.0.0.1:1"}).dial(t.Context(), "tcp", far)
			return err
		}, "connect"},
		{"through a konnectivity server that is not there", "grpc", "uds", func() error {
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // or it would be waited for
			_, err := throughKonnectivity(nobody)(ctx, "tcp", far)
			return err
		}, "connect"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			read := func() (starts, failures float64) {
				for _, stage := range []string{"connect", "proxy"} {
					n := testutil.ToFloat64(dialFailures.WithLabelValues(tt.protocol, tt.transport, stage))
					if stage == tt.stage {
						failures = n
					}
				}
				return testutil.ToFloat64(dialStarts.WithLabelValues(tt.protocol, tt.transport)), failures
			}
			starts, failures := read()
			if err := tt.dial(); (err == nil) != (tt.stage == "") {
				t.Fatal(err)
			}
			moreStarts, moreFailures := read()
			if moreStarts != starts+1 || tt.stage != "" && moreFailures != failures+1 {
				t.Errorf("starts %v then %v, failures %v then %v", starts, moreStarts, failures, moreFailures)
			}
		})
	}
	if testutil.CollectAndCount(dialDurations) == 0 {
		t.Error("no duration of a connection that was opened")
	}
}
