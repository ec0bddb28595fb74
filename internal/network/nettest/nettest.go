// Package nettest gives tests a node of their own: network namespaces for the
// node, for its pods and for a machine outside, with real links between them.
package nettest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Space is a network namespace that ends with its test.
type Space struct {
	t      testing.TB
	handle netns.NsHandle
}

// New makes an empty namespace with its loopback link up. Without the privilege
// it skips the test.
func New(t testing.TB) *Space {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	s := &Space{t: t}
	var err error
	made := make(chan struct{})
	go func() {
		defer close(made)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if s.handle, err = netns.New(); err != nil {
			return
		}
		var lo netlink.Link
		if lo, err = netlink.LinkByName("lo"); err == nil {
			err = netlink.LinkSetUp(lo)
		}
	}()
	<-made
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Skipf("no network namespaces here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.handle.Close() })
	return s
}

// FD refers to the namespace.
func (s *Space) FD() int { return int(s.handle) }

// Do calls f on a thread inside the namespace. Sockets that f opens stay there.
func (s *Space) Do(f func() error) {
	s.t.Helper()
	if err := s.Try(f); err != nil {
		s.t.Fatal(err)
	}
}

// Try is Do, for what may fail.
func (s *Space) Try(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := netns.Set(s.handle); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// Connect links two namespaces; each end gets a name and an address. The link at
// a is returned, for a bridge to take.
func Connect(a *Space, nameA string, addrA netip.Prefix, b *Space, nameB string, addrB netip.Prefix) {
	a.t.Helper()
	a.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = nameA
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: nameB, PeerNamespace: netlink.NsFd(b.FD())})
	})
	for _, end := range []struct {
		in   *Space
		name string
		addr netip.Prefix
	}{{a, nameA, addrA}, {b, nameB, addrB}} {
		end.in.Do(func() error {
			link, err := netlink.LinkByName(end.name)
			if err != nil {
				return err
			}
			if end.addr.IsValid() {
				ip := &net.IPNet{IP: end.addr.Addr().AsSlice(), Mask: net.CIDRMask(end.addr.Bits(), 32)}
				if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ip}); err != nil {
					return err
				}
			}
			return netlink.LinkSetUp(link)
		})
	}
}

// Route sends a range to a gateway.
func (s *Space) Route(to netip.Prefix, via netip.Addr) {
	s.t.Helper()
	s.Do(func() error {
		return netlink.RouteAdd(&netlink.Route{Gw: via.AsSlice(),
			Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), 32)}})
	})
}

// Join puts a link of the namespace into a bridge, as CNI does.
func (s *Space) Join(link, bridge string) {
	s.t.Helper()
	s.Do(func() error {
		port, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		br, err := netlink.LinkByName(bridge)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(port, br); err != nil {
			return err
		}
		return netlink.LinkSetHairpin(port, true)
	})
}

// Echo answers TCP and UDP on a port with "NAME CLIENT-ADDRESS".
func (s *Space) Echo(name string, port int) {
	s.t.Helper()
	address := fmt.Sprintf("0.0.0.0:%d", port)
	s.Do(func() error {
		l, err := net.Listen("tcp4", address)
		if err != nil {
			return err
		}
		u, err := net.ListenPacket("udp4", address)
		if err != nil {
			return err
		}
		s.t.Cleanup(func() { l.Close(); u.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintf(c, "%s %s", name, c.RemoteAddr().(*net.TCPAddr).IP)
				c.Close()
			}
		}()
		go func() {
			buf := make([]byte, 64)
			for {
				_, from, err := u.ReadFrom(buf)
				if err != nil {
					return
				}
				fmt.Fprintf(packetTo{u, from}, "%s %s", name, from.(*net.UDPAddr).IP)
			}
		}()
		return nil
	})
}

type packetTo struct {
	net.PacketConn
	to net.Addr
}

func (p packetTo) Write(b []byte) (int, error) { return p.WriteTo(b, p.to) }

const (
	patience = 5 * time.Second        // ends an attempt that should be answered
	silence  = 200 * time.Millisecond // ends one that should not
)

// Ask connects from the namespace and returns the answer.
func (s *Space) Ask(network, address string) (answer string, err error) {
	return s.ask(network, address, patience)
}

// AskInVain is Ask for what nobody should answer or refuse.
func (s *Space) AskInVain(network, address string) (answer string, err error) {
	return s.ask(network, address, silence)
}

func (s *Space) ask(network, address string, patience time.Duration) (answer string, err error) {
	err = s.Try(func() error {
		conn, err := (&net.Dialer{Timeout: patience}).Dial(network, address)
		if err != nil {
			return err
		}
		defer conn.Close()
		answer, err = exchange(conn)
		return err
	})
	return answer, err
}

// Socket is a UDP socket inside the namespace that keeps its port.
func (s *Space) Socket(address string) net.Conn {
	s.t.Helper()
	var conn net.Conn
	s.Do(func() (err error) {
		conn, err = net.Dial("udp4", address)
		return err
	})
	s.t.Cleanup(func() { conn.Close() })
	return conn
}

// Exchange sends a byte and returns what comes back.
func Exchange(conn net.Conn) (string, error) { return exchange(conn) }

func exchange(conn net.Conn) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if conn.RemoteAddr().Network() == "udp" {
		if _, err := conn.Write([]byte("?")); err != nil {
			return "", err
		}
	}
	buf := make([]byte, 64)
	n, err := conn.Read(buf)
	return string(buf[:n]), err
}
