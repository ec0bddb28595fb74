// Package manifest reads webhooks and policies of admission from files (KEP-5793).
// They hold from the first request on, no client sees or changes them, and they
// judge even the objects that say who judges. What is read is upstream's: its
// loaders say what a file may hold, its metrics what became of it.
package manifest

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/admission/plugin/manifest/metrics"
	"k8s.io/apiserver/pkg/util/filesystem"

	"proa/internal/configfile"
)

// interval is how often a directory is looked at when the file system tells of no change.
const interval = time.Minute

// Source holds what the files of a plugin's directory make.
type Source[T any] struct {
	plugin metrics.ManifestType
	dir    string // empty: there is nothing to hold
	read   func(dir string) (made T, hash string, err error)

	current atomic.Pointer[T]
	hash    string // of the files that made it; of Run's once that runs
}

// Open reads the directory of a plugin for the first time. Without a directory
// the Source holds the zero value. Read also returns a hash of the files.
func Open[T any](plugin, dir string, read func(dir string) (T, string, error)) (*Source[T], error) {
	s := &Source[T]{plugin: metrics.ManifestType(plugin), dir: dir, read: read}
	if dir == "" {
		return s, nil
	}
	metrics.RegisterMetrics()
	made, hash, err := read(dir)
	if err != nil {
		return nil, fmt.Errorf("failed to load static manifests from %q: %w", dir, err)
	}
	s.take(made, hash)
	return s, nil
}

func (s *Source[T]) take(made T, hash string) {
	s.current.Store(&made)
	s.hash = hash
	metrics.RecordAutomaticReloadSuccess(s.plugin, configfile.ServerID(), hash)
}

// Made is what the files made that are in force.
func (s *Source[T]) Made() T {
	if made := s.current.Load(); made != nil {
		return *made
	}
	var none T
	return none
}

// Run follows the directory until ctx ends.
func (s *Source[T]) Run(ctx context.Context) error {
	if s.dir == "" {
		return nil
	}
	filesystem.WatchUntil(ctx, interval, s.dir, s.look, func(err error) {
		slog.Error("The files of an admission plugin are looked at once a minute only", "plugin", s.plugin, "dir", s.dir, "err", err)
	})
	return nil
}

// look takes in what changed. Files with a fault change nothing, not even what is
// right in others: policies and bindings go together.
func (s *Source[T]) look() {
	made, hash, err := s.read(s.dir)
	if err != nil {
		slog.Error("The files of an admission plugin are not reloaded, the last ones stay in force", "plugin", s.plugin, "dir", s.dir, "err", err)
		metrics.RecordAutomaticReloadFailure(s.plugin, configfile.ServerID())
		return
	}
	if hash != s.hash {
		s.take(made, hash)
		slog.Info("The files of an admission plugin are reloaded", "plugin", s.plugin, "dir", s.dir)
	}
}
