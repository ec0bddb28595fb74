package connect

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"proa/internal/apiserver/request"
	"proa/internal/store"
)

// log copies a container's log. A pod that runs nowhere yet has none: 204.
func (c *Connector) log(w http.ResponseWriter, r *http.Request, s *store.Snapshot, info *request.Info, o *corev1.PodLogOptions) error {
	if errs := validateLogOptions(o); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "PodLogOptions"}, info.Name, errs)
	}
	pod, err := find[*corev1.Pod](s, podsResource, info.Namespace, info.Name)
	if err != nil {
		return err
	}
	name, err := container(pod, o.Container)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName == "" {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	t, err := c.streamTarget(s, info, "containerLogs", name)
	if err != nil {
		return err
	}
	t.url.RawQuery = logQuery(o).Encode()
	resp, err := c.get(r, t)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if wsstream.IsWebSocketRequest(r) {
		sendMessages(w, r, resp.Body)
		return nil
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	copyFlushing(w, resp.Body, o.Follow)
	return nil
}

func logQuery(o *corev1.PodLogOptions) url.Values {
	q := url.Values{}
	for name, on := range map[string]bool{"follow": o.Follow, "previous": o.Previous, "timestamps": o.Timestamps} {
		if on {
			q.Set(name, "true")
		}
	}
	for name, n := range map[string]*int64{"sinceSeconds": o.SinceSeconds, "tailLines": o.TailLines, "limitBytes": o.LimitBytes} {
		if n != nil {
			q.Set(name, strconv.FormatInt(*n, 10))
		}
	}
	if o.SinceTime != nil {
		q.Set("sinceTime", o.SinceTime.Format(time.RFC3339))
	}
	if o.Stream != nil {
		q.Set("stream", *o.Stream)
	}
	return q
}

func validateLogOptions(o *corev1.PodLogOptions) field.ErrorList {
	var errs field.ErrorList
	if o.TailLines != nil && *o.TailLines < 0 {
		errs = append(errs, field.Invalid(field.NewPath("tailLines"), *o.TailLines, "must be greater than or equal to 0"))
	}
	if o.LimitBytes != nil && *o.LimitBytes < 1 {
		errs = append(errs, field.Invalid(field.NewPath("limitBytes"), *o.LimitBytes, "must be greater than 0"))
	}
	switch {
	case o.SinceSeconds != nil && o.SinceTime != nil:
		errs = append(errs, field.Forbidden(field.NewPath(""), "at most one of `sinceTime` or `sinceSeconds` may be specified"))
	case o.SinceSeconds != nil && *o.SinceSeconds < 1:
		errs = append(errs, field.Invalid(field.NewPath("sinceSeconds"), *o.SinceSeconds, "must be greater than 0"))
	}
	return append(errs, validateLogStream(o)...)
}

func validateLogStream(o *corev1.PodLogOptions) field.ErrorList {
	if o.Stream == nil {
		return nil
	}
	switch *o.Stream {
	case corev1.LogStreamAll:
		return nil
	case corev1.LogStreamStdout, corev1.LogStreamStderr:
		if o.TailLines != nil {
			return field.ErrorList{field.Forbidden(field.NewPath(""), "`tailLines` and specific `stream` are mutually exclusive for now")}
		}
		return nil
	}
	return field.ErrorList{field.NotSupported(field.NewPath("stream"), *o.Stream, []string{corev1.LogStreamAll, corev1.LogStreamStdout, corev1.LogStreamStderr})}
}

// get asks a kubelet and turns its refusal into a Status.
func (c *Connector) get(r *http.Request, t target) (*http.Response, error) {
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, t.url.String(), nil)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	resp, err := t.transport.RoundTrip(req) // a RoundTripper does not follow redirects
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("Get %q: %w", t.url, err))
	}
	if resp.StatusCode >= 200 && resp.StatusCode <= http.StatusPartialContent {
		return resp, nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 50_000))
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return nil, refusal(resp.StatusCode, string(body))
}

func refusal(code int, text string) error {
	switch code {
	case http.StatusInternalServerError:
		return apierrors.NewInternalError(fmt.Errorf("%s", text))
	case http.StatusBadRequest:
		return apierrors.NewBadRequest(text)
	}
	return apierrors.NewGenericServerResponse(code, "", schema.GroupResource{Resource: "pods/log"}, "", text, 0, false)
}

// copyFlushing copies until either side ends. A followed log is passed on as it
// comes.
func copyFlushing(w http.ResponseWriter, from io.Reader, flush bool) {
	if !flush {
		io.Copy(w, from) // an error means that one side is gone: nobody to tell
		return
	}
	control := http.NewResponseController(w)
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				return
			}
			if control.Flush() != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
