package node

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A kubelet that systemd watches tells that it is well. A time that is none keeps it
// from starting. The test sets the environment and so runs beside no other.
func TestSystemdWatchesTheKubelet(t *testing.T) {
	a := prepare(t)
	socket := filepath.Join(a.root, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	must(t, err)
	defer conn.Close()
	config := a.file("containerRuntimeEndpoint: " + shared.endpoint() + "\n")
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "never")
	if said := refused(t, append(a.flags(), "--config", config)...); !strings.Contains(said, "error converting WATCHDOG_USEC") {
		t.Errorf("a time that is none: %s", said)
	}
	t.Setenv("WATCHDOG_USEC", "200000")
	a.start("--config", config)
	buffer := make([]byte, 100)
	for range 3 {
		must(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
		n, err := conn.Read(buffer)
		must(t, err)
		if string(buffer[:n]) != "WATCHDOG=1" {
			t.Errorf("told %q", buffer[:n])
		}
	}
}
