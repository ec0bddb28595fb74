package plugins

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// longest is the length of a socket's path that the kernel takes.
const longest = 107

// Listen opens a socket, in place of one that an earlier life left, and makes its
// directory. The path may be longer than the kernel takes: then the directory goes
// by its descriptor.
func Listen(path string) (net.Listener, error) {
	dir, name := filepath.Split(path)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(path); err != nil {
		return nil, err
	}
	address := path
	if len(path) > longest {
		parent, err := os.Open(dir)
		if err != nil {
			return nil, err
		}
		defer parent.Close()
		address = fmt.Sprintf("/proc/self/fd/%d/%s", parent.Fd(), name)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: address, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	listener.SetUnlinkOnClose(address == path) // the descriptor is closed by then
	return listener, nil
}
