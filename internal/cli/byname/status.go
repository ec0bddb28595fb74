package byname

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/component-base/metrics/legacyregistry"

	"proa/internal/client"
)

// status is the port where a daemon tells how it is: /healthz, /livez, /readyz and
// /metrics. Paths that are not open to everyone are asked of the API server:
// who has this token, and may they?
type status struct {
	serving
	open     []string
	metrics  *prometheus.Registry
	reviewer client.API
}

func (s *status) add(fs *pflag.FlagSet, pair string, port int) {
	s.serving.add(fs, pair, port)
	fs.StringSliceVar(&s.open, "authorization-always-allow-paths", []string{"/healthz", "/readyz", "/livez"}, "paths that need no authorization; a * at the end stands for the rest")
	s.metrics = prometheus.NewRegistry()
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
	server := &http.Server{
		Handler: s.handler(), TLSConfig: secure, ReadHeaderTimeout: 32 * time.Second,
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

func (s *status) handler() http.Handler {
	mux := http.NewServeMux()
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	}
	mux.Handle("/metrics", promhttp.HandlerFor(prometheus.Gatherers{s.metrics, legacyregistry.DefaultGatherer}, promhttp.HandlerOpts{}))
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
	})
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
