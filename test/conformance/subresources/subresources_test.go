// Package subresources replays requests to everything below objects (binding,
// eviction, scale, tokens, approval, finalize, resize, ephemeral containers,
// status), to reviews and for Tables. What is expected is what upstream's API
// server answered to the same requests. A refusal is held in full; of any other
// answer a digest is, since it is the whole object.
package subresources

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"proa/pkg/proatest"
)

// request is one request with what upstream answered.
type request struct {
	Do     string          `json:"do"`     // method and path
	Body   json.RawMessage `json:"body"`   // JSON
	Text   *string         `json:"text"`   // a body as it is
	Type   string          `json:"type"`   // of the body; default JSON, merge patch for patches
	Accept string          `json:"accept"` // default JSON
	Save   string          `json:"save"`   // names the answer for later ${name.path}
	Until  int             `json:"until"`  // ask again until it is this code

	Code       int            `json:"code"`    // 0: the answer is not held
	Refused    map[string]any `json:"refused"` // reason, message and details of a Status
	Is         string         `json:"is"`      // digest of any other answer
	Warnings   []string       `json:"warnings"`
	RetryAfter string         `json:"retryAfter"`
}

func TestAnswersAreUpstreams(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var requests []request
			if err := yaml.UnmarshalStrict(text, &requests); err != nil {
				t.Fatal(err)
			}
			s := start(t)
			for i, r := range requests {
				s.replay(t, i, r)
			}
		})
	}
}

// server is one server with the answers that later requests refer to.
type server struct {
	client *http.Client
	host   string
	saved  map[string]any
}

func start(t *testing.T) *server {
	t.Helper()
	access := proatest.Start(t, proatest.Options{})
	client, err := rest.HTTPClientFor(access)
	if err != nil {
		t.Fatal(err)
	}
	return &server{client: client, host: access.Host, saved: map[string]any{}}
}

func (s *server) replay(t *testing.T, number int, r request) {
	t.Helper()
	got, header, answer := s.do(t, r)
	for deadline := time.Now().Add(10 * time.Second); r.Until != 0 && got != r.Until && time.Now().Before(deadline); {
		got, header, answer = s.do(t, r)
	}
	if r.Save != "" {
		s.saved[r.Save] = answer
	}
	if r.Code == 0 {
		return
	}
	answer = scrubbed(answer, "")
	text := canonical(answer)
	what := fmt.Sprintf("request %d: %s %s", number, r.Do, r.Body)
	if got != r.Code {
		t.Errorf("%.300s\n%d, upstream answers %d: %.600s", what, got, r.Code, text)
		return
	}
	if diff := cmp.Diff(r.Warnings, scrubbedAll(header.Values("Warning"))); diff != "" {
		t.Errorf("%.300s: warnings\n%s", what, diff)
	}
	if diff := cmp.Diff(r.RetryAfter, header.Get("Retry-After")); diff != "" {
		t.Errorf("%.300s: Retry-After\n%s", what, diff)
	}
	if r.Refused == nil {
		if digest := digestOf(text); digest != r.Is {
			t.Errorf("%.300s\nis %s, upstream's is %s: %s", what, digest, r.Is, text)
		}
		return
	}
	status, _ := answer.(map[string]any)
	refused := map[string]any{}
	for _, key := range []string{"reason", "message", "details"} {
		if v, ok := status[key]; ok && !isEmpty(v) {
			refused[key] = plain(t, v)
		}
	}
	if diff := cmp.Diff(r.Refused, refused); diff != "" {
		t.Errorf("%.300s\n%s", what, diff)
	}
}

func isEmpty(v any) bool {
	object, ok := v.(map[string]any)
	return ok && len(object) == 0
}

// plain turns numbers into those of a YAML document.
func plain(t *testing.T, v any) any {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out any
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func (s *server) do(t *testing.T, r request) (int, http.Header, any) {
	t.Helper()
	method, path, _ := strings.Cut(s.fill(r.Do), " ")
	var body io.Reader
	switch {
	case r.Text != nil:
		body = strings.NewReader(s.fill(*r.Text))
	case r.Body != nil:
		body = strings.NewReader(s.fill(string(r.Body)))
	}
	q, err := http.NewRequestWithContext(t.Context(), method, s.host+path, body)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("User-Agent", "tester/1")
	q.Header.Set("Accept", "application/json")
	if r.Accept != "" {
		q.Header.Set("Accept", r.Accept)
	}
	switch {
	case r.Type != "":
		q.Header.Set("Content-Type", r.Type)
	case body != nil && method == http.MethodPatch:
		q.Header.Set("Content-Type", "application/merge-patch+json")
	case body != nil:
		q.Header.Set("Content-Type", "application/json")
	}
	a, err := s.client.Do(q)
	if err != nil {
		t.Fatalf("%s: %v", r.Do, err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatalf("%s: %v", r.Do, err)
	}
	var answer any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&answer); err != nil {
		answer = map[string]any{"raw": string(text[:min(len(text), 400)])}
	}
	return a.StatusCode, a.Header, answer
}

var reference = regexp.MustCompile(`\$\{([\w.\[\]-]+)\}`)

// fill puts values of earlier answers where a text refers to them.
func (s *server) fill(text string) string {
	return reference.ReplaceAllStringFunc(text, func(ref string) string {
		name, path, _ := strings.Cut(ref[2:len(ref)-1], ".")
		v := s.saved[name]
		for _, key := range strings.FieldsFunc(path, func(c rune) bool { return strings.ContainsRune(".[]", c) }) {
			switch at := v.(type) {
			case map[string]any:
				v = at[key]
			case []any:
				i, err := strconv.Atoi(key)
				if err != nil || i >= len(at) {
					return "<none>"
				}
				v = at[i]
			default:
				return "<none>"
			}
		}
		if v == nil {
			return "<none>"
		}
		return fmt.Sprint(v)
	})
}

// canonical is a value as text in which nothing but the value decides.
func canonical(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // it was JSON before
	}
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'})
}

func digestOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:12]
}

var (
	uids     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	times    = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`)
	versions = []*regexp.Regexp{
		regexp.MustCompile(`(ResourceVersion in object meta: )\d+`),
		regexp.MustCompile(`(resourceVersion\\*":\\*")\d+`),
		regexp.MustCompile(`(in record \()\d+`),
		regexp.MustCompile(`(current: )\d+`),
	}
	ages = regexp.MustCompile(`^(\d+[smhdy])+$`)
	ago  = regexp.MustCompile(`\([0-9smhdy]+ ago\)`)
)

// unheld are fields that say who asks, or what the server chose.
var unheld = map[string]bool{"username": true, "groups": true, "extra": true, "jwks_uri": true, "clusterIP": true, "clusterIPs": true}

// scrubbed replaces what differs from run to run.
func scrubbed(v any, key string) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, item := range v {
			if !unheld[k] {
				out[k] = scrubbed(item, k)
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = scrubbed(item, key)
		}
		if key == "managedFields" { // by time, which says nothing here
			slices.SortFunc(out, func(a, b any) int { return bytes.Compare(canonical(a), canonical(b)) })
		}
		return out
	case string:
		return scrubbedText(v, key)
	}
	return v
}

func scrubbedText(s, key string) string {
	switch {
	case key == "resourceVersion" && s != "" && s != "0":
		return "<rv>"
	case key == "token":
		return "<token>"
	}
	s = uids.ReplaceAllString(s, "<uid>")
	s = times.ReplaceAllStringFunc(s, func(t string) string {
		for _, year := range []string{"2001", "2020", "2030"} { // those of requests
			if strings.HasPrefix(t, year) {
				return t
			}
		}
		return "<time>"
	})
	for _, version := range versions {
		s = version.ReplaceAllString(s, "${1}<rv>")
	}
	s = strings.ReplaceAll(s, "https://kubernetes.default.svc.cluster.local", "<issuer>")
	if key == "cells" {
		if s = ago.ReplaceAllString(s, "(<age> ago)"); ages.MatchString(s) {
			return "<age>"
		}
	}
	return s
}

func scrubbedAll(list []string) []string {
	var out []string
	for _, s := range list {
		out = append(out, scrubbedText(s, ""))
	}
	return out
}
