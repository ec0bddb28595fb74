package controlplane

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"proa/internal/apiserver"
)

// requestFlags bound what clients may ask for at a time and for how long.
type requestFlags struct {
	fairness      bool
	reads, writes int
	timeout       time.Duration
	minWatch      int // seconds
	streams       int
	goaway        float64
	delay         time.Duration
	watchGrace    time.Duration
	retryAfter    bool
}

func (f *requestFlags) add(fs *pflag.FlagSet) {
	fs.BoolVar(&f.fairness, "enable-priority-and-fairness", true, "share the server out by priority levels and flows; false: hold the two limits of requests in flight")
	fs.IntVar(&f.reads, "max-requests-inflight", 400, "requests that read, at a time; with priority and fairness, added to the other limit; 0: no limit")
	fs.IntVar(&f.writes, "max-mutating-requests-inflight", 200, "requests that write, at a time; with priority and fairness, added to the other limit; 0: no limit")
	fs.DurationVar(&f.timeout, "request-timeout", time.Minute, "longest time of a request that is no watch or stream")
	fs.IntVar(&f.minWatch, "min-request-timeout", 1800, "shortest time of a watch that names none, in seconds")
	fs.IntVar(&f.streams, "http2-max-streams-per-connection", 0, "requests at a time on one connection (default 100)")
	fs.Float64Var(&f.goaway, "goaway-chance", 0, "chance that a request over HTTP/2 has its client connect anew, so that clients spread over the servers behind a load balancer: at most 0.02")
	fs.DurationVar(&f.delay, "shutdown-delay-duration", 0, "how long everything is still served once the server is to end, and /readyz says so")
	fs.DurationVar(&f.watchGrace, "shutdown-watch-termination-grace-period", 0, "longest time over which watches end one after the other when the server does; 0: all at once")
	fs.BoolVar(&f.retryAfter, "shutdown-send-retry-after", false, "listen on while requests in flight are answered, and answer new ones with 429 and Retry-After")
}

func (f *requestFlags) apply(c *apiserver.Config) error {
	var errs []error
	for name, n := range map[string]int{
		"max-requests-inflight": f.reads, "max-mutating-requests-inflight": f.writes, "min-request-timeout": f.minWatch, "http2-max-streams-per-connection": f.streams,
	} {
		if n < 0 {
			errs = append(errs, fmt.Errorf("--%s can not be negative value", name))
		}
	}
	if f.timeout <= 0 {
		errs = append(errs, errors.New("--request-timeout can not be negative value"))
	}
	if f.delay < 0 {
		errs = append(errs, errors.New("--shutdown-delay-duration can not be negative value"))
	}
	if f.watchGrace < 0 {
		errs = append(errs, errors.New("shutdown-watch-termination-grace-period, if provided, can not be a negative value"))
	}
	if f.goaway < 0 || f.goaway > 0.02 {
		errs = append(errs, errors.New("--goaway-chance can not be less than 0 or greater than 0.02"))
	}
	if f.fairness && f.reads+f.writes == 0 {
		errs = append(errs, errors.New("--max-requests-inflight + --max-mutating-requests-inflight must be positive"))
	}
	c.NoFairness, c.MaxReads, c.MaxWrites, c.MaxStreams = !f.fairness, orNone(f.reads), orNone(f.writes), f.streams
	c.RequestTimeout, c.MinWatch = f.timeout, time.Duration(f.minWatch)*time.Second
	c.GoawayChance, c.ShutdownDelay, c.ShutdownRetryAfter = f.goaway, f.delay, f.retryAfter
	c.ShutdownWatchGrace = f.watchGrace
	return errors.Join(errs...)
}

// orNone makes the flag's 0 the server's negative number, which is no limit.
func orNone(limit int) int {
	if limit == 0 {
		return -1
	}
	return limit
}
