package pack

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// writeTree writes the directory root as a layer. filepath.WalkDir visits names in order,
// so the result depends on nothing but content, modes and numeric owners.
func writeTree(w io.Writer, root string) error {
	tw := tar.NewWriter(w)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil || name == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return writeNode(tw, path, name, info)
	})
	if err != nil {
		return err
	}
	return tw.Close()
}

func writeNode(tw *tar.Writer, path, name string, info fs.FileInfo) error {
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		var err error
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	h.Name = name
	if info.IsDir() {
		h.Name += "/"
	}
	h.Format, h.ModTime = tar.FormatPAX, time.Unix(0, 0)
	h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}
	h.Uname, h.Gname = "", ""
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		h.Uid, h.Gid = int(stat.Uid), int(stat.Gid)
	}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(tw, f)
	return err
}
