package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/apimachinery/pkg/util/proxy"
	apiproxy "k8s.io/apiserver/pkg/util/proxy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
)

// translated is the protocol that is not passed through to the runtime.
const translated = "v5.channel.k8s.io"

const runTimeout = 2 * time.Minute

// streams is what a client asks to be connected to.
type streams struct{ stdin, stdout, stderr, tty bool }

func streamsOf(q url.Values) (streams, error) {
	on := func(name string) bool { v := q.Get(name); return v == "1" || v == "true" }
	st := streams{stdin: on("input"), stdout: on("output"), stderr: on("error"), tty: on("tty")}
	if st.tty {
		st.stderr = false // a terminal has one output
	}
	if !st.stdin && !st.stdout && !st.stderr {
		return st, errors.New("you must specify at least 1 of stdin, stdout, stderr")
	}
	return st, nil
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	st, err := streamsOf(q)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	id, err := s.runningContainer(r)
	if err != nil {
		writeError(w, err)
		return
	}
	resp, err := s.c.Runtime.Exec(r.Context(), &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: q["command"], Stdin: st.stdin, Stdout: st.stdout, Stderr: st.stderr, Tty: st.tty,
	})
	if err != nil {
		writeError(w, err)
		return
	}
	s.forward(w, r, resp.GetUrl(), st)
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	st, err := streamsOf(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	id, err := s.runningContainer(r)
	if err != nil {
		writeError(w, err)
		return
	}
	// Whether there is a terminal was decided when the process started. Beside one
	// there is no stderr, and the runtime would wait for its end.
	terminal := s.hasTerminal(r)
	st.tty = st.tty && terminal
	if terminal && st.stderr {
		if !offers(r, translated) { // the streams that the client makes reach the runtime as they are
			writeError(w, fail(http.StatusBadRequest, "container %q has a terminal: attach with a terminal, or without stderr", r.PathValue("container")))
			return
		}
		st.stderr = false
	}
	resp, err := s.c.Runtime.Attach(r.Context(), &runtimeapi.AttachRequest{
		ContainerId: id, Stdin: st.stdin, Stdout: st.stdout, Stderr: st.stderr, Tty: st.tty,
	})
	if err != nil {
		writeError(w, err)
		return
	}
	s.forward(w, r, resp.GetUrl(), st)
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	ports, err := portforward.NewV4Options(r)
	if err != nil && !tunnelled(r) {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	pod, err := s.pod(r)
	if err != nil {
		writeError(w, err)
		return
	}
	sandbox, err := s.sandbox(r.Context(), pod)
	if err != nil {
		writeError(w, err)
		return
	}
	req := &runtimeapi.PortForwardRequest{PodSandboxId: sandbox}
	if ports != nil {
		req.Port = ports.Ports
	}
	resp, err := s.c.Runtime.PortForward(r.Context(), req)
	if err != nil {
		writeError(w, err)
		return
	}
	target, err := streamingURL(resp.GetUrl())
	if err != nil {
		writeError(w, err)
		return
	}
	raw := rawProxy(target)
	if tunnelled(r) {
		apiproxy.NewTunnelingHandler(raw).ServeHTTP(w, r)
		return
	}
	raw.ServeHTTP(w, r)
}

// run executes a command and answers with its output.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	id, err := s.runningContainer(r)
	if err != nil {
		writeError(w, err)
		return
	}
	resp, err := s.c.Runtime.ExecSync(r.Context(), &runtimeapi.ExecSyncRequest{
		ContainerId: id, Cmd: strings.Split(r.FormValue("cmd"), " "), Timeout: int64(runTimeout / time.Second),
	})
	if err != nil {
		writeError(w, err)
		return
	}
	if resp.GetExitCode() != 0 {
		writeError(w, fmt.Errorf("command exited with code %d: %s", resp.GetExitCode(), resp.GetStderr()))
		return
	}
	_, _ = w.Write(append(resp.GetStdout(), resp.GetStderr()...)) // the client is gone when this fails
}

// forward connects a client to the runtime's streaming server. The connection
// goes through as it is, except that v5 of the WebSocket protocol becomes SPDY.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, address string, st streams) {
	target, err := streamingURL(address)
	if err != nil {
		writeError(w, err)
		return
	}
	if offers(r, translated) {
		opts := apiproxy.Options{Stdin: st.stdin, Stdout: st.stdout, Stderr: st.stderr, Tty: st.tty}
		apiproxy.NewStreamTranslatorHandler(target, nil, 0, opts).ServeHTTP(w, r)
		return
	}
	rawProxy(target).ServeHTTP(w, r)
}

func rawProxy(target *url.URL) http.Handler {
	h := proxy.NewUpgradeAwareHandler(target, nil, false, true, responder{})
	h.RejectForwardingRedirects = true
	h.UseLocationHost = true
	return h
}

// streamingURL checks the address that the runtime gives for a stream: its
// streaming server listens on this machine's loopback and nowhere else.
func streamingURL(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("streaming URL of the container runtime: %w", err)
	}
	ip := net.ParseIP(u.Hostname())
	if u.Scheme != "http" || ip == nil || !ip.IsLoopback() || u.User != nil {
		return nil, fmt.Errorf("streaming URL %q of the container runtime is not on this machine's loopback", address)
	}
	return u, nil
}

// offers says whether a WebSocket client speaks a subprotocol.
func offers(r *http.Request, protocol string) bool {
	if !strings.EqualFold(r.Header.Get(httpstream.HeaderUpgrade), "websocket") {
		return false
	}
	for _, p := range subprotocols(r) {
		if p == protocol {
			return true
		}
	}
	return false
}

// tunnelled says whether a client carries SPDY inside a WebSocket (KEP-4006).
func tunnelled(r *http.Request) bool {
	for _, p := range subprotocols(r) {
		if strings.HasPrefix(p, "SPDY/3.1+") {
			return true
		}
	}
	return false
}

func subprotocols(r *http.Request) []string {
	var out []string
	for _, line := range r.Header.Values("Sec-Websocket-Protocol") {
		for p := range strings.SplitSeq(line, ",") {
			out = append(out, strings.TrimSpace(p))
		}
	}
	return out
}

type responder struct{}

func (responder) Error(w http.ResponseWriter, _ *http.Request, err error) {
	writeError(w, err)
}

// writeError answers with the error's text, which kubectl shows, and the status
// that goes with it.
func writeError(w http.ResponseWriter, err error) {
	var known *statusError
	code := http.StatusInternalServerError
	switch {
	case errors.As(err, &known):
		code = known.code
	case errors.Is(err, context.Canceled):
		return
	case grpcstatus.Code(err) == codes.NotFound:
		code = http.StatusNotFound
	case grpcstatus.Code(err) == codes.ResourceExhausted:
		// Not the runtime's Retry-After, which CRI cannot carry.
		w.Header().Set("Retry-After", "1")
		code = http.StatusTooManyRequests
	}
	http.Error(w, err.Error(), code)
}

// statusError is an error with its HTTP status.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string { return e.message }

func fail(code int, format string, args ...any) error {
	return &statusError{code, fmt.Sprintf(format, args...)}
}
