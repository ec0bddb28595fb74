package controlplane

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apiserver"
)

// The waiting room answers on the API's port while the server reads what it has, so
// that nobody hangs on a connection that is not served yet (KEP-4568): the server is
// alive, it is not ready, and all that is asked of it may be asked again in a second.
// Who is asking is not known yet, so nothing else is told to anyone.

// comeAgain is in seconds.
const comeAgain = 1

// lastAnswers is how long those who came before the server was there may take to be
// told so.
const lastAnswers = 10 * time.Second

// openWaitingRoom serves until leave is called, which leaves the listener as it was;
// empty then returns when the last who came before has been answered. The checks tell
// how far the start is. A listener that cannot be taken back stays unserved.
func openWaitingRoom(l net.Listener, secure *tls.Config, checks []apiserver.Check) (leave, empty func()) {
	shared, ok := l.(interface{ SetDeadline(time.Time) error })
	if !ok {
		return func() {}, func() {}
	}
	lent := &lentListener{Listener: l, interrupt: shared.SetDeadline}
	var connections sync.WaitGroup
	server := &http.Server{
		Handler: waitingRoom{apiserver.HealthHandler(checks)}, ReadHeaderTimeout: lastAnswers,
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				connections.Add(1)
			case http.StateClosed:
				connections.Done()
			}
		},
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	server.SetKeepAlivesEnabled(false) // one answer each
	serve := func() error { return server.Serve(lent) }
	if secure != nil {
		server.TLSConfig = secure.Clone()
		serve = func() error { return server.ServeTLS(lent, "", "") }
	}
	accepting, answering := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(accepting)
		if err := serve(); !errors.Is(err, net.ErrClosed) {
			slog.Warn("Nobody is answered while the server starts", "err", err)
		}
	}()
	leave = sync.OnceFunc(func() {
		lent.Close()
		<-accepting
		_ = shared.SetDeadline(time.Time{})
		go func() { // not by Shutdown: it cuts off who has connected and not asked yet
			defer close(answering)
			late := time.AfterFunc(lastAnswers, func() { server.Close() })
			defer late.Stop()
			connections.Wait()
		}()
	})
	return leave, func() { <-answering }
}

// lentListener ends Accept, and not the listener, when it is closed.
type lentListener struct {
	net.Listener
	interrupt func(time.Time) error
	closed    atomic.Bool
}

// Accept waits for the next connection.
func (l *lentListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil && l.closed.Load() {
		return nil, net.ErrClosed
	}
	return conn, err
}

// Close interrupts Accept, once.
func (l *lentListener) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	return l.interrupt(time.Unix(1, 0))
}

// waitingRoom answers one request of each connection.
type waitingRoom struct{ health http.Handler }

func (room waitingRoom) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/livez" || strings.HasPrefix(r.URL.Path, "/livez/"):
		_, _ = w.Write([]byte("ok"))
	case strings.HasPrefix(r.URL.Path, "/readyz"), strings.HasPrefix(r.URL.Path, "/healthz"):
		room.health.ServeHTTP(w, r)
	default:
		refusal := apierrors.NewGenericServerResponse(http.StatusTooManyRequests, "", schema.GroupResource{}, "", "storage is (re)initializing", comeAgain, true).Status()
		refusal.Kind, refusal.APIVersion = "Status", "v1"
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		_ = json.NewEncoder(w).Encode(refusal) // a client that is gone needs no answer
	}
}
