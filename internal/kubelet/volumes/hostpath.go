package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
)

// checkHostPath checks that a host path is of the type that the pod asks for,
// and makes it where the type says so.
func checkHostPath(s *corev1.HostPathVolumeSource) error {
	if s.Type == nil || *s.Type == corev1.HostPathUnset {
		return nil // the container runtime makes a missing directory
	}
	info, err := os.Stat(s.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	missing := err != nil
	is := func(ok func(fs.FileMode) bool) bool { return !missing && ok(info.Mode()) }
	switch kind := *s.Type; kind {
	case corev1.HostPathDirectoryOrCreate:
		if missing {
			return os.MkdirAll(s.Path, 0o755)
		}
		return typeError(s.Path, "a directory", info.IsDir())
	case corev1.HostPathDirectory:
		return typeError(s.Path, "a directory", is(fs.FileMode.IsDir))
	case corev1.HostPathFileOrCreate:
		if missing {
			return touch(s.Path)
		}
		return typeError(s.Path, "a file", info.Mode().IsRegular())
	case corev1.HostPathFile:
		return typeError(s.Path, "a file", is(fs.FileMode.IsRegular))
	case corev1.HostPathSocket:
		return typeError(s.Path, "a socket file", is(func(m fs.FileMode) bool { return m&fs.ModeSocket != 0 }))
	case corev1.HostPathCharDev:
		return typeError(s.Path, "a character device", is(func(m fs.FileMode) bool { return m&fs.ModeCharDevice != 0 }))
	case corev1.HostPathBlockDev:
		return typeError(s.Path, "a block device", is(func(m fs.FileMode) bool { return m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0 }))
	default:
		return fmt.Errorf("%s is an invalid volume type", kind)
	}
}

func typeError(path, want string, ok bool) error {
	if ok {
		return nil
	}
	return fmt.Errorf("hostPath type check failed: %s is not %s", path, want)
}

func touch(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}
