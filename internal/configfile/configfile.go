// Package configfile reads upstream's configuration files of the API server
// (apiserver.config.k8s.io) and follows their changes while the server runs. A
// file that cannot be read or is not valid leaves what was loaded in force.
package configfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/utils/clock"
)

var codecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict)
}()

// Decode reads one document strictly, defaults it and converts it to the
// internal type, a pointer type such as *apiserver.AuthenticationConfiguration.
func Decode[T runtime.Object](data []byte) (T, error) {
	var none T
	if len(bytes.TrimSpace(data)) == 0 {
		return none, errors.New("the file is empty")
	}
	obj, err := runtime.Decode(codecs.UniversalDecoder(), data)
	if err != nil {
		return none, err
	}
	config, ok := obj.(T)
	if !ok {
		return none, fmt.Errorf("expected %T, got %T", none, obj)
	}
	return config, nil
}

// maxSize bounds a configuration file.
const maxSize = 4 << 20

// Read returns what a file holds.
func Read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxSize {
		return nil, fmt.Errorf("%s has %d bytes, at most %d are read", path, info.Size(), maxSize)
	}
	return os.ReadFile(path)
}

// Follower applies a file's changes. It looks when the file system tells of a
// change, and every Interval in any case.
type Follower struct {
	Path string
	// Loaded is what is in force at the start.
	Loaded []byte
	// Apply puts new content in force, or returns an error and changes nothing;
	// it is then tried again when the interval is over.
	Apply func(ctx context.Context, data []byte) error
	// Interval is a minute by default.
	Interval time.Duration
	Clock    clock.WithTicker
	// Reloads counts what happened; nil: nobody counts.
	Reloads *Reloads
	Log     *slog.Logger

	refused []byte // content that Apply has refused in this interval
}

// Run follows the file until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	if f.Interval == 0 {
		f.Interval = time.Minute
	}
	if f.Clock == nil {
		f.Clock = clock.RealClock{}
	}
	if f.Log == nil {
		f.Log = slog.Default()
	}
	f.Reloads.loaded(f.Loaded)
	changes, stop := f.watch()
	defer stop()
	ticker := f.Clock.NewTicker(f.Interval)
	defer ticker.Stop()
	for {
		f.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-changes:
		case <-ticker.C():
			f.refused = nil
		}
	}
}

// watch tells of changes in the file's directory: editors and mounted volumes
// replace a file rather than write it. Where the system cannot watch, the
// interval is all there is.
func (f *Follower) watch() (<-chan fsnotify.Event, func()) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		f.Log.Warn("cannot watch for changes", "file", f.Path, "err", err)
		return nil, func() {}
	}
	if err := w.Add(filepath.Dir(f.Path)); err != nil {
		f.Log.Warn("cannot watch for changes", "file", f.Path, "err", err)
	}
	return w.Events, func() { w.Close() }
}

// look applies the file if it is not what is in force.
func (f *Follower) look(ctx context.Context) {
	data, err := Read(f.Path)
	if err == nil && (bytes.Equal(data, f.Loaded) || f.refused != nil && bytes.Equal(data, f.refused)) {
		return
	}
	if err == nil {
		err = f.Apply(ctx, data)
		f.refused = data
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		f.Log.Error("configuration is not reloaded, the last one stays in force", "file", f.Path, "err", err)
		f.Reloads.failed(f.Clock.Now())
		return
	}
	f.Log.Info("configuration reloaded", "file", f.Path)
	f.Loaded, f.refused = data, nil
	f.Reloads.succeeded(f.Clock.Now(), data)
}

// Path is a flag that names a file. It is absolute: a server may be started again
// from elsewhere.
type Path string

// String implements pflag.Value.
func (p *Path) String() string { return string(*p) }

// Type implements pflag.Value.
func (p *Path) Type() string { return "string" }

// Set implements pflag.Value.
func (p *Path) Set(text string) error {
	if text == "" {
		*p = ""
		return nil
	}
	full, err := filepath.Abs(text)
	*p = Path(full)
	return err
}

// Paths is a flag that names files, in one value or several.
type Paths []string

// String implements pflag.Value.
func (p *Paths) String() string { return strings.Join(*p, ",") }

// Type implements pflag.Value.
func (p *Paths) Type() string { return "files" }

// Set implements pflag.Value.
func (p *Paths) Set(text string) error {
	for _, one := range strings.Split(text, ",") {
		var path Path
		if err := path.Set(one); err != nil {
			return err
		}
		*p = append(*p, string(path))
	}
	return nil
}
