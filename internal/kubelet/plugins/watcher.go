// Package plugins finds the plugins of a node: whoever puts a socket into the
// registration directory is asked what it is, handed to what takes plugins of that
// type, and told the outcome. A socket that is removed ends the registration.
package plugins

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/utils/clock"

	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	callTimeout = 10 * time.Second
	retryAfter  = time.Second
	maxRetry    = 2 * time.Minute
)

// Plugin is what one says of itself.
type Plugin struct {
	Name     string
	Endpoint string // socket of its service
	Versions []string
}

// Handler takes the plugins of one type.
type Handler interface {
	// Register takes a plugin, or refuses it with what it is told.
	Register(Plugin) error
	// Unregister says that a plugin's registration has ended.
	Unregister(Plugin)
}

// Config of a Watcher. Dir and Handlers are required.
type Config struct {
	Dir      string
	Handlers map[string]Handler // by type: DRAPlugin, DevicePlugin
	Clock    clock.Clock        // default: the wall clock
	Log      *slog.Logger
}

// Watcher of one registration directory.
type Watcher struct {
	c      Config
	active map[string]*session // by socket; of the goroutine of Run
}

// session is what goes on with one socket.
type session struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// New returns a Watcher that Run starts.
func New(c Config) *Watcher {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return &Watcher{c: c, active: map[string]*session{}}
}

// Run watches until ctx ends. Plugins that are there when it starts are found too.
func (w *Watcher) Run(ctx context.Context) error {
	defer func() {
		for socket := range w.active {
			w.lost(socket)
		}
	}()
	if err := os.MkdirAll(w.c.Dir, 0o750); err != nil {
		return err
	}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", w.c.Dir, err)
	}
	defer notify.Close()
	err = filepath.WalkDir(w.c.Dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || strings.HasPrefix(d.Name(), "."):
			return err
		case d.IsDir():
			return notify.Add(path)
		}
		w.found(ctx, path)
		return nil
	})
	if err != nil {
		return fmt.Errorf("watch %s: %w", w.c.Dir, err)
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-notify.Errors:
			w.c.Log.Warn("watch plugins", "err", err)
		case event := <-notify.Events:
			w.see(ctx, notify, event)
		}
	}
}

func (w *Watcher) see(ctx context.Context, notify *fsnotify.Watcher, event fsnotify.Event) {
	switch {
	case event.Has(fsnotify.Remove), event.Has(fsnotify.Rename):
		w.lost(event.Name)
	case !event.Has(fsnotify.Create) || strings.HasPrefix(filepath.Base(event.Name), "."):
	default:
		if info, err := os.Stat(event.Name); err == nil && info.IsDir() {
			if err := notify.Add(event.Name); err != nil {
				w.c.Log.Warn("watch plugins", "dir", event.Name, "err", err)
			}
			return
		}
		w.lost(event.Name) // the socket of a plugin that started anew
		w.found(ctx, event.Name)
	}
}

func (w *Watcher) found(ctx context.Context, socket string) {
	if info, err := os.Stat(socket); err != nil || info.Mode()&fs.ModeSocket == 0 {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	w.active[socket] = &session{cancel, done}
	go func() {
		defer close(done)
		w.serve(ctx, socket)
	}()
}

// lost returns once the plugin is unregistered: it may come back at once.
func (w *Watcher) lost(socket string) {
	if s := w.active[socket]; s != nil {
		s.cancel()
		<-s.done
		delete(w.active, socket)
	}
}

// serve registers the plugin behind a socket, trying again where that fails, and
// unregisters it when ctx ends.
func (w *Watcher) serve(ctx context.Context, socket string) {
	for wait := retryAfter; ; wait = min(2*wait, maxRetry) {
		plugin, handler, err := w.register(ctx, socket)
		if err == nil {
			w.c.Log.Info("plugin registered", "name", plugin.Name, "endpoint", plugin.Endpoint)
			<-ctx.Done()
			handler.Unregister(plugin)
			return
		}
		if ctx.Err() != nil {
			return
		}
		w.c.Log.Warn("register plugin", "socket", socket, "err", err)
		select {
		case <-ctx.Done():
			return
		case <-w.c.Clock.After(wait):
		}
	}
}

func (w *Watcher) register(ctx context.Context, socket string) (Plugin, Handler, error) {
	conn, err := Dial(socket)
	if err != nil {
		return Plugin{}, nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client := registration.NewRegistrationClient(conn)
	info, err := client.GetInfo(ctx, &registration.InfoRequest{})
	if err != nil {
		return Plugin{}, nil, fmt.Errorf("ask for its info: %w", err)
	}
	plugin := Plugin{Name: info.Name, Endpoint: info.Endpoint, Versions: info.SupportedVersions}
	if plugin.Endpoint == "" {
		plugin.Endpoint = socket
	}
	handler, ok := w.c.Handlers[info.Type]
	if !ok {
		err = fmt.Errorf("no handler registered for plugin type: %s at socket %s", info.Type, socket)
	} else {
		err = handler.Register(plugin)
	}
	status := &registration.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		status.Error = err.Error()
	}
	_, told := client.NotifyRegistrationStatus(ctx, status)
	if err == nil && told != nil {
		handler.Unregister(plugin)
	}
	return plugin, handler, errors.Join(err, told)
}

// Dial connects to a plugin's socket when it is first used.
func Dial(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		// A plugin's socket is there a moment before it listens.
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second}}))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", socket, err)
	}
	return conn, nil
}
