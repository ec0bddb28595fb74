package machinery

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/pkg/proatest"
)

// space is a namespace with three ConfigMaps, a, b and c, and the values that the
// options of a read can have there.
type space struct {
	*server
	collection string
	values     map[string]string // by the word in a table
}

const namespaces = "/api/v1/namespaces"

func newSpace(t *testing.T) *space {
	t.Helper()
	s := &space{server: start(t, proatest.Options{}), values: map[string]string{}}
	ns := s.create(t, namespaces, map[string]any{"metadata": map[string]any{"generateName": "m-"}})
	s.collection = namespaces + "/" + meta(ns)["name"].(string) + "/configmaps"
	s.name("{compacted}", s.forget(t))
	s.name("{old}", s.configMap(t, "a", "x"))
	s.name("{middle}", s.configMap(t, "b", "x"))
	s.name("{current}", s.configMap(t, "c", "y"))
	s.name("{future}", strconv.Itoa(future))
	s.values["{token}"] = s.token(t, s.collection)
	s.values["{elsewhere}"] = s.token(t, "/api/v1/configmaps")
	past, _ := strconv.Atoi(s.values["{compacted}"])
	s.values["{expired}"] = token("meta.k8s.io/v1", past, "a\x00")
	s.values["{inconsistent}"] = token("meta.k8s.io/v1", -1, "a\x00")
	s.values["{upwards}"] = token("meta.k8s.io/v1", -1, "../../secrets/a\x00")
	s.values["{versionless}"] = token("", -1, "a\x00")
	s.values["{nothing}"] = token("meta.k8s.io/v1", 0, "a\x00")
	s.values["{startless}"] = token("meta.k8s.io/v1", -1, "")
	s.values["{later}"] = token("meta.k8s.io/v1", future, "a\x00")
	return s
}

func token(version string, revision int, start string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(text(map[string]any{"v": version, "rv": revision, "start": start})))
}

func (s *space) name(word, version string) { s.values[word], s.words[version] = version, word }

func (s *space) configMap(t *testing.T, name, app string) string {
	t.Helper()
	return versionOf(s.create(t, s.collection, map[string]any{
		"metadata": map[string]any{"name": name, "labels": map[string]any{"app": app}},
	}))
}

// forget returns a revision that the server has no history of. A server in memory
// forgets what 16 MiB of changes ago was.
func (s *space) forget(t *testing.T) string {
	t.Helper()
	if *peer != "" {
		return *compacted
	}
	large := func(i int) map[string]any {
		return map[string]any{"metadata": map[string]any{"name": "large"}, "data": map[string]any{"a": strings.Repeat(strconv.Itoa(i%10), 1<<20-64)}}
	}
	first := versionOf(s.create(t, s.collection, large(0)))
	for i := range 20 {
		s.must(t, request{method: http.MethodPut, path: s.collection + "/large", body: text(large(i + 1))})
	}
	s.must(t, request{method: http.MethodDelete, path: s.collection + "/large"})
	return first
}

func (s *space) token(t *testing.T, path string) string {
	t.Helper()
	c, ok := meta(s.must(t, request{method: http.MethodGet, path: path + "?limit=1"}))["continue"].(string)
	if !ok {
		t.Fatalf("%s has no second page", path)
	}
	return c
}

// fill puts a query's values in the place of its words.
func (s *space) fill(query string) string {
	pairs := strings.Split(query, "&")
	for i, pair := range pairs {
		name, v, _ := strings.Cut(pair, "=")
		for word, value := range s.values {
			v = strings.ReplaceAll(v, word, value)
		}
		pairs[i] = name + "=" + url.QueryEscape(v)
	}
	return strings.Join(pairs, "&")
}

// option is a parameter and the values that it takes; "-" is its absence.
type option struct {
	name   string
	values []string
}

// queries are all combinations of options.
func queries(options ...option) []string {
	all := []string{""}
	for _, o := range options {
		var next []string
		for _, q := range all {
			for _, v := range o.values {
				switch {
				case v == "-":
					next = append(next, q)
				case q == "":
					next = append(next, o.name+"="+v)
				default:
					next = append(next, q+"&"+o.name+"="+v)
				}
			}
		}
		all = next
	}
	return all
}

var (
	versions = option{"resourceVersion", []string{"-", "", "0", "{old}", "{current}", "{future}", "{compacted}", "x", "-1", "00", "0{old}", "1.5", "99999999999999999999"}}
	matches  = option{"resourceVersionMatch", []string{"-", "Exact", "NotOlderThan", "About", ""}}
	limits   = option{"limit", []string{"-", "1"}}
	tokens   = option{"continue", []string{"-", "{token}", "{expired}", "{elsewhere}", "x"}}
	initial  = option{"sendInitialEvents", []string{"-", "true"}}
)

// lists are the queries of lists and of deletions of collections.
func lists() []string {
	all := queries(versions, matches, limits, tokens, initial)
	all = append(all, queries(option{"continue", []string{
		"{inconsistent}", "{upwards}", "{versionless}", "{nothing}", "{startless}", "{later}", "", "%ff", "e30",
	}}, limits)...)
	all = append(all, queries(option{"limit", []string{"-1", "0", "3", "x", "", "9223372036854775808"}}, tokens)...)
	all = append(all, queries(option{"sendInitialEvents", []string{"false", "maybe", "", "1"}}, matches)...)
	all = append(all, queries(option{"labelSelector", []string{
		"app=x", "app==x", "app!=x", "app in (x,y)", "app notin (x)", "app", "!app", "app>1", "app>x", "", ",", "a b", "=x", "app=x,app=y", "app in ()",
		"app=" + strings.Repeat("x", 64), "-app=x", "app=x;y",
	}}, limits)...)
	all = append(all, queries(option{"fieldSelector", []string{
		"metadata.name=a", "metadata.name==a", "metadata.name!=a", "metadata.namespace=other", "metadata.name=a,metadata.name=b",
		"spec.x=1", "data.a=1", "metadata.name", "=", "", "metadata.name=a\\,b", "metadata.name=a\\", "metadata.name>a",
	}}, limits, option{"labelSelector", []string{"-", "app=x"}})...)
	return append(all, "timeoutSeconds=x", "timeoutSeconds=-1", "timeoutSeconds=0", "unknown=1", "pretty=true", "pretty=x",
		"allowWatchBookmarks=true", "allowWatchBookmarks=x", "watch=false", "watch=0", "limit=1&limit=2", "resourceVersion=0&resourceVersion=x")
}

func TestReadsListAsUpstream(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	var got table
	each(lists(), 300, func(q string) {
		a := s.do(t, request{method: http.MethodGet, path: s.collection + "?" + s.fill(q)})
		got.add("list?"+q, s.listed(a))
	})
	got.compare(t, "lists.txt")
}

// listed tells a list.
func (s *space) listed(a answer) string {
	if a.code != http.StatusOK {
		return s.status(a)
	}
	out := "200"
	items, _ := a.object["items"].([]any)
	for _, item := range items {
		out += " " + meta(item.(map[string]any))["name"].(string)
	}
	out += " at " + s.plain(s.at(versionOf(a.object)))
	if c, _ := meta(a.object)["continue"].(string); c != "" {
		out += "; a continue token"
	}
	if n, ok := meta(a.object)["remainingItemCount"]; ok {
		out += fmt.Sprintf("; %v remain", n)
	}
	return out
}

// at is the word of a revision; what came after the newest object's is as good.
func (s *space) at(version string) string {
	v, err := strconv.Atoi(version)
	current, _ := strconv.Atoi(s.values["{current}"])
	if err == nil && v >= current {
		return "{current}"
	}
	return version
}

func TestReadsDeleteCollectionAsUpstream(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	var got table
	each(lists(), 300, func(q string) {
		a := s.do(t, request{method: http.MethodDelete, path: s.collection + "?dryRun=All&" + s.fill(q)})
		got.add("deletecollection?"+q, s.listed(a))
	})
	got.compare(t, "deletecollections.txt")
	left := s.listed(s.do(t, request{method: http.MethodGet, path: s.collection}))
	if left != "200 a b c at {current}" {
		t.Errorf("left after dry runs: %s", left)
	}
}

func TestReadsGetAsUpstream(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	var got table
	all := queries(versions, option{"resourceVersionMatch", []string{"-", "Exact", "About"}})
	all = append(all, "limit=x", "continue=x", "watch=true", "watch=x", "labelSelector=,", "fieldSelector=metadata.name=b", "fieldSelector=metadata.name=a", "fieldSelector=x=1", "export=true", "unknown=1")
	each(all, 50, func(q string) {
		if strings.HasPrefix(q, "watch") {
			return
		}
		a := s.do(t, request{method: http.MethodGet, path: s.collection + "/a?" + s.fill(q)})
		tell := s.status(a)
		if a.code == http.StatusOK {
			tell = "200 " + meta(a.object)["name"].(string) + " at " + s.plain(versionOf(a.object))
		}
		got.add("get?"+q, tell)
	})
	got.compare(t, "gets.txt")
}

// watching are the queries of watches.
func watching() []string {
	all := queries(versions, matches, option{"sendInitialEvents", []string{"-", "true", "false"}}, option{"allowWatchBookmarks", []string{"-", "true"}})
	all = append(all, queries(versions, option{"labelSelector", []string{"app=x", "app!=y"}}, option{"allowWatchBookmarks", []string{"-", "true"}})...)
	all = append(all, queries(option{"continue", []string{"{token}", "x"}}, versions, option{"sendInitialEvents", []string{"-", "true"}})...)
	all = append(all, queries(option{"limit", []string{"1", "x", "-1"}}, option{"resourceVersion", []string{"-", "0", "{old}"}})...)
	return append(all, "timeoutSeconds=x", "allowWatchBookmarks=x", "sendInitialEvents=x", "labelSelector=,", "fieldSelector=x=1",
		"fieldSelector=metadata.name!=b", "watch=0", "unknown=1")
}

// TestReadsWatchAsUpstream compares the events that a watch begins with: all until
// one of an object that is made once the watches are open.
func TestReadsWatchAsUpstream(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var got table
	var opened, ended sync.WaitGroup
	for _, q := range watching() {
		later := strings.Contains(q, "{future}") // may not begin before the last object is there
		if !later {
			opened.Add(1)
		}
		ended.Go(func() {
			tell := s.watch(ctx, t, q, later, sync.OnceFunc(func() {
				if !later {
					opened.Done()
				}
			}))
			got.add("watch?"+q, tell)
		})
	}
	opened.Wait()
	s.configMap(t, "z", "x")
	ended.Wait()
	got.compare(t, "watches.txt")
}

// watch tells the events until the one of z. One that waits for a revision that
// never comes ends by its own time limit.
func (s *space) watch(ctx context.Context, t *testing.T, q string, limited bool, opened func()) string {
	defer opened()
	seconds := "60"
	if limited {
		seconds = "4"
	}
	path := s.collection + "?watch=1&" + s.fill(q)
	if !strings.Contains(q, "timeoutSeconds") {
		path += "&timeoutSeconds=" + seconds
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := s.open(ctx, request{method: http.MethodGet, path: path})
	if err != nil {
		t.Errorf("%s: %v", q, err)
		return ""
	}
	defer resp.Body.Close()
	opened()
	if resp.StatusCode != http.StatusOK {
		data, _ := io.ReadAll(resp.Body)
		return s.status(answer{code: resp.StatusCode, text: data})
	}
	return "200 " + strings.Join(s.events(json.NewDecoder(resp.Body)), ", ")
}

func (s *space) events(stream *json.Decoder) []string {
	var all []string
	for {
		var e struct {
			Type   string         `json:"type"`
			Object map[string]any `json:"object"`
		}
		if err := stream.Decode(&e); err != nil {
			return append(all, "the end")
		}
		name, _ := meta(e.Object)["name"].(string)
		tell := e.Type + " " + name
		switch e.Type {
		case "BOOKMARK":
			tell = "BOOKMARK at " + s.plain(s.at(versionOf(e.Object)))
			if a, _ := meta(e.Object)["annotations"].(map[string]any); a[metav1.InitialEventsAnnotationKey] == "true" {
				tell += " after the initial events"
			}
		case "ERROR":
			tell = "ERROR " + s.status(answer{code: int(e.Object["code"].(float64)), text: []byte(text(e.Object))})
		}
		if name == "z" {
			return append(sorted(all), tell)
		}
		all = append(all, tell)
	}
}

// sorted orders the events by which a watch begins: they come in any order.
func sorted(events []string) []string {
	if n := slices.IndexFunc(events, func(e string) bool { return !strings.HasPrefix(e, "ADDED") }); n < 0 {
		slices.Sort(events)
	} else {
		slices.Sort(events[:n])
	}
	return events
}
