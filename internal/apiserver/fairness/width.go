package fairness

import (
	"net/url"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apiserver/request"
)

// Width is how much of the server a request takes.
type Width struct {
	Seats  int           // while it is answered
	After  int           // once it is answered, for its events to reach the watches
	Linger time.Duration // how long that takes

	write   bool
	watches int // that see the write
}

// most is what is held from beginning to end.
func (w Width) most() int { return max(w.Seats, w.After) }

const (
	bytesPerSeat = 100_000 // of a list
	widest       = 10      // seats of one request: a list is streamed, and never held as a whole
	sampled      = 16      // objects of a list that stand for the rest

	// An event is encoded once and written to each watch: of the order of ten
	// microseconds a watch, so that a hundred keep a seat busy for a millisecond.
	watchesPerSeat = 100
	eventTime      = time.Millisecond
)

// Estimate says how wide a request of a class is: a list, or a watch that begins
// with one, by the bytes of its objects; a write by the watches that get its event; anything
// else takes one seat.
func (f *Fairness) Estimate(c Class, info *request.Info, u *url.URL) Width {
	if c.Exempt() || !info.IsResource {
		return Width{Seats: 1}
	}
	most := min(c.schema.maxSeats, widest)
	switch info.Verb {
	case "list":
		return f.listWidth(info, u, most)
	case "watch":
		if !beginsWithList(u) {
			return Width{Seats: 1}
		}
		return f.listWidth(info, u, most)
	case "create", "update", "patch", "delete":
		return f.writeWidth(info, most)
	}
	return Width{Seats: 1}
}

func (f *Fairness) listWidth(info *request.Info, u *url.URL, most int) Width {
	n, each := f.stored(schema.GroupResource{Group: info.Group, Resource: info.Resource}, info.Namespace)
	if info.Name != "" {
		n = min(n, 1)
	} else if n*each > bytesPerSeat && u.RawQuery != "" {
		if limit, err := strconv.Atoi(u.Query().Get("limit")); err == nil && limit > 0 {
			n = min(n, limit)
		}
	}
	return Width{Seats: max(1, min(most, (n*each+bytesPerSeat-1)/bytesPerSeat))}
}

func beginsWithList(u *url.URL) bool {
	if u.RawQuery == "" {
		return true
	}
	q := u.Query()
	if send, err := strconv.ParseBool(q.Get("sendInitialEvents")); err == nil {
		return send
	}
	rv := q.Get("resourceVersion")
	return rv == "" || rv == "0"
}

func (f *Fairness) writeWidth(info *request.Info, most int) Width {
	if info.Resource == "serviceaccounts" && info.Subresource == "token" {
		return Width{Seats: 1} // makes no event
	}
	w := Width{Seats: 1, write: true, watches: f.watches.count(info)}
	if w.watches < watchesPerSeat {
		return w
	}
	seats := (w.watches + watchesPerSeat - 1) / watchesPerSeat
	w.After = max(1, min(seats, most))
	w.Linger = eventTime * time.Duration(seats) / time.Duration(w.After) // the same work, narrower and longer
	return w
}

// watchCounts knows how many watches there are of what.
type watchCounts struct {
	mu sync.RWMutex
	of map[watched]int
}

// watched is a resource, a namespace of it or one object.
type watched struct {
	group, resource, namespace, name string
}

// Watching counts a watch until the returned function is called.
func (f *Fairness) Watching(info *request.Info) (end func()) {
	what := watched{info.Group, info.Resource, info.Namespace, info.Name}
	f.watches.add(what, 1)
	return func() { f.watches.add(what, -1) }
}

func (w *watchCounts) add(what watched, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[watched]int{}
	}
	if w.of[what] += n; w.of[what] == 0 {
		delete(w.of, what)
	}
}

// count returns how many watches see a change of an object.
func (w *watchCounts) count(info *request.Info) int {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if len(w.of) == 0 {
		return 0
	}
	what := watched{group: info.Group, resource: info.Resource}
	n := w.of[what]
	if info.Name != "" {
		what.name = info.Name
		n += w.of[what]
		what.name = ""
	}
	if info.Namespace == "" {
		return n
	}
	what.namespace = info.Namespace
	n += w.of[what]
	if info.Name != "" {
		what.name = info.Name
		n += w.of[what]
	}
	return n
}
