package byname

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/utils/clock"

	"proa/internal/apiserver/slis"
	"proa/internal/apiserver/zpages"
	"proa/internal/cardinality"
	"proa/internal/client"
	"proa/internal/verbosity"
)

// status is the port where a daemon tells how it is: /healthz, /livez, /readyz and
// /metrics. Paths that are not open to everyone are asked of the API server:
// who has this token, and may they?
type status struct {
	serving
	open     []string
	metrics  *prometheus.Registry
	labels   cardinality.Flags
	profiles bool
	reviewer client.API

	program string
	flags   *pflag.FlagSet
	started time.Time
}

func (s *status) add(fs *pflag.FlagSet, pair string, port int) {
	s.serving.add(fs, pair, port)
	fs.StringSliceVar(&s.open, "authorization-always-allow-paths", []string{"/healthz", "/readyz", "/livez"}, "paths that need no authorization; a * at the end stands for the rest")
	fs.BoolVar(&s.profiles, "profiling", true, "serve /debug/pprof and /debug/flags")
	s.labels.Add(fs)
	s.metrics = prometheus.NewRegistry()
	s.program, s.flags, s.started = pair, fs, time.Now()
}

// run serves until ctx ends; port 0 serves nothing.
func (s *status) run(ctx context.Context) error {
	if s.port == 0 {
		<-ctx.Done()
		return nil
	}
	secure, err := s.tls([]string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	l, err := s.listen()
	if err != nil {
		return err
	}
	handler, err := s.handler()
	if err != nil {
		l.Close()
		return err
	}
	server := &http.Server{
		Handler: handler, TLSConfig: secure, ReadHeaderTimeout: 32 * time.Second,
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	done := make(chan error, 1)
	go func() { done <- server.ServeTLS(l, "", "") }()
	select {
	case err := <-done:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	server.Close()
	<-done
	return nil
}

func (s *status) handler() (http.Handler, error) {
	limits, err := s.labels.Limits()
	if err != nil {
		return nil, err
	}
	mux, health := http.NewServeMux(), slis.New()
	for _, endpoint := range []string{"healthz", "livez", "readyz"} {
		mux.HandleFunc("/"+endpoint, func(w http.ResponseWriter, _ *http.Request) {
			health.Note(endpoint, "ping", nil)
			fmt.Fprint(w, "ok")
		})
	}
	mux.Handle("/metrics", promhttp.HandlerFor(limits.Limit(prometheus.Gatherers{s.metrics, legacyregistry.DefaultGatherer}), promhttp.HandlerOpts{}))
	mux.Handle("/metrics/slis", health)
	pages := &zpages.Pages{
		Component: s.program, Flags: s.inForce(), Started: s.started, Clock: clock.RealClock{},
		Paths: []string{"/flagz", "/healthz", "/livez", "/metrics", "/readyz", "/statusz"},
	}
	mux.HandleFunc("/statusz", orRefuse(pages.Statusz))
	mux.HandleFunc("/flagz", orRefuse(pages.Flagz))
	if s.profiles {
		mux.HandleFunc("/debug/flags/v", verbosity.ServeHTTP)
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.isOpen(r.URL.Path) {
			mux.ServeHTTP(w, r)
			return
		}
		code, err := s.authorize(r)
		if err != nil {
			http.Error(w, err.Error(), code)
			return
		}
		mux.ServeHTTP(w, r)
	}), nil
}

// orRefuse writes what a page refuses as upstream's plain errors.
func orRefuse(page func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := page(w, r); err != nil {
			code := http.StatusInternalServerError
			var refusal apierrors.APIStatus
			if errors.As(err, &refusal) {
				code = int(refusal.Status().Code)
			}
			http.Error(w, err.Error(), code)
		}
	}
}

// inForce are the values of all flags. None of these daemons takes a secret as a flag.
func (s *status) inForce() map[string]string {
	values := map[string]string{}
	s.flags.VisitAll(func(f *pflag.Flag) { values[f.Name] = f.Value.String() })
	return values
}

func (s *status) isOpen(path string) bool {
	return slices.ContainsFunc(s.open, func(open string) bool {
		prefix, rest := strings.CutSuffix(open, "*")
		return path == open || rest && strings.HasPrefix(path, prefix)
	})
}

var errUnauthorized = errors.New("Unauthorized")

// authorize asks the API server about the bearer of a request.
func (s *status) authorize(r *http.Request) (code int, err error) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return http.StatusUnauthorized, errUnauthorized
	}
	tokens := client.Of[*authenticationv1.TokenReview](s.reviewer)
	review, err := tokens.Create(r.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}})
	if err != nil {
		return http.StatusInternalServerError, err
	}
	if !review.Status.Authenticated {
		return http.StatusUnauthorized, errUnauthorized
	}
	u := review.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range u.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	access, err := client.Of[*authorizationv1.SubjectAccessReview](s.reviewer).Create(r.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: u.Username, UID: u.UID, Groups: u.Groups, Extra: extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: r.URL.Path, Verb: strings.ToLower(r.Method)},
		},
	})
	switch {
	case err != nil:
		return http.StatusInternalServerError, err
	case !access.Status.Allowed:
		return http.StatusForbidden, fmt.Errorf("forbidden: User %q cannot %s path %q", u.Username, strings.ToLower(r.Method), r.URL.Path)
	}
	return http.StatusOK, nil
}
