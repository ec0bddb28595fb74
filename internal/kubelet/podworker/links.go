package podworker

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// longestName of a link, of which the last is its ending.
const (
	longestName = 255
	linkEnding  = ".log"
)

// linkPath is where collectors of logs look for that of a container, whose
// namespace, pod, name and id they read from the link's name.
func linkPath(dir string, pod *corev1.Pod, container, id string) string {
	name := pod.Name + "_" + pod.Namespace + "_" + container + "-" + id
	return filepath.Join(dir, name[:min(len(name), longestName-len(linkEnding))]+linkEnding)
}

// link names a container's log in the directory of links.
func (p *worker) link(pod *corev1.Pod, container, id, log string) {
	dir := p.w.c.Node.LinkDir
	if dir == "" {
		return
	}
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.Symlink(log, linkPath(dir, pod, container, id))
	}
	if err != nil {
		p.w.c.Log.Warn("link log", "container", id, "err", err)
	}
}

func (p *worker) unlink(pod *corev1.Pod, container, id string) {
	dir := p.w.c.Node.LinkDir
	if dir == "" {
		return
	}
	if err := os.Remove(linkPath(dir, pod, container, id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.w.c.Log.Warn("remove link of log", "container", id, "err", err)
	}
}

// startTime is how long a container may take to begin its log.
const startTime = 2 * time.Minute

// SweepLinks removes links to logs of this node that are not there any more.
func (w *Workers) SweepLinks() error {
	if w.c.Node.LinkDir == "" {
		return nil
	}
	return removeLinks(w.c.Node.LinkDir, w.c.Node.LogDir, func(link os.FileInfo, target string) bool {
		_, err := os.Stat(target)
		return errors.Is(err, fs.ErrNotExist) && w.c.Clock.Since(link.ModTime()) >= startTime
	})
}

// RemoveLinks removes the links in dir that lead below logs.
func RemoveLinks(dir, logs string) error {
	return removeLinks(dir, logs, func(os.FileInfo, string) bool { return true })
}

func removeLinks(dir, logs string, which func(link os.FileInfo, target string) bool) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		target, err := os.Readlink(path)
		if err != nil || !strings.HasPrefix(target, logs+string(filepath.Separator)) {
			continue
		}
		if link, err := e.Info(); err == nil && which(link, target) {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}
