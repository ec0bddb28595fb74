// Package machinery sends requests of every combination of options over HTTP and
// compares what is answered with what upstream's API server answers to the same.
//
// The tables in testdata are upstream's answers. A table is made anew by
//
//	go test ./test/conformance/machinery -run Reads -args -peer https://127.0.0.1:6443 -keys DIR -compacted 1
//
// where DIR holds admin.crt and admin.key of a member of system:masters, and
// the etcd behind the peer has compacted the revision named.
package machinery

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"proa/pkg/proatest"
)

var (
	peer      = flag.String("peer", "", "URL of an API server whose answers become the tables")
	keys      = flag.String("keys", "", "directory with the peer's admin.crt and admin.key")
	compacted = flag.String("compacted", "1", "a revision that the peer has compacted")
)

// patience is how long a test waits for what must come.
const patience = time.Minute

// server is one API server and the words that stand for its numbers.
type server struct {
	client *http.Client
	host   string
	words  map[string]string // by resourceVersion
}

func start(t *testing.T, o proatest.Options) *server {
	t.Helper()
	if *peer != "" {
		return startPeer(t)
	}
	access := proatest.Start(t, o)
	client, err := rest.HTTPClientFor(access)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	return &server{client: client, host: access.Host, words: map[string]string{}}
}

func startPeer(t *testing.T) *server {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(*keys, "admin.crt"), filepath.Join(*keys, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{
		ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true},
	}
	return &server{client: &http.Client{Transport: transport}, host: *peer, words: map[string]string{}}
}

// request is one line of a table.
type request struct {
	method, path string
	accept, kind string // of the answer and of the body; none: JSON
	body         string
}

func (s *server) open(ctx context.Context, q request) (*http.Response, error) {
	var body io.Reader
	if q.body != "" {
		body = strings.NewReader(q.body)
	}
	r, err := http.NewRequestWithContext(ctx, q.method, s.host+q.path, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json")
	if q.accept != "" {
		r.Header.Set("Accept", q.accept)
	}
	switch {
	case q.kind != "":
		r.Header.Set("Content-Type", q.kind)
	case q.method == http.MethodPatch:
		r.Header.Set("Content-Type", "application/merge-patch+json")
	case q.body != "":
		r.Header.Set("Content-Type", "application/json")
	}
	return s.client.Do(r)
}

// answer is what came back, as an object where it is one.
type answer struct {
	code     int
	header   http.Header
	text     []byte
	object   map[string]any
	warnings []string
}

func (s *server) do(t *testing.T, q request) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	resp, err := s.open(ctx, q)
	if err != nil {
		t.Fatalf("%s %s: %v", q.method, q.path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", q.method, q.path, err)
	}
	a := answer{code: resp.StatusCode, header: resp.Header, text: text, warnings: resp.Header.Values("Warning")}
	_ = json.Unmarshal(text, &a.object) // what is no object has none
	return a
}

// must is do that expects success.
func (s *server) must(t *testing.T, q request) map[string]any {
	t.Helper()
	a := s.do(t, q)
	if a.code >= http.StatusMultipleChoices {
		t.Fatalf("%s %s: %d %s", q.method, q.path, a.code, a.text)
	}
	return a.object
}

func (s *server) create(t *testing.T, collection string, object map[string]any) map[string]any {
	t.Helper()
	return s.must(t, request{method: http.MethodPost, path: collection, body: text(object)})
}

func text(object any) string {
	out, err := json.Marshal(object)
	if err != nil {
		panic(err) // maps and lists of plain values
	}
	return string(out)
}

func meta(object map[string]any) map[string]any {
	m, _ := object["metadata"].(map[string]any)
	return m
}

func versionOf(object map[string]any) string {
	v, _ := meta(object)["resourceVersion"].(string)
	return v
}

// status tells an error: code, reason, message, and what is in its details.
func (s *server) status(a answer) string {
	var st metav1.Status
	if err := json.Unmarshal(a.text, &st); err != nil || st.Kind != "Status" {
		return fmt.Sprintf("%d %q", a.code, a.text)
	}
	out := fmt.Sprintf("%d %s: %s", a.code, st.Reason, s.plain(st.Message))
	if d := st.Details; d != nil {
		if d.RetryAfterSeconds > 0 {
			out += fmt.Sprintf("; retry after %d", d.RetryAfterSeconds)
		}
		for _, c := range d.Causes {
			out += fmt.Sprintf("; cause %s %s", c.Type, c.Field)
		}
	}
	if st.Continue != "" {
		out += "; a continue token"
	}
	return out
}

var (
	reached = regexp.MustCompile(`current: \d+`)
	number  = regexp.MustCompile(`\d{2,}`)
	uid     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)
)

// plain puts words for what differs from run to run.
func (s *server) plain(text string) string {
	text = uid.ReplaceAllString(text, "{uid}")
	if before, _, long := strings.Cut(text, "patch: Invalid value: "); long { // the whole object follows
		text = before + "patch: Invalid value"
	}
	text = reached.ReplaceAllString(text, "current: {N}")
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\x00", "{zero}"), "\n", " ")
	return number.ReplaceAllStringFunc(text, func(n string) string {
		if word, ok := s.words[n]; ok {
			return word
		}
		if word, ok := s.words[strings.TrimLeft(n, "0")]; ok {
			return "0" + word
		}
		if v, _ := strconv.Atoi(n); len(s.words) > 0 && v > 1000 || s.newer(n) {
			return "{N}"
		}
		return n
	})
}

// newer says that a number is a revision after all that have a word.
func (s *server) newer(n string) bool {
	v, err := strconv.Atoi(n)
	if err != nil || len(s.words) == 0 {
		return false
	}
	for known := range s.words {
		if k, _ := strconv.Atoi(known); k > v && k != future {
			return false
		}
	}
	return v > 600 // codes and limits are not revisions
}

// future is a revision that no server reaches.
const future = 999999999

// table is answers by request.
type table struct {
	mu   sync.Mutex // guards rows
	rows map[string]string
}

func (b *table) add(request, answer string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rows == nil {
		b.rows = map[string]string{}
	}
	b.rows[request] = answer
}

// compare holds a table against the one in testdata, or writes that when there is
// a peer. The file has each answer with the requests that get it.
func (b *table) compare(t *testing.T, name string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *peer != "" {
		if err := os.WriteFile(file, b.encode(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := decode(string(data))
	for _, q := range slices.Sorted(keysOf(b.rows, want)) {
		if w := ours(q, want[q]); w != b.rows[q] && w != "" {
			t.Errorf("%s\n\twant %s\n\tgot  %s", q, w, b.rows[q])
		}
	}
}

// ours is the answer to a request where it is not to be upstream's; none: any.
func ours(request, answer string) string {
	switch {
	case strings.HasPrefix(answer, "200 ERROR 410 Expired: too old resource version"):
		return "410 Expired: The resourceVersion for the provided watch is too old." // told before the stream begins
	case strings.HasPrefix(request, "list?resourceVersion=0&") && strings.Contains(request, "limit=1"):
		// Upstream's cache passes over the limit of a list of any state.
		if strings.HasPrefix(answer, "200 b c") {
			return "200 b at {current}; a continue token; 1 remain"
		}
		if strings.HasPrefix(answer, "200 a b c") {
			return "200 a at {current}; a continue token; 2 remain"
		}
	case strings.Contains(answer, "in scheme \"pkg/runtime/"):
		return "" // which tells where upstream's source is
	case strings.HasSuffix(request, " as application/*"):
		return "" // which is JSON here, as a client may expect
	case strings.HasSuffix(request, "fieldSelector=metadata.name!=a&limit=1&labelSelector=app=x"):
		return strings.TrimSuffix(answer, "; a continue token") // of a page on which nothing would be
	}
	return strings.Replace(answer, ", application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch", "", 1)
}

func keysOf(maps ...map[string]string) func(yield func(string) bool) {
	all := map[string]bool{}
	for _, m := range maps {
		for k := range m {
			all[k] = true
		}
	}
	return func(yield func(string) bool) {
		for k := range all {
			if !yield(k) {
				return
			}
		}
	}
}

func (b *table) encode() []byte {
	by := map[string][]string{}
	for q, a := range b.rows {
		by[a] = append(by[a], q)
	}
	var out bytes.Buffer
	answers := slices.Collect(keysOf(b.answers()))
	slices.Sort(answers)
	for _, a := range answers {
		fmt.Fprintln(&out, a)
		slices.Sort(by[a])
		for _, q := range by[a] {
			fmt.Fprintf(&out, "\t%s\n", q)
		}
	}
	return out.Bytes()
}

func (b *table) answers() map[string]string {
	all := map[string]string{}
	for _, a := range b.rows {
		all[a] = a
	}
	return all
}

func decode(file string) map[string]string {
	rows, answer := map[string]string{}, ""
	for line := range strings.Lines(file) {
		line = strings.TrimSuffix(line, "\n")
		if q, ok := strings.CutPrefix(line, "\t"); ok {
			rows[q] = answer
			continue
		}
		answer = line
	}
	return rows
}

// each calls f for every element, so many at a time.
func each[T any](all []T, atOnce int, f func(T)) {
	var running sync.WaitGroup
	places := make(chan struct{}, atOnce)
	for _, v := range all {
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			f(v)
		})
	}
	running.Wait()
}
