package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// server is what serve's listeners share.
type server struct {
	host     string
	healthy  atomic.Bool // /healthz and gRPC health
	ready    atomic.Bool // /readyz
	requests atomic.Int64
	health   *health.Server
	ballast  struct {
		sync.Mutex
		blocks [][]byte
	}
}

func serve(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	httpAddress := flags.String("http", ":8080", "address of the HTTP server")
	tcpAddress := flags.String("tcp", ":9000", "address of the TCP echo server")
	udpAddress := flags.String("udp", ":9001", "address of the UDP echo server")
	grpcAddress := flags.String("grpc", ":9090", "address of the gRPC health server")
	startDelay := flags.Duration("start-delay", 0, "time before anything listens")
	readyDelay := flags.Duration("ready-delay", 0, "time before /readyz answers 200")
	linger := flags.Duration("linger", 0, "time to go on serving after SIGTERM")
	if err := flags.Parse(args); err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	if wait(ctx, *startDelay) != nil {
		return nil
	}
	s := &server{host: host, health: health.NewServer()}
	s.healthy.Store(true)
	s.ready.Store(*readyDelay == 0)
	if *readyDelay > 0 {
		time.AfterFunc(*readyDelay, func() { s.ready.Store(true) })
	}
	listeners := []struct {
		address string
		serve   func(address string) error
	}{{*httpAddress, s.serveHTTP}, {*tcpAddress, s.serveTCP}, {*udpAddress, s.serveUDP}, {*grpcAddress, s.serveGRPC}}
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		if l.address != "" {
			go func() { failed <- l.serve(l.address) }()
		}
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		log.Printf("%s: asked to end", host)
		return wait(context.Background(), *linger)
	}
}

func (s *server) serveHTTP(address string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/", s.hostname)
	mux.HandleFunc("/hostname", s.hostname)
	mux.HandleFunc("/echo", echo)
	mux.HandleFunc("/headers", headers)
	mux.HandleFunc("/env", environment)
	mux.HandleFunc("/client", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, r.RemoteAddr) })
	mux.HandleFunc("/requests", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, s.requests.Load()) })
	mux.HandleFunc("GET /healthz", status(&s.healthy))
	mux.HandleFunc("GET /readyz", status(&s.ready))
	mux.HandleFunc("POST /healthz", s.setHealth)
	mux.HandleFunc("POST /readyz", set(&s.ready))
	mux.HandleFunc("/file", file)
	mux.HandleFunc("/wait", func(w http.ResponseWriter, r *http.Request) { pause(w, r) })
	mux.HandleFunc("POST /exit", exitNow)
	mux.HandleFunc("POST /memory", s.allocate)
	mux.HandleFunc("/log", func(w http.ResponseWriter, r *http.Request) { fmt.Println(r.FormValue("line")) })
	mux.HandleFunc("/fetch", fetch)
	mux.HandleFunc("/dial", dialHTTP)
	mux.HandleFunc("/lookup", lookupHTTP)
	counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" && r.URL.Path != "/readyz" {
			s.requests.Add(1)
		}
		mux.ServeHTTP(w, r)
	})
	return (&http.Server{Addr: address, Handler: counted, ReadHeaderTimeout: 10 * time.Second}).ListenAndServe()
}

func (s *server) hostname(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, s.host) }

func echo(w http.ResponseWriter, r *http.Request) {
	if message := r.FormValue("message"); message != "" {
		fmt.Fprintln(w, message)
		return
	}
	io.Copy(w, r.Body) //nolint:errcheck // the client has gone
}

func headers(w http.ResponseWriter, r *http.Request) {
	r.Header.Set("Host", r.Host)
	r.Header.Write(w) //nolint:errcheck // the client has gone
}

func environment(w http.ResponseWriter, r *http.Request) {
	if name := r.FormValue("name"); name != "" {
		fmt.Fprintln(w, os.Getenv(name))
		return
	}
	fmt.Fprintln(w, strings.Join(slices.Sorted(slices.Values(os.Environ())), "\n"))
}

func status(flag *atomic.Bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if !flag.Load() {
			http.Error(w, "failing as asked", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

// set answers POST with ?ok=true or false.
func set(flag *atomic.Bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ok, err := strconv.ParseBool(r.FormValue("ok"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		flag.Store(ok)
		fmt.Fprintln(w, ok)
	}
}

func (s *server) setHealth(w http.ResponseWriter, r *http.Request) {
	set(&s.healthy)(w, r)
	serving := healthpb.HealthCheckResponse_SERVING
	if !s.healthy.Load() {
		serving = healthpb.HealthCheckResponse_NOT_SERVING
	}
	s.health.SetServingStatus("", serving)
}

// file reads, writes (PUT) or deletes (DELETE) the file ?path= names.
func file(w http.ResponseWriter, r *http.Request) {
	path := r.FormValue("path")
	var err error
	switch r.Method {
	case http.MethodGet:
		var content []byte
		if content, err = os.ReadFile(path); err == nil {
			w.Write(content) //nolint:errcheck // the client has gone
		}
	case http.MethodPut:
		var content []byte
		if content, err = io.ReadAll(r.Body); err == nil {
			err = writeFile(path, content)
		}
	case http.MethodDelete:
		err = os.Remove(path)
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
	answer(w, err)
}

func pause(w http.ResponseWriter, r *http.Request) {
	d, err := time.ParseDuration(r.FormValue("for"))
	if err == nil {
		err = wait(r.Context(), d)
	}
	answer(w, err)
}

// exitNow ends the process with ?code= once the answer is on its way.
func exitNow(w http.ResponseWriter, r *http.Request) {
	code, err := strconv.Atoi(r.FormValue("code"))
	if err != nil {
		answer(w, err)
		return
	}
	fmt.Fprintln(w, code)
	if err := http.NewResponseController(w).Flush(); err != nil {
		log.Print(err)
	}
	os.Exit(code)
}

// allocate holds ?mib= more mebibytes, every page of them touched.
func (s *server) allocate(w http.ResponseWriter, r *http.Request) {
	mib, err := strconv.Atoi(r.FormValue("mib"))
	if err != nil || mib < 0 {
		answer(w, errors.Join(errors.New("mib is a number of mebibytes"), err))
		return
	}
	s.ballast.Lock()
	defer s.ballast.Unlock()
	for range mib {
		s.ballast.blocks = append(s.ballast.blocks, block())
	}
	fmt.Fprintln(w, len(s.ballast.blocks))
}

func fetch(w http.ResponseWriter, r *http.Request) {
	request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, r.FormValue("url"), nil)
	if err != nil {
		answer(w, err)
		return
	}
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	reply, err := client.Do(request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer reply.Body.Close()
	w.WriteHeader(reply.StatusCode)
	io.Copy(w, reply.Body) //nolint:errcheck // one side has gone
}

func dialHTTP(w http.ResponseWriter, r *http.Request) {
	said, err := say(r.Context(), r.FormValue("network"), r.FormValue("address"), r.FormValue("say"), 3*time.Second)
	if err != nil {
		answer(w, err)
		return
	}
	fmt.Fprint(w, said)
}

func lookupHTTP(w http.ResponseWriter, r *http.Request) {
	lines, err := resolve(r.Context(), r.FormValue("type"), r.FormValue("name"))
	if err != nil {
		answer(w, err)
		return
	}
	fmt.Fprint(w, strings.Join(lines, "\n"))
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusInternalServerError)
		json.NewEncoder(w).Encode(map[string]string{"error": err.Error()}) //nolint:errcheck // the client has gone
	}
}

func (s *server) serveTCP(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			io.Copy(conn, conn) //nolint:errcheck // the client has gone
		}()
	}
}

// serveUDP answers a datagram with itself, and the datagram "hostname" with the host's name.
func (s *server) serveUDP(address string) error {
	conn, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	buffer := make([]byte, 64<<10)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return err
		}
		reply := buffer[:n]
		if string(reply) == "hostname" {
			reply = []byte(s.host)
		}
		if _, err := conn.WriteTo(reply, from); err != nil {
			log.Print(err)
		}
	}
}

func (s *server) serveGRPC(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	g := grpc.NewServer()
	healthpb.RegisterHealthServer(g, s.health)
	return g.Serve(listener)
}
