package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	v1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// TestListOptions goes through the pairs of resourceVersion and
// resourceVersionMatch, with and without a limit, as upstream's table has them.
func TestListOptions(t *testing.T) {
	w := newWorld(t)
	old := w.configMap("a")
	w.configMap("b")
	rv := old.ResourceVersion
	const future = "999999"
	tests := []struct {
		name, query string
		code        int
		want        string // names, or a part of the message
	}{
		{"nothing asked is the newest", "", 200, "a b"},
		{"nothing asked, in pages", "limit=1", 200, "a"},
		{"any version", "resourceVersion=0", 200, "a b"},
		{"any version, in pages", "resourceVersion=0&limit=1", 200, "a"},
		{"a version is one not older", "resourceVersion=" + rv, 200, "a b"},
		{"a version in pages is that one", "limit=9&resourceVersion=" + rv, 200, "a"},
		{"not older", "resourceVersionMatch=NotOlderThan&resourceVersion=" + rv, 200, "a b"},
		{"not older, in pages", "resourceVersionMatch=NotOlderThan&limit=1&resourceVersion=" + rv, 200, "a"},
		{"not older than any", "resourceVersionMatch=NotOlderThan&resourceVersion=0", 200, "a b"},
		{"exact", "resourceVersionMatch=Exact&resourceVersion=" + rv, 200, "a"},
		{"exact, in pages", "resourceVersionMatch=Exact&limit=9&resourceVersion=" + rv, 200, "a"},
		{"exactly any", "resourceVersionMatch=Exact&resourceVersion=0", 422, `resourceVersionMatch "exact" is forbidden for resourceVersion "0"`},
		{"a match of nothing", "resourceVersionMatch=NotOlderThan", 422, "resourceVersionMatch is forbidden unless resourceVersion is provided"},
		{"an unknown match", "resourceVersionMatch=About&resourceVersion=" + rv, 422, `supported values: "Exact", "NotOlderThan"`},
		{"no version", "resourceVersion=x", 400, "invalid resource version: resourceVersion: Invalid value"},
		{"the future", "resourceVersion=" + future, 504, "Too large resource version: " + future},
		{"exactly the future", "resourceVersionMatch=Exact&resourceVersion=" + future, 504, "Too large resource version: " + future},
		{"a broken token", "continue=x", 400, "invalid continue token"},
		{"a list that streams", "sendInitialEvents=true", 422, "sendInitialEvents is forbidden for list"},
		{"a streaming watch without a match", "watch=1&sendInitialEvents=true", 422, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"},
		{"a match of a watch that does not stream", "watch=1&resourceVersionMatch=NotOlderThan&resourceVersion=" + rv, 422, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // the future is waited for
			resp, body := w.do("GET", "/api/v1/namespaces/default/configmaps?"+tt.query, "")
			if resp.StatusCode != tt.code {
				t.Fatalf("%d %s", resp.StatusCode, body)
			}
			if tt.code != http.StatusOK {
				if s := status(t, body); !strings.Contains(s.Message, tt.want) || s.Code != int32(tt.code) {
					t.Error(s.Message)
				}
				return
			}
			var list corev1.ConfigMapList
			decodeInto(t, body, &list)
			if got := namesOf(list.Items); got != tt.want {
				t.Errorf("%q", got)
			}
		})
	}
}

func decodeInto(t *testing.T, body string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), into); err != nil {
		t.Fatal(err)
	}
}

func namesOf(items []corev1.ConfigMap) string {
	var names []string
	for _, i := range items {
		names = append(names, i.Name)
	}
	return strings.Join(names, " ")
}

func TestPagesAreOfOneRevision(t *testing.T) {
	w := newWorld(t)
	for i := range 10 {
		w.configMap(fmt.Sprintf("c%02d", i))
	}
	of := w.client().CoreV1().ConfigMaps("default")
	page := func(o metav1.ListOptions) *corev1.ConfigMapList {
		t.Helper()
		o.Limit = 4
		l, err := of.List(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first := page(metav1.ListOptions{})
	if first.RemainingItemCount == nil || *first.RemainingItemCount != 6 {
		t.Errorf("%v remain", first.RemainingItemCount)
	}
	if err := of.Delete(t.Context(), "c05", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.configMap("c055")
	second := page(metav1.ListOptions{Continue: first.Continue})
	third := page(metav1.ListOptions{Continue: second.Continue})
	if got := namesOf(slices.Concat(first.Items, second.Items, third.Items)); got != "c00 c01 c02 c03 c04 c05 c06 c07 c08 c09" {
		t.Errorf("pages hold %s", got)
	}
	if second.ResourceVersion != first.ResourceVersion || third.ResourceVersion != first.ResourceVersion || third.Continue != "" || *second.RemainingItemCount != 2 || third.RemainingItemCount != nil {
		t.Errorf("%v %v %v", first.ListMeta, second.ListMeta, third.ListMeta)
	}
	if resp, _ := w.do("GET", "/api/v1/namespaces/default/configmaps?resourceVersion=5&continue="+url.QueryEscape(first.Continue), ""); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("a version beside a token: %d", resp.StatusCode)
	}

	if whole, err := of.List(t.Context(), metav1.ListOptions{}); err != nil || len(whole.Items) != 10 || whole.Continue != "" {
		t.Errorf("without a limit %d items: %v", len(whole.Items), err)
	}

	// Once history is gone, the token is answered with one that goes on as things are now.
	if err := w.store.Compact(t.Context(), w.store.Revision()); err != nil {
		t.Fatal(err)
	}
	_, err := of.List(t.Context(), metav1.ListOptions{Limit: 4, Continue: first.Continue})
	if !apierrors.IsResourceExpired(err) || !strings.Contains(err.Error(), "The provided continue parameter is too old") {
		t.Fatal(err)
	}
	rest := page(metav1.ListOptions{Continue: err.(*apierrors.StatusError).ErrStatus.Continue})
	if got := namesOf(rest.Items); got != "c04 c055 c06 c07" || *rest.RemainingItemCount != 2 || rest.ResourceVersion == first.ResourceVersion {
		t.Errorf("goes on with %s, %v", got, rest.ListMeta)
	}
	if last := page(metav1.ListOptions{Continue: rest.Continue}); namesOf(last.Items) != "c08 c09" || last.ResourceVersion != rest.ResourceVersion {
		t.Errorf("ends with %s at %s", namesOf(last.Items), last.ResourceVersion)
	}
}

// What one client wrote, the next list of another shows.
func TestListsAreConsistent(t *testing.T) {
	w := newWorld(t)
	writer, reader := w.configMap("x"), clientOf(t, w.as("reader")).CoreV1().ConfigMaps("default")
	of := w.client().CoreV1().ConfigMaps("default")
	for i := range 300 {
		writer.Data["k"] = strconv.Itoa(i)
		var err error
		if writer, err = of.Update(t.Context(), writer, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		list, err := reader.List(t.Context(), metav1.ListOptions{})
		if err != nil || list.Items[0].ResourceVersion != writer.ResourceVersion {
			t.Fatalf("wrote %s, list shows %v: %v", writer.ResourceVersion, list, err)
		}
	}
	_, metrics := w.do("GET", "/metrics", "")
	if lineWith(metrics, `apiserver_watch_cache_consistent_read_total{fallback="false",group="",resource="configmaps",success="true"} 300`) == "" {
		t.Error("not counted")
	}
}

// expect reads one event.
func expect(t *testing.T, w watch.Interface, want string) {
	t.Helper()
	select {
	case e := <-w.ResultChan():
		cm, ok := e.Object.(*corev1.ConfigMap)
		if !ok || string(e.Type)+" "+cm.Name != want {
			t.Fatalf("%s %v, want %s", e.Type, e.Object, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("no %s", want)
	}
}

func TestWatchersSeeWhatTheySelect(t *testing.T) {
	w := newWorld(t)
	of := w.client().CoreV1().ConfigMaps("default")
	watching := func(selector string) watch.Interface {
		got, err := of.Watch(t.Context(), metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(got.Stop)
		return got
	}
	a, b, both := watching("app=a"), watching("app=b"), watching("app in (a,b)")
	w.configMap("a")
	expect(t, a, "ADDED a")
	expect(t, both, "ADDED a")
	w.configMap("b")
	expect(t, b, "ADDED b")
	expect(t, both, "ADDED b")
	patch := func(text string) {
		if _, err := of.Patch(t.Context(), "a", types.MergePatchType, []byte(text), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	patch(`{"data":{"k":"1"}}`)
	expect(t, a, "MODIFIED a")
	expect(t, both, "MODIFIED a")
	patch(`{"metadata":{"labels":{"app":"c"}}}`) // leaves the selection
	expect(t, a, "DELETED a")
	expect(t, both, "DELETED a")
	patch(`{"data":{"k":"2"}}`)                  // is not seen
	patch(`{"metadata":{"labels":{"app":"a"}}}`) // comes back
	expect(t, a, "ADDED a")
	expect(t, both, "ADDED a")
	if err := of.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(t, a, "DELETED a")
	expect(t, both, "DELETED a")
	if err := of.Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(t, b, "DELETED b")
	expect(t, both, "DELETED b")
}

// Watches that begin at different versions of a stream of writes see the same
// events in the same order, and each its whole rest of it.
func TestWatchesAgreeOnTheOrder(t *testing.T) {
	w := newWorld(t)
	of := w.client().CoreV1().ConfigMaps("default")
	start := w.configMap("first")
	const writes = 200
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() { write(t, of, fmt.Sprint("w", i), writes/4) })
	}
	all := collect(t, of, start.ResourceVersion, writes)
	writers.Wait()
	if !slices.IsSortedFunc(all, func(a, b string) int { x, _ := strconv.Atoi(a); y, _ := strconv.Atoi(b); return x - y }) {
		t.Error("not in the order of the writes")
	}
	for i := 0; i < writes; i += 7 {
		if got := collect(t, of, all[i], writes-1-i); !slices.Equal(got, all[i+1:]) {
			t.Fatalf("a watch from %s sees other events", all[i])
		}
	}
}

func write(t *testing.T, of v1.ConfigMapInterface, name string, times int) {
	cm, err := of.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{}}, metav1.CreateOptions{})
	for i := 1; i < times && err == nil; i++ {
		cm.Data = map[string]string{"n": strconv.Itoa(i)}
		cm, err = of.Update(t.Context(), cm, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Error(err)
	}
}

// collect returns the versions of n events after a version.
func collect(t *testing.T, of v1.ConfigMapInterface, from string, n int) (versions []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	w, err := of.Watch(ctx, metav1.ListOptions{ResourceVersion: from})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for len(versions) < n {
		e, open := <-w.ResultChan()
		if !open {
			t.Fatalf("the watch from %s ended after %d of %d", from, len(versions), n)
		}
		versions = append(versions, e.Object.(*corev1.ConfigMap).ResourceVersion)
	}
	return versions
}

func TestAThousandWatchersSeeAWrite(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxStreams = 2000 })
	of := w.client().CoreV1().ConfigMaps("default")
	if _, err := of.List(t.Context(), metav1.ListOptions{}); err != nil { // one connection for all, instead of a handshake each
		t.Fatal(err)
	}
	var seen, watching sync.WaitGroup
	for range 1000 {
		watching.Add(1)
		seen.Go(func() {
			got, err := of.Watch(t.Context(), metav1.ListOptions{})
			watching.Done()
			if err != nil {
				t.Error(err)
				return
			}
			defer got.Stop()
			if e := <-got.ResultChan(); e.Type != watch.Added {
				t.Errorf("%s %v", e.Type, e.Object)
			}
		})
	}
	watching.Wait()
	w.configMap("a")
	seen.Wait()
}

func TestRequestMetrics(t *testing.T) {
	w := newWorld(t)
	w.configMap("a")
	_, end := w.open("/api/v1/configmaps?watch=1", "application/json")
	w.do("PATCH", "/api/v1/namespaces/default/configmaps/a?fieldManager=x&dryRun=All", `{"apiVersion":"v1","kind":"ConfigMap"}`, "Content-Type", string(types.ApplyPatchType))
	w.do("GET", "/api/v1/namespaces/default/configmaps", "")
	_, metrics := w.do("GET", "/metrics", "")
	end()
	const about = `component="apiserver",%sgroup="",resource="configmaps",scope="%s",subresource="",verb="%s",version="v1"`
	for _, line := range []string{
		`apiserver_request_total{code="201",component="apiserver",dry_run="",group="",resource="configmaps",scope="resource",subresource="",verb="POST",version="v1"} 1`,
		`apiserver_request_total{code="200",component="apiserver",dry_run="All",group="",resource="configmaps",scope="resource",subresource="",verb="APPLY",version="v1"} 1`,
		`apiserver_request_duration_seconds_count{` + fmt.Sprintf(about, `dry_run="",`, "namespace", "LIST") + `} 1`,
		`apiserver_request_sli_duration_seconds_count{` + fmt.Sprintf(about, "", "namespace", "LIST") + `} 1`,
		`apiserver_response_sizes_count{` + fmt.Sprintf(about, "", "namespace", "LIST") + `} 1`,
		`apiserver_longrunning_requests{` + fmt.Sprintf(about, "", "cluster", "WATCH") + `} 1`,
		`apiserver_current_inflight_requests{request_kind="readOnly"} 1`,
		`apiserver_storage_objects{resource="configmaps"} 1`,
		`apiserver_resource_objects{group="",resource="configmaps"} 1`,
	} {
		if lineWith(metrics, line) == "" {
			t.Errorf("no %s", line)
		}
	}
}
