package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// makeLocal makes the directory of a volume of the class local-path on its first
// use. Other paths are an administrator's and have to exist.
func (m *Manager) makeLocal(path string) error {
	if filepath.Dir(path) != filepath.Clean(m.local) {
		return nil
	}
	if err := os.MkdirAll(m.local, 0o711); err != nil {
		return err
	}
	err := os.Mkdir(path, volumeMode)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return unix.Chmod(path, volumeMode)
}

// RemoveLocal removes the directory of a volume of the class local-path and all
// that is in it. It refuses while a pod on this node has the volume, and returns
// nil when there is no such directory.
func (m *Manager) RemoveLocal(volume string) error {
	if volume == "" || volume != filepath.Base(volume) || volume == "." || volume == ".." {
		return fmt.Errorf("invalid volume name %q", volume)
	}
	path := filepath.Join(m.local, volume)
	for uid, pv := range m.snapshot() {
		if pv.uses(path) {
			return fmt.Errorf("volume %q is in use by pod %s", volume, uid)
		}
	}
	return removeTree(path)
}

func (pv *podVolumes) uses(path string) bool {
	pv.mu.Lock()
	defer pv.mu.Unlock()
	for _, c := range pv.claims {
		if c.path == path && !pv.gone {
			return true
		}
	}
	return false
}
