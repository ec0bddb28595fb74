package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"proa/internal/kubelet/logs"
)

// containerLogs serves one container's log as plain text, chunk by chunk.
func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	opts, previous, err := logOptions(r.URL.Query(), s.c.Clock.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	name, container := r.PathValue("pod"), r.PathValue("container")
	pod, err := s.pod(r)
	if err != nil {
		http.Error(w, fmt.Sprintf("pod %q does not exist", name), http.StatusNotFound)
		return
	}
	if !hasContainer(pod, container) {
		http.Error(w, fmt.Sprintf("container %q not found in pod %q", container, name), http.StatusNotFound)
		return
	}
	req, err := s.logRequest(r.Context(), pod, container, previous, opts)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	out := &flusher{w: w, c: http.NewResponseController(w)}
	if opts.Follow {
		w.WriteHeader(http.StatusOK) // the client sees the stream begin before the first line
		if err := out.c.Flush(); err != nil {
			return
		}
	}
	err = s.c.Logs.Read(r.Context(), req, out)
	if err != nil && !out.began && !opts.Follow {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

func (s *Server) logRequest(ctx context.Context, pod *corev1.Pod, container string, previous bool, opts logs.Options) (logs.Request, error) {
	id, err := loggedContainer(pod, container, previous)
	if err != nil {
		return logs.Request{}, err
	}
	status, err := s.container(ctx, id)
	if err != nil {
		return logs.Request{}, err
	}
	return logs.Request{
		Path: status.GetLogPath(), Options: opts,
		Running: func(ctx context.Context) (bool, error) {
			status, err := s.container(ctx, id)
			return status.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING, err
		},
	}, nil
}

func (s *Server) container(ctx context.Context, id string) (*runtimeapi.ContainerStatus, error) {
	resp, err := s.c.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return nil, fmt.Errorf("failed to get container status %q: %w", id, err)
	}
	return resp.GetStatus(), nil
}

// loggedContainer picks the incarnation of a container whose log is meant.
func loggedContainer(pod *corev1.Pod, container string, previous bool) (string, error) {
	st := containerStatus(pod, container)
	if st == nil {
		return "", fmt.Errorf("container %q in pod %q is not available", container, pod.Name)
	}
	last := ""
	if t := st.LastTerminationState.Terminated; t != nil {
		last = t.ContainerID
	}
	switch {
	case previous && last == "":
		return "", fmt.Errorf("previous terminated container %q in pod %q not found", container, pod.Name)
	case previous:
		return runtimeID(last), nil
	case st.State.Running != nil:
		return runtimeID(st.ContainerID), nil
	case st.State.Terminated != nil && st.State.Terminated.ContainerID != "":
		return runtimeID(st.State.Terminated.ContainerID), nil
	case last != "":
		return runtimeID(last), nil
	case st.State.Terminated != nil || st.LastTerminationState.Terminated != nil:
		return "", fmt.Errorf("container %q in pod %q is terminated", container, pod.Name)
	case st.State.Waiting != nil:
		return "", fmt.Errorf("container %q in pod %q is waiting to start: %s", container, pod.Name, waitingFor(st.State.Waiting.Reason))
	}
	return "", fmt.Errorf("container %q in pod %q is waiting to start - no logs yet", container, pod.Name)
}

func waitingFor(reason string) string {
	switch reason {
	case "ErrImagePull":
		return "image can't be pulled"
	case "ImagePullBackOff":
		return "trying and failing to pull image"
	}
	return reason
}

// logOptions reads the query that PodLogOptions become.
func logOptions(q url.Values, now time.Time) (opts logs.Options, previous bool, err error) {
	var errs []error
	number := func(name string, least int64) *int64 {
		text := q.Get(name)
		if text == "" {
			return nil
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < least {
			errs = append(errs, fmt.Errorf("%s: Invalid value: %q: must be greater than or equal to %d", name, text, least))
			return nil
		}
		return &n
	}
	flag := func(name string) bool {
		on, err := strconv.ParseBool(q.Get(name))
		if err != nil && q.Get(name) != "" {
			errs = append(errs, fmt.Errorf("%s: Invalid value: %q", name, q.Get(name)))
		}
		return on
	}
	opts = logs.Options{
		Follow: flag("follow"), Timestamps: flag("timestamps"), Tail: number("tailLines", 0), LimitBytes: number("limitBytes", 1),
	}
	previous = flag("previous")
	since := number("sinceSeconds", 1)
	if since != nil {
		opts.Since = now.Add(-time.Duration(*since) * time.Second)
	}
	if text := q.Get("sinceTime"); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		switch {
		case since != nil:
			errs = append(errs, errors.New("at most one of `sinceTime` or `sinceSeconds` may be specified"))
		case err != nil:
			errs = append(errs, fmt.Errorf("sinceTime: Invalid value: %q", text))
		}
		opts.Since = at
	}
	switch stream := q.Get("stream"); stream {
	case "", corev1.LogStreamAll:
	case corev1.LogStreamStdout:
		opts.Stream = logs.Stdout
	case corev1.LogStreamStderr:
		opts.Stream = logs.Stderr
	default:
		errs = append(errs, fmt.Errorf("stream: Unsupported value: %q: supported values: %q, %q, %q", stream, corev1.LogStreamAll, corev1.LogStreamStdout, corev1.LogStreamStderr))
	}
	return opts, previous, errors.Join(errs...)
}

// flusher sends each piece at once: the reader already gathers small ones.
type flusher struct {
	w     http.ResponseWriter
	c     *http.ResponseController
	began bool
}

func (f *flusher) Write(p []byte) (int, error) {
	f.began = true
	n, err := f.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, f.c.Flush()
}
