package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"k8s.io/client-go/rest"
)

// API says how an API server is measured.
type API struct {
	Config    *rest.Config
	Server    Server
	Namespace string        // made, and deleted at the end; default proa-bench
	Only      []string      // the tasks to do, of Tasks; empty: all
	Clients   []int         // at once; default 1, 16, 64
	Duration  time.Duration // of each kind of call; default 5 s
	Pods      int           // in lists; default 50 000
	Repeat    int           // lists; default 3
	Watchers  []int         // default 10, 100, 1000
	Streams   int           // watches that share a connection; default 1
	Events    int           // that all watchers of one round get together, at most; default 100 000
	Compress  bool          // accept gzip
	Keep      bool          // leave the pods of the lists
}

// Tasks are what APIs are measured by, in order.
var Tasks = []string{"calls", "custom", "watch", "list"}

func (a *API) setDefaults() {
	if a.Namespace == "" {
		a.Namespace = "proa-bench"
	}
	if len(a.Only) == 0 {
		a.Only = Tasks
	}
	if len(a.Clients) == 0 {
		a.Clients = []int{1, 16, 64}
	}
	if a.Duration <= 0 {
		a.Duration = 5 * time.Second
	}
	if a.Pods <= 0 {
		a.Pods = 50_000
	}
	if a.Repeat <= 0 {
		a.Repeat = 3
	}
	if len(a.Watchers) == 0 {
		a.Watchers = []int{10, 100, 1000}
	}
	if a.Streams <= 0 {
		a.Streams = 1
	}
	if a.Events <= 0 {
		a.Events = 100_000
	}
}

// Run measures and reports, and leaves nothing behind.
func (a API) Run(ctx context.Context, report Report) (err error) {
	a.setDefaults()
	for _, task := range a.Only {
		if !slices.Contains(Tasks, task) {
			return fmt.Errorf("there is no task %q, only %v", task, Tasks)
		}
	}
	t, err := newTarget(a.Config, a.Compress)
	if err != nil {
		return err
	}
	run := &apiRun{API: a, target: t, report: report}
	if err := t.makeNamespace(ctx, a.Namespace); err != nil {
		return err
	}
	defer func() {
		if !a.Keep {
			err = errors.Join(err, t.removeNamespace(context.WithoutCancel(ctx), a.Namespace))
		}
	}()
	tasks := map[string]func(context.Context) error{"calls": run.calls, "custom": run.custom, "watch": run.watches, "list": run.lists}
	for _, name := range Tasks {
		if slices.Contains(a.Only, name) {
			if err := tasks[name](ctx); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

// apiRun is one Run.
type apiRun struct {
	API
	target *target
	report Report
}

func (r *apiRun) pods() string { return "/api/v1/namespaces/" + r.Namespace + "/pods" }

func (r *apiRun) pod(name string) string { return r.pods() + "/" + name }

const namespaces = "/api/v1/namespaces"

// makeNamespace makes a namespace with the service account that pods need, which
// a control plane without controllers does not make. A server without
// namespaces has nothing to be made.
func (t *target) makeNamespace(ctx context.Context, name string) error {
	c, err := t.newClient()
	if err != nil {
		return err
	}
	defer c.close()
	body := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, name)
	_, err = c.do(ctx, request{method: http.MethodPost, path: namespaces, body: body, media: mediaJSON})
	if isCode(err, http.StatusNotFound) {
		return nil
	}
	if isCode(err, http.StatusConflict) {
		return fmt.Errorf("namespace %s exists: another run, or what one left behind; delete it first", name)
	}
	if err != nil {
		return err
	}
	body = []byte(`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default"}}`)
	_, err = c.do(ctx, request{method: http.MethodPost, path: namespaces + "/" + name + "/serviceaccounts", body: body, media: mediaJSON})
	if isCode(err, http.StatusConflict) {
		return nil
	}
	return err
}

// removeNamespace deletes the pods and then the namespace.
func (t *target) removeNamespace(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	c, err := t.newClient()
	if err != nil {
		return err
	}
	defer c.close()
	if _, err := c.drain(ctx, request{method: http.MethodDelete, path: namespaces + "/" + name + "/pods?gracePeriodSeconds=0"}); err != nil {
		return err
	}
	_, err = c.drain(ctx, request{method: http.MethodDelete, path: namespaces + "/" + name})
	if isCode(err, http.StatusNotFound) {
		return nil
	}
	return err
}

func isCode(err error, code int) bool {
	var s *statusError
	return errors.As(err, &s) && s.code == code
}
