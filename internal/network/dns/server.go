// Package dns answers the cluster's names as the Kubernetes DNS specification
// 1.1.0 says, from the objects at hand, and passes other names to the host's
// resolvers. It runs on the host, so a resolver at the host's loopback address
// is no loop.
package dns

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"proa/internal/client"
)

// Port of DNS.
const Port = 53

// Config makes a Server.
type Config struct {
	Cache      *client.Cache
	Domain     string         // of the cluster, such as cluster.local
	Listen     string         // address and port, UDP and TCP; see SetListen
	Address    netip.Addr     // at which clients find the server; for its own NS record
	Ranges     []netip.Prefix // of pods and Services: reverse lookups that stay here
	ResolvConf string         // the host's resolvers; "": /etc/resolv.conf
	Clock      clock.WithTicker
	// Shuffle orders addresses, as math/rand's function of this name does. Nil: by chance.
	Shuffle func(n int, swap func(i, j int))
}

// Server answers on one address.
type Server struct {
	c       Config
	zone    *zone
	forward *forwarder
	ready   chan struct{}
	bound   chan net.Addr // for tests that listen on any port
	slots   chan struct{} // queries at work
}

// maxQueries bounds the queries at work at once; more are dropped, and asked again by their clients.
const maxQueries = 2048

// New asks the cache for what Run needs.
func New(c Config) *Server {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Shuffle == nil {
		c.Shuffle = rand.Shuffle
	}
	if c.ResolvConf == "" {
		c.ResolvConf = "/etc/resolv.conf"
	}
	return &Server{
		c:       c,
		zone:    newZone(c),
		forward: newForwarder(c),
		ready:   make(chan struct{}),
		bound:   make(chan net.Addr, 1),
		slots:   make(chan struct{}, maxQueries),
	}
}

// SetListen says where to listen, where that was not known when the Server was
// made. It comes before Run.
func (s *Server) SetListen(address string) { s.c.Listen = address }

// Ready is closed once the server listens.
func (s *Server) Ready() <-chan struct{} { return s.ready }

const bindRetry = time.Second

// Run answers until ctx ends. The cache must have synced. An address that
// cannot be had is tried again.
func (s *Server) Run(ctx context.Context) error {
	for {
		packets, streams, err := listen(ctx, s.c.Listen)
		if err == nil {
			return s.serve(ctx, packets, streams)
		}
		if ctx.Err() != nil {
			return nil
		}
		slog.ErrorContext(ctx, "listen for DNS", "address", s.c.Listen, "err", err)
		select {
		case <-s.c.Clock.After(bindRetry):
		case <-ctx.Done():
			return nil
		}
	}
}

// listen opens both sockets on one port.
func listen(ctx context.Context, address string) (net.PacketConn, net.Listener, error) {
	var config net.ListenConfig
	packets, err := config.ListenPacket(ctx, "udp", address)
	if err != nil {
		return nil, nil, err
	}
	streams, err := config.Listen(ctx, "tcp", packets.LocalAddr().String())
	if err != nil {
		packets.Close()
		return nil, nil, err
	}
	return packets, streams, nil
}

func (s *Server) serve(ctx context.Context, packets net.PacketConn, streams net.Listener) error {
	s.bound <- packets.LocalAddr()
	s.forward.ignore(packets.LocalAddr().String())
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) { s.handle(ctx, w, query) })
	var started sync.WaitGroup
	servers := []*dns.Server{
		{PacketConn: packets, Handler: handler, UDPSize: maxUDP},
		{Listener: streams, Handler: handler},
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, server := range servers {
		started.Add(1)
		server.NotifyStartedFunc = started.Done
		g.Go(server.ActivateAndServe)
	}
	g.Go(func() error {
		started.Wait()
		close(s.ready)
		<-ctx.Done()
		return errors.Join(servers[0].Shutdown(), servers[1].Shutdown())
	})
	if err := g.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

const maxUDP = 1232 // what passes every link unfragmented

func (s *Server) handle(ctx context.Context, w dns.ResponseWriter, query *dns.Msg) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		return
	}
	reply := s.answer(ctx, query)
	size := dns.MaxMsgSize
	if w.RemoteAddr().Network() == "udp" {
		size = dns.MinMsgSize
		if opt := query.IsEdns0(); opt != nil {
			size = min(max(int(opt.UDPSize()), dns.MinMsgSize), maxUDP)
		}
	}
	reply.Truncate(size)
	if err := w.WriteMsg(reply); err != nil {
		slog.DebugContext(ctx, "send DNS answer", "client", w.RemoteAddr(), "err", err)
	}
}

// answer builds the reply to a query.
func (s *Server) answer(ctx context.Context, query *dns.Msg) *dns.Msg {
	reply := new(dns.Msg).SetReply(query)
	reply.RecursionAvailable = true
	reply.Compress = true
	opt := query.IsEdns0()
	switch {
	case opt != nil && opt.Version() != 0:
		reply.Rcode = dns.RcodeBadVers
	case query.Opcode != dns.OpcodeQuery:
		reply.Rcode = dns.RcodeNotImplemented
	case len(query.Question) != 1:
		reply.Rcode = dns.RcodeFormatError
	case query.Question[0].Qclass != dns.ClassINET:
		reply.Rcode = dns.RcodeRefused
	default:
		s.resolve(ctx, query, reply)
	}
	if opt != nil && reply.IsEdns0() == nil {
		reply.SetEdns0(maxUDP, opt.Do())
	}
	return reply
}

func (s *Server) resolve(ctx context.Context, query, reply *dns.Msg) {
	q := query.Question[0]
	found, ours := s.zone.lookup(strings.ToLower(q.Name), q.Name, q.Qtype)
	if !ours {
		s.forward.resolve(ctx, query, reply)
		return
	}
	reply.Authoritative = true
	reply.Rcode, reply.Answer, reply.Extra = found.rcode, found.answer, found.extra
	s.c.Shuffle(len(reply.Answer), func(i, j int) { reply.Answer[i], reply.Answer[j] = reply.Answer[j], reply.Answer[i] })
	if found.alias != "" && (q.Qtype == dns.TypeA || q.Qtype == dns.TypeAAAA) {
		reply.Answer = append(reply.Answer, s.follow(ctx, found.alias, q.Qtype)...)
	}
	if len(reply.Answer) == 0 {
		reply.Ns = []dns.RR{s.zone.soa()}
	}
}

// follow resolves what an alias stands for, one step within the cluster.
func (s *Server) follow(ctx context.Context, name string, qtype uint16) []dns.RR {
	if found, ours := s.zone.lookup(strings.ToLower(name), name, qtype); ours {
		return found.answer
	}
	query := new(dns.Msg).SetQuestion(name, qtype)
	reply := new(dns.Msg).SetReply(query)
	s.forward.resolve(ctx, query, reply)
	return reply.Answer
}
