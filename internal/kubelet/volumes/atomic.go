package volumes

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	dataDir    = "..data"
	newDataDir = "..data_tmp"
	maxPath    = 4096
	maxName    = 255
)

// file is one projected file. Mode is without file type bits. A nil UID means root.
type file struct {
	Data []byte
	Mode int32
	UID  *int64
}

// payload maps slash-separated paths relative to the volume to their files.
type payload map[string]file

// writePayload makes the files under dir exactly those of p, all at once: a
// reader that resolves dir/..data once sees files of one payload only.
//
//	dir/..2026_01_02_15_04_05.123/   the files
//	dir/..data -> ..2026_01_02_15_04_05.123      swapped by rename(2)
//	dir/name   -> ..data/name        one link per first path element
//
// own is called on the new directory before it becomes visible. Nothing is
// written when the files already are as wanted.
func writePayload(dir string, p payload, now time.Time, own func(dir string) error) error {
	if err := p.validate(); err != nil {
		return err
	}
	old, err := os.Readlink(filepath.Join(dir, dataDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if old != "" {
		same, err := p.matches(filepath.Join(dir, old))
		if err != nil {
			return err
		}
		if same {
			return p.link(dir) // a crash may have left links out
		}
	}
	fresh, err := os.MkdirTemp(dir, now.UTC().Format("..2006_01_02_15_04_05."))
	if err != nil {
		return err
	}
	if err := p.publish(dir, fresh, own); err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	if err := p.link(dir); err != nil {
		return err
	}
	return p.sweep(dir, filepath.Base(fresh))
}

func (p payload) publish(dir, fresh string, own func(string) error) error {
	if err := os.Chmod(fresh, 0o755); err != nil {
		return err
	}
	for path, f := range p {
		if err := f.write(filepath.Join(fresh, filepath.FromSlash(path))); err != nil {
			return err
		}
	}
	if own != nil {
		if err := own(fresh); err != nil {
			return err
		}
	}
	tmp := filepath.Join(dir, newDataDir)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(filepath.Base(fresh), tmp); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, dataDir))
}

func (f file) write(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, f.Data, 0o600); err != nil {
		return err
	}
	if f.UID != nil {
		if err := os.Chown(path, int(*f.UID), -1); err != nil {
			return err
		}
	}
	return unix.Chmod(path, uint32(f.Mode)&0o7777) // past the umask
}

// matches says whether the files below dir are those of p. Modes are not
// compared when fsGroup changed them: a payload's modes are fixed by the pod.
func (p payload) matches(dir string) (bool, error) {
	found := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		want, ok := p[filepath.ToSlash(rel)]
		if !ok {
			return errDiffers
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(data, want.Data) {
			return errDiffers
		}
		found++
		return nil
	})
	if errors.Is(err, errDiffers) || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && found == len(p), err
}

var errDiffers = errors.New("differs")

func (p payload) topLevel() map[string]bool {
	names := map[string]bool{}
	for path := range p {
		name, _, _ := strings.Cut(path, "/")
		names[name] = true
	}
	return names
}

func (p payload) link(dir string) error {
	for name := range p.topLevel() {
		path, target := filepath.Join(dir, name), filepath.Join(dataDir, name)
		if have, err := os.Readlink(path); err == nil && have == target {
			continue
		}
		if err := os.Symlink(target, path); err != nil {
			return err
		}
	}
	return nil
}

// sweep removes links to files that are gone and the directories of former payloads.
func (p payload) sweep(dir, current string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	keep := p.topLevel()
	for _, e := range entries {
		name := e.Name()
		if keep[name] || name == dataDir || name == current {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func (p payload) validate() error {
	for path := range p {
		if err := validatePath(path); err != nil {
			return err
		}
	}
	return nil
}

func validatePath(path string) error {
	switch {
	case path == "":
		return errors.New("invalid path: must not be empty")
	case filepath.IsAbs(path):
		return fmt.Errorf("invalid path: must be relative path: %s", path)
	case len(path) > maxPath:
		return fmt.Errorf("invalid path: must be less than or equal to %d characters", maxPath)
	}
	for i, name := range strings.Split(path, "/") {
		switch {
		case name == "..":
			return fmt.Errorf("invalid path: must not contain '..': %s", path)
		case name == "" || name == ".":
			return fmt.Errorf("invalid path: must be clean: %s", path)
		case len(name) > maxName:
			return fmt.Errorf("invalid path: filenames must be less than or equal to %d characters", maxName)
		case i == 0 && strings.HasPrefix(name, ".."):
			return fmt.Errorf("invalid path: must not start with '..': %s", path)
		}
	}
	return nil
}
