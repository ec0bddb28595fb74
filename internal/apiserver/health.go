package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sort"
	"strconv"
	"strings"

	"proa/internal/apiserver/slis"
)

// Check is one part of the server's health.
type Check struct {
	Name string
	// Check returns nil while the part is well.
	Check func(ctx context.Context) error
	// Ready marks a check of /readyz alone: what has to be done before clients
	// should come, but is no reason to restart.
	Ready bool
}

// health answers /healthz, /livez, /readyz and a path per check.
type health struct {
	live, ready []Check
	slis        *slis.SLIs
}

func newHealth(checks []Check, ending context.Context) *health {
	h := &health{slis: slis.New()}
	ping := Check{Name: "ping", Check: func(context.Context) error { return nil }}
	h.live, h.ready = []Check{ping}, []Check{ping}
	for _, c := range checks {
		h.ready = append(h.ready, c)
		if !c.Ready {
			h.live = append(h.live, c)
		}
	}
	h.ready = append(h.ready, Check{Name: "shutdown", Ready: true, Check: func(context.Context) error {
		if ending.Err() != nil {
			return fmt.Errorf("process is shutting down")
		}
		return nil
	}})
	return h
}

// HealthHandler answers /healthz, /livez and /readyz of what is no server yet.
func HealthHandler(checks []Check) http.Handler {
	h := newHealth(checks, context.Background())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.serve(w, r, r.URL.Path); err != nil {
			http.NotFound(w, r)
		}
	})
}

func (h *health) checks(endpoint string) []Check {
	if endpoint == "readyz" {
		return h.ready
	}
	return h.live
}

func (h *health) paths() []string {
	var list []string
	for _, endpoint := range []string{"healthz", "livez", "readyz"} {
		list = append(list, "/"+endpoint)
		for _, c := range h.checks(endpoint) {
			list = append(list, "/"+endpoint+"/"+c.Name)
		}
	}
	sort.Strings(list)
	return list
}

// serve answers /<endpoint> and /<endpoint>/<check>. The queries verbose and
// exclude=<check> are as upstream's.
func (h *health) serve(w http.ResponseWriter, r *http.Request, path string) error {
	endpoint, name, _ := strings.Cut(strings.Trim(path, "/"), "/")
	header := w.Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("X-Content-Type-Options", "nosniff")
	if name != "" {
		return h.serveOne(w, r, endpoint, name)
	}
	query := r.URL.Query()
	excluded := query["exclude"]
	var report strings.Builder
	failed := []string{}
	unknown := slices.Clone(excluded)
	for _, c := range h.checks(endpoint) {
		if slices.Contains(excluded, c.Name) {
			unknown = slices.DeleteFunc(unknown, func(x string) bool { return x == c.Name })
			fmt.Fprintf(&report, "[+]%s excluded: ok\n", c.Name)
			continue
		}
		err := c.Check(r.Context())
		h.slis.Note(endpoint, c.Name, err)
		if err != nil {
			// The reason is in the log and at the check's own path for those who may.
			fmt.Fprintf(&report, "[-]%s failed: reason withheld\n", c.Name)
			failed = append(failed, c.Name)
			continue
		}
		fmt.Fprintf(&report, "[+]%s ok\n", c.Name)
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		fmt.Fprintf(&report, "warn: some health checks cannot be excluded: no matches for %s\n", quoted(slices.Compact(unknown)))
	}
	if len(failed) > 0 {
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprintf(w, "%s%s check failed\n", report.String(), endpoint)
		return nil
	}
	if _, verbose := query["verbose"]; !verbose {
		fmt.Fprint(w, "ok")
		return nil
	}
	fmt.Fprintf(w, "%s%s check passed\n", report.String(), endpoint)
	return nil
}

func (h *health) serveOne(w http.ResponseWriter, r *http.Request, endpoint, name string) error {
	for _, c := range h.checks(endpoint) {
		if c.Name != name {
			continue
		}
		err := c.Check(r.Context())
		h.slis.Note(endpoint, name, err)
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprintf(w, "internal server error: %v\n", err)
			return nil
		}
		fmt.Fprint(w, "ok")
		return nil
	}
	w.Header().Del("Content-Type")
	return errNoPath
}

func quoted(names []string) string {
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = strconv.Quote(name)
	}
	return strings.Join(list, ",")
}
