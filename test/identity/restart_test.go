package identity

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// many is how many objects a server has to load. PROA_RESTART_OBJECTS chooses
// another number, such as 100000, which takes a minute.
var many = sizeFrom("PROA_RESTART_OBJECTS", 20_000)

// sizeFrom reads a size from the environment.
func sizeFrom(variable string, normal int) int {
	if n, err := strconv.Atoi(os.Getenv(variable)); err == nil && n > 0 {
		return n
	}
	return normal
}

// whole is what a list of one object says about all of them.
type whole struct {
	Kind     string
	Metadata struct {
		ResourceVersion    string
		RemainingItemCount int64
	}
	Items []any
}

// fill makes many small objects and returns the newest revision.
func (s *server) fill(t *testing.T) int64 {
	t.Helper()
	var writers sync.WaitGroup
	failed := make(chan error, 16)
	for w := range cap(failed) {
		client := s.admin(t).CoreV1().RESTClient()
		writers.Go(func() {
			for i := w; i < many; i += cap(failed) {
				body := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c%06d"}}`, i)
				if err := client.Post().Namespace("kube-public").Resource("configmaps").Body(body).Do(t.Context()).Error(); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	writers.Wait()
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
	raw, err := s.admin(t).CoreV1().RESTClient().Get().Namespace("kube-public").Resource("configmaps").Param("limit", "1").DoRaw(t.Context())
	var list whole
	if err := errors.Join(err, json.Unmarshal(raw, &list)); err != nil {
		t.Fatal(err)
	}
	newest, err := strconv.ParseInt(list.Metadata.ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return newest
}

// While a server loads what it has, hundreds ask it. Until it listens they are not
// connected; then each gets the whole truth, or is told to come again.
func TestNobodyIsToldHalfTheTruthWhileAServerStarts(t *testing.T) {
	t.Parallel()
	s := start(t, "--token-auth-file", file(t, "tokens.csv", "t,jane,1,\"system:masters\"\n"))
	newest := s.fill(t)
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.gone
	const askers = 500
	const path = "/api/v1/namespaces/kube-public/configmaps"
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var asking sync.WaitGroup
	wrong := make(chan string, askers)
	for i := range askers {
		judge, query := judgeList, "?limit=1"
		if i%2 == 1 {
			judge, query = judgeWatch, "?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&fieldSelector=metadata.name%3Dc"+fmt.Sprintf("%06d", many-1)
		}
		asking.Go(func() {
			if err := askUntilAnswered(ctx, transport, s.port, path+query, func(body io.Reader) error { return judge(body, newest) }); err != nil {
				wrong <- err.Error()
			}
		})
	}
	if err := s.begin(); err != nil {
		t.Fatal(err)
	}
	asking.Wait()
	close(wrong)
	for text := range wrong {
		t.Error(text)
	}
	if t.Failed() {
		t.Logf("the directory is %s", filepath.Base(s.dir))
	}
}

// askUntilAnswered asks again while nobody listens or the server says so.
func askUntilAnswered(ctx context.Context, transport http.RoundTripper, port int, path string, judge func(io.Reader) error) error {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d%s", port, path), nil)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer t")
		resp, err := transport.RoundTrip(req)
		wait := 20 * time.Millisecond
		switch {
		case err == nil && resp.StatusCode == http.StatusOK:
			defer resp.Body.Close()
			return judge(resp.Body)
		case err == nil && resp.StatusCode == http.StatusTooManyRequests:
			resp.Body.Close()
			seconds, bad := strconv.Atoi(resp.Header.Get("Retry-After"))
			if bad != nil || seconds < 1 {
				return fmt.Errorf("429 with Retry-After %q", resp.Header.Get("Retry-After"))
			}
			wait = time.Duration(seconds) * time.Second
		case err == nil:
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			return fmt.Errorf("%s: %s", resp.Status, text)
		case ctx.Err() == nil && !refusedConnection(err):
			return fmt.Errorf("not answered: %w", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// refusedConnection says that nobody listened.
func refusedConnection(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// judgeList refuses a list that is not of all objects, or older than the newest.
func judgeList(body io.Reader, newest int64) error {
	var list whole
	if err := json.NewDecoder(body).Decode(&list); err != nil {
		return err
	}
	revision, err := strconv.ParseInt(list.Metadata.ResourceVersion, 10, 64)
	if err != nil || revision < newest || int64(len(list.Items))+list.Metadata.RemainingItemCount < int64(many) {
		return fmt.Errorf("a list of %d and %d more at revision %q, of %d at %d", len(list.Items), list.Metadata.RemainingItemCount, list.Metadata.ResourceVersion, many, newest)
	}
	return nil
}

// judgeWatch refuses a watch whose first state lacks the last object.
func judgeWatch(body io.Reader, newest int64) error {
	events := json.NewDecoder(body)
	found := false
	for {
		var event struct {
			Type   string
			Object struct {
				Metadata struct {
					Name, ResourceVersion string
					Annotations           map[string]string
				}
			}
		}
		if err := events.Decode(&event); err != nil {
			return fmt.Errorf("a watch ends before its first state does: %w", err)
		}
		meta := event.Object.Metadata
		switch {
		case event.Type == "ADDED" && strings.HasPrefix(meta.Name, "c"):
			found = true
		case event.Type == "BOOKMARK" && meta.Annotations["k8s.io/initial-events-end"] == "true":
			if revision, err := strconv.ParseInt(meta.ResourceVersion, 10, 64); err != nil || revision < newest || !found {
				return fmt.Errorf("a first state at %q, of %d; the last object is in it: %t", meta.ResourceVersion, newest, found)
			}
			return nil
		default:
			return fmt.Errorf("a watch begins with %+v", event)
		}
	}
}
