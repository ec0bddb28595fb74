package apiserver

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/apiserver/fairness"
	"proa/internal/apiserver/request"
	"proa/internal/latency"
)

// setUpFairness makes what shares the server out among its clients.
func (s *Server) setUpFairness() (err error) {
	c := s.config
	if c.NoFairness {
		return nil
	}
	s.fairness, err = fairness.New(fairness.Config{
		Store: c.Store, Seats: max(c.MaxReads, 0) + max(c.MaxWrites, 0), Clock: c.Clock, Log: c.Log,
		API: c.Registry.As(&user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}),
	})
	if err != nil {
		return err
	}
	return s.metrics.register(s.fairness)
}

// fairnessChecks tell by upstream's names whether the server is being shared out.
func (s *Server) fairnessChecks() []Check {
	if s.fairness == nil {
		return nil
	}
	return []Check{
		{Name: "poststarthook/priority-and-fairness-config-consumer", Check: s.fairness.Follows},
		{Name: "poststarthook/priority-and-fairness-config-producer", Check: s.fairness.Ensures},
	}
}

// longestWait bounds the time a request waits for its turn.
const longestWait = time.Minute

// withFairness serves each request when it is its turn, or refuses it. Of the
// long-running ones only watches take part, until their first state is sent.
func (s *Server) withFairness(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info := request.From(r.Context())
		watch := info.Verb == "watch"
		if info.LongRunning() && !watch {
			next.ServeHTTP(w, r)
			return
		}
		class := s.fairness.Classify(userFrom(r.Context()), info)
		class.Tell(w.Header())
		ticket, ok := s.fairness.Start(r.Context(), class, s.fairness.Estimate(class, info, r.URL), s.mayWait(r.Context()))
		if waited := ticket.Waited(); waited > 0 {
			waitedFor(w, waited)
			latency.Of(r.Context()).Add(latency.Queue, waited)
		}
		switch {
		case !ok:
			s.tooMany(w, r, s.fairness.RetryAfter(class))
		case watch:
			s.startWatch(next, w, r, &beginning{ticket: ticket})
		default:
			defer ticket.End()
			next.ServeHTTP(w, r)
		}
	})
}

// mayWait is a quarter of the time that a request has left.
func (s *Server) mayWait(ctx context.Context) time.Duration {
	left := s.config.RequestTimeout
	if deadline, ok := ctx.Deadline(); ok {
		left = deadline.Sub(s.config.Clock.Now())
	}
	return min(left/4, longestWait)
}

func (s *Server) startWatch(next http.Handler, w http.ResponseWriter, r *http.Request, b *beginning) {
	defer b.end() // of one that never came to its first state
	defer s.fairness.Watching(request.From(r.Context()))()
	next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), beginningKey{}, b)))
}

// beginning is the part of a watch that takes seats.
type beginning struct {
	ticket fairness.Ticket
	ended  atomic.Bool
}

type beginningKey struct{}

func (b *beginning) end() {
	if !b.ended.Swap(true) {
		b.ticket.End()
	}
}

// begun says that the watch of a request has sent its first state.
func begun(ctx context.Context) {
	if b, ok := ctx.Value(beginningKey{}).(*beginning); ok {
		b.end()
	}
}
