package logs

import (
	"fmt"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// notifier tells followers that something changed in a directory. It holds one
// inotify instance while anyone follows a log, and none otherwise: a machine has
// few of them.
type notifier struct {
	mu      sync.Mutex // guards what follows
	watcher *fsnotify.Watcher
	dirs    map[string]map[chan struct{}]bool
}

// subscribe returns a channel that gets a value after changes in dir.
func (n *notifier) subscribe(dir string) (<-chan struct{}, func(), error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.watcher == nil {
		w, err := fsnotify.NewWatcher()
		if err != nil {
			return nil, nil, fmt.Errorf("watch logs: %w", err)
		}
		n.watcher, n.dirs = w, map[string]map[chan struct{}]bool{}
		go n.run(w) // ends when unsubscribe closes w
	}
	if n.dirs[dir] == nil {
		if err := n.watcher.Add(dir); err != nil {
			n.closeIfIdleLocked()
			return nil, nil, fmt.Errorf("watch %s: %w", dir, err)
		}
		n.dirs[dir] = map[chan struct{}]bool{}
	}
	ch := make(chan struct{}, 1)
	n.dirs[dir][ch] = true
	return ch, func() { n.unsubscribe(dir, ch) }, nil
}

func (n *notifier) unsubscribe(dir string, ch chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.dirs[dir], ch)
	if len(n.dirs[dir]) == 0 {
		delete(n.dirs, dir)
		_ = n.watcher.Remove(dir) // fails when the directory is gone, which is as good
	}
	n.closeIfIdleLocked()
}

func (n *notifier) closeIfIdleLocked() {
	if len(n.dirs) == 0 {
		n.watcher.Close()
		n.watcher = nil
	}
}

func (n *notifier) run(w *fsnotify.Watcher) {
	for {
		select {
		case ev, ok := <-w.Events:
			if !ok {
				return
			}
			n.wake(filepath.Dir(ev.Name))
		case _, ok := <-w.Errors:
			if !ok {
				return
			}
			n.wake("") // events were lost
		}
	}
}

// wake wakes the followers of one directory, or of all.
func (n *notifier) wake(dir string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, channels := range n.dirs {
		if dir != "" && dir != name {
			continue
		}
		for ch := range channels {
			select {
			case ch <- struct{}{}:
			default:
			}
		}
	}
}
