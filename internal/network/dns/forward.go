package dns

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/singleflight"
	"k8s.io/utils/clock"
)

// forwarder asks the host's resolvers. Equal questions at the same time are
// asked once; a question that comes back to us through them joins the one at
// work and ends with it, so a loop costs one query.
type forwarder struct {
	path   string // of resolv.conf
	port   string // of resolvers
	clock  clock.PassiveClock
	flight singleflight.Group
	slots  chan struct{} // questions at resolvers

	mu        sync.Mutex // guards what follows
	own       string     // our address, which is no resolver
	servers   []string
	modified  time.Time // of the file that servers come from
	checked   time.Time
	remembers map[string]remembered
}

type remembered struct {
	msg   *dns.Msg
	since time.Time
	until time.Time
}

const (
	attemptTimeout = 2 * time.Second
	attempts       = 2   // rounds over the resolvers
	maxForwarded   = 256 // questions at resolvers at once
	maxRemembered  = 4096
	maxLifetime    = 30 * time.Second
	recheck        = 5 * time.Second // how often resolv.conf is looked at
)

func newForwarder(c Config) *forwarder {
	return &forwarder{path: c.ResolvConf, port: strconv.Itoa(Port), clock: c.Clock, slots: make(chan struct{}, maxForwarded), remembers: map[string]remembered{}}
}

// ignore says which resolver is ourselves.
func (f *forwarder) ignore(address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.own = address
}

// resolve fills reply from memory or from a resolver: SERVFAIL if none answers.
func (f *forwarder) resolve(ctx context.Context, query, reply *dns.Msg) {
	if !query.RecursionDesired {
		reply.Rcode = dns.RcodeRefused
		return
	}
	q := query.Question[0]
	key := strings.ToLower(q.Name) + dns.TypeToString[q.Qtype]
	if opt := query.IsEdns0(); opt != nil && opt.Do() {
		key += " signed"
	}
	msg := f.recall(key)
	if msg == nil {
		answered, err, _ := f.flight.Do(key, func() (any, error) { return f.ask(ctx, query) })
		if err != nil {
			reply.Rcode = dns.RcodeServerFailure
			return
		}
		msg = answered.(*dns.Msg)
		f.remember(key, msg)
	}
	msg = msg.Copy()
	reply.Rcode, reply.Answer, reply.Ns = msg.Rcode, msg.Answer, msg.Ns
	reply.AuthenticatedData = msg.AuthenticatedData
	for _, rr := range msg.Extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			reply.Extra = append(reply.Extra, rr)
		}
	}
}

var errNoAnswer = errors.New("no resolver answered")

// ask puts the question to the resolvers in turn.
func (f *forwarder) ask(ctx context.Context, query *dns.Msg) (*dns.Msg, error) {
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	default:
		return nil, errNoAnswer
	}
	servers := f.resolvers()
	var refused *dns.Msg
	for range attempts {
		for _, server := range servers {
			msg, err := exchange(ctx, query, server)
			switch {
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case err != nil:
			case msg.Rcode == dns.RcodeServerFailure || msg.Rcode == dns.RcodeRefused:
				refused = msg
			default:
				return msg, nil
			}
		}
	}
	if refused != nil {
		return refused, nil
	}
	return nil, errNoAnswer
}

// exchange asks one resolver, over TCP if the answer is too long for a datagram.
func exchange(ctx context.Context, query *dns.Msg, server string) (*dns.Msg, error) {
	out := query.Copy()
	out.Id = dns.Id()
	if out.IsEdns0() == nil {
		out.SetEdns0(maxUDP, false)
	}
	msg, _, err := (&dns.Client{Timeout: attemptTimeout}).ExchangeContext(ctx, out, server)
	if err == nil && msg.Truncated {
		msg, _, err = (&dns.Client{Net: "tcp", Timeout: attemptTimeout}).ExchangeContext(ctx, out, server)
	}
	return msg, err
}

// resolvers are those of resolv.conf, read again when it changed.
func (f *forwarder) resolvers() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clock.Now()
	if !f.checked.IsZero() && now.Sub(f.checked) < recheck {
		return f.servers
	}
	f.checked = now
	info, err := os.Stat(f.path)
	if err != nil || info.ModTime().Equal(f.modified) {
		return f.servers
	}
	config, err := dns.ClientConfigFromFile(f.path)
	if err != nil {
		return f.servers
	}
	f.modified, f.servers = info.ModTime(), nil
	for _, host := range config.Servers {
		if server := net.JoinHostPort(host, f.port); server != f.own {
			f.servers = append(f.servers, server)
		}
	}
	return f.servers
}

// recall returns what is remembered, its records that much older.
func (f *forwarder) recall(key string) *dns.Msg {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clock.Now()
	r, ok := f.remembers[key]
	if !ok || !now.Before(r.until) {
		return nil
	}
	msg, age := r.msg.Copy(), uint32(now.Sub(r.since)/time.Second)
	for _, section := range [][]dns.RR{msg.Answer, msg.Ns, msg.Extra} {
		for _, rr := range section {
			if h := rr.Header(); h.Rrtype != dns.TypeOPT {
				h.Ttl -= min(age, h.Ttl)
			}
		}
	}
	return msg
}

func (f *forwarder) remember(key string, msg *dns.Msg) {
	life := lifetime(msg)
	if life <= 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clock.Now()
	for old := range f.remembers {
		if len(f.remembers) < maxRemembered {
			break
		}
		delete(f.remembers, old)
	}
	f.remembers[key] = remembered{msg, now, now.Add(life)}
}

// lifetime is how long an answer may be kept: the shortest of its records', or
// what the zone says for a name or type that does not exist (RFC 2308).
func lifetime(msg *dns.Msg) time.Duration {
	if msg.Rcode != dns.RcodeSuccess && msg.Rcode != dns.RcodeNameError {
		return 0
	}
	life, found := maxLifetime, false
	for _, section := range [][]dns.RR{msg.Answer, msg.Ns} {
		for _, rr := range section {
			life, found = min(life, time.Duration(rr.Header().Ttl)*time.Second), true
			if soa, ok := rr.(*dns.SOA); ok {
				life = min(life, time.Duration(soa.Minttl)*time.Second)
			}
		}
	}
	if !found {
		return 0
	}
	return life
}
