package endpoint

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"proa/internal/kubelet/logs"
	"proa/internal/simulate/kwok"
	"proa/internal/simulate/usage"
)

func (e *Endpoint) containerLogs(w http.ResponseWriter, r *http.Request) {
	pod, ok := e.find(w, r)
	if !ok {
		return
	}
	opts, previous, err := logOptions(r, e.c.Clock.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	container := r.PathValue("container")
	log := told(pod, e.c.Documents.Logs, e.c.Documents.ClusterLogs,
		func(s *kwok.LogsSpec) (*kwok.ObjectSelector, []kwok.Log) { return s.Selector, s.Logs },
		func(l *kwok.Log) bool { return l.Containers.Take(container) })
	w.Header().Set("Content-Type", "text/plain")
	switch {
	case previous && (log == nil || log.PreviousLogsFile == nil):
		http.Error(w, fmt.Sprintf("previous terminated container %q in pod %q not found", container, pod.Name), http.StatusBadRequest)
	case previous:
		e.copyLog(w, r, *log.PreviousLogsFile, opts)
	case log != nil && log.LogsFile != nil:
		opts.Follow = opts.Follow && log.Follow != nil && *log.Follow
		e.copyLog(w, r, *log.LogsFile, opts)
	default:
		fmt.Fprintf(w, "%s Container %s is simulated: it writes nothing, and no Logs document says what it would.\n",
			usage.Started(pod, container).UTC().Format(time.RFC3339), container)
	}
}

// copyLog sends a file in the format of the CRI.
func (e *Endpoint) copyLog(w http.ResponseWriter, r *http.Request, path string, opts logs.Options) {
	out := flusher{w, http.NewResponseController(w)}
	err := e.logs.Read(r.Context(), logs.Request{
		Path: path, Options: opts, Running: func(context.Context) (bool, error) { return true, nil },
	}, out)
	if err != nil && r.Context().Err() == nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// flusher sends each piece at once.
type flusher struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (f flusher) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	if err != nil {
		return n, err
	}
	return n, f.control.Flush()
}

// logOptions reads what the API server has checked already.
func logOptions(r *http.Request, now time.Time) (o logs.Options, previous bool, err error) {
	q := r.URL.Query()
	flag := func(name string) bool {
		on, _ := strconv.ParseBool(q.Get(name)) // empty is false
		return on
	}
	number := func(name string) *int64 {
		if q.Get(name) == "" {
			return nil
		}
		n, parseErr := strconv.ParseInt(q.Get(name), 10, 64)
		if parseErr != nil || n < 0 {
			err = fmt.Errorf("%s: Invalid value: %q", name, q.Get(name))
		}
		return &n
	}
	o = logs.Options{Follow: flag("follow"), Timestamps: flag("timestamps"), Tail: number("tailLines"), LimitBytes: number("limitBytes")}
	if s := number("sinceSeconds"); s != nil {
		o.Since = now.Add(-time.Duration(*s) * time.Second)
	}
	if text := q.Get("sinceTime"); text != "" {
		if o.Since, err = time.Parse(time.RFC3339, text); err != nil {
			err = fmt.Errorf("sinceTime: Invalid value: %q", text)
		}
	}
	return o, flag("previous"), err
}
