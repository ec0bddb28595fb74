package registry

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"proa/internal/client"
)

func (w *world) list(t *testing.T, opts metav1.ListOptions) *client.List {
	t.Helper()
	l, err := w.admin.List(w.ctx, in(configMaps, ""), opts)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func names(items []client.Object) string {
	var s []string
	for _, i := range items {
		s = append(s, i.GetName())
	}
	return strings.Join(s, " ")
}

func TestListSelects(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		c := configMap(name, nil)
		c.Labels = map[string]string{"n": name}
		w.create(configMaps, c)
	}
	p := pod("p")
	p.Spec.NodeName = "n1"
	w.create(podsV1, p)
	tests := []struct {
		name string
		opts metav1.ListOptions
		want string
	}{
		{"everything", metav1.ListOptions{}, "a b c"},
		{"labels", metav1.ListOptions{LabelSelector: "n in (a,c)"}, "a c"},
		{"a name", metav1.ListOptions{FieldSelector: "metadata.name=b"}, "b"},
		{"not a name", metav1.ListOptions{FieldSelector: "metadata.name!=b"}, "a c"},
		{"a name and labels that contradict", metav1.ListOptions{FieldSelector: "metadata.name=b", LabelSelector: "n=a"}, ""},
		{"another namespace than the path's", metav1.ListOptions{FieldSelector: "metadata.namespace=other"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := names(w.list(t, tt.opts).Items); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	found, err := w.admin.List(w.ctx, in(podsV1, ""), metav1.ListOptions{FieldSelector: "spec.nodeName=n1"})
	if err != nil || names(found.Items) != "p" {
		t.Errorf("by node: %v, %v", found, err)
	}
	_, err = w.admin.List(w.ctx, in(podsV1, ""), metav1.ListOptions{FieldSelector: "spec.image=x"})
	wantError(t, err, "field label not supported: spec.image")
	_, err = w.admin.List(w.ctx, in(configMaps, ""), metav1.ListOptions{FieldSelector: "data=x"})
	wantError(t, err, `"data" is not a known field selector: only "metadata.name", "metadata.namespace"`)
}

func TestListInPagesSeesOneRevision(t *testing.T) {
	w := newWorld(t)
	for i := range 10 {
		w.create(configMaps, configMap(fmt.Sprintf("c%d", i), nil))
	}
	first := w.list(t, metav1.ListOptions{Limit: 4})
	if len(first.Items) != 4 || *first.RemainingItemCount != 6 {
		t.Fatalf("%d items, %d remaining", len(first.Items), *first.RemainingItemCount)
	}
	w.delete(t, configMaps, "c5", metav1.DeleteOptions{})
	w.create(configMaps, configMap("c99", nil))
	second := w.list(t, metav1.ListOptions{Limit: 4, Continue: first.Continue})
	third := w.list(t, metav1.ListOptions{Limit: 4, Continue: second.Continue})
	all := slices.Concat(first.Items, second.Items, third.Items)
	if got := names(all); got != "c0 c1 c2 c3 c4 c5 c6 c7 c8 c9" || third.Continue != "" || *second.RemainingItemCount != 2 {
		t.Errorf("got %q", got)
	}
	if first.ResourceVersion != third.ResourceVersion {
		t.Errorf("pages of revisions %s and %s", first.ResourceVersion, third.ResourceVersion)
	}
	if err := w.store.Compact(w.ctx, w.store.Revision()); err != nil {
		t.Fatal(err)
	}
	_, err := w.admin.List(w.ctx, in(configMaps, ""), metav1.ListOptions{Limit: 4, Continue: first.Continue})
	if !apierrors.IsResourceExpired(err) {
		t.Fatal(err)
	}
	rest := w.list(t, metav1.ListOptions{Continue: err.(*apierrors.StatusError).ErrStatus.Continue})
	if got := names(rest.Items); got != "c4 c6 c7 c8 c9 c99" {
		t.Errorf("inconsistent rest %q", got)
	}
}

func TestListResourceVersions(t *testing.T) {
	w := newWorld(t)
	a := w.create(configMaps, configMap("a", nil))
	w.create(configMaps, configMap("b", nil))
	tests := []struct {
		name string
		opts metav1.ListOptions
		want string
	}{
		{"exact", metav1.ListOptions{ResourceVersion: a.GetResourceVersion(), ResourceVersionMatch: metav1.ResourceVersionMatchExact}, "a"},
		{"not older", metav1.ListOptions{ResourceVersion: a.GetResourceVersion(), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}, "a b"},
		{"any", metav1.ListOptions{ResourceVersion: "0"}, "a b"},
		{"with a limit it is exact", metav1.ListOptions{ResourceVersion: a.GetResourceVersion(), Limit: 5}, "a"},
		{"not a number", metav1.ListOptions{ResourceVersion: "x"}, "resourceVersion: Invalid value"},
		{"match without version", metav1.ListOptions{ResourceVersionMatch: metav1.ResourceVersionMatchExact}, "resourceVersionMatch is forbidden unless resourceVersion is provided"},
		{"exact zero", metav1.ListOptions{ResourceVersion: "0", ResourceVersionMatch: metav1.ResourceVersionMatchExact}, `is forbidden for resourceVersion "0"`},
		{"a broken token", metav1.ListOptions{Continue: "x"}, "invalid continue token"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, err := w.admin.List(w.ctx, in(configMaps, ""), tt.opts)
			if err != nil {
				wantError(t, err, tt.want)
			} else if got := names(l.Items); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// watched reads events until n have come, as "TYPE name".
func watched(t *testing.T, ctx context.Context, wt client.Watch, n int) (events []string, last client.Object) {
	t.Helper()
	for len(events) < n {
		batch, err := wt.Next(ctx)
		if err != nil {
			t.Fatal(err, events)
		}
		for _, e := range batch {
			events = append(events, strings.TrimSpace(string(e.Type)+" "+e.Object.GetName()))
			last = e.Object
		}
	}
	return events, last
}

func TestWatch(t *testing.T) {
	w := newWorld(t)
	first := w.create(configMaps, configMap("a", map[string]string{}))
	label := func(name, value string) {
		if _, err := w.patch(configMaps, name, types.MergePatchType, `{"metadata":{"labels":{"on":"`+value+`"}}}`); err != nil {
			t.Fatal(err)
		}
	}
	w.create(configMaps, configMap("b", nil))
	label("a", "yes")
	label("b", "no")
	label("a", "no")
	label("b", "yes")
	w.delete(t, configMaps, "a", metav1.DeleteOptions{})
	w.delete(t, configMaps, "b", metav1.DeleteOptions{})
	tests := []struct {
		name string
		opts metav1.ListOptions
		want string
	}{
		{"everything since", metav1.ListOptions{ResourceVersion: first.GetResourceVersion()},
			"ADDED b, MODIFIED a, MODIFIED b, MODIFIED a, MODIFIED b, DELETED a, DELETED b"},
		{"what starts and stops to match", metav1.ListOptions{ResourceVersion: first.GetResourceVersion(), LabelSelector: "on=yes"},
			"ADDED a, DELETED a, ADDED b, DELETED b"},
		{"one name", metav1.ListOptions{ResourceVersion: first.GetResourceVersion(), FieldSelector: "metadata.name=b"},
			"ADDED b, MODIFIED b, MODIFIED b, DELETED b"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wt, err := w.admin.Watch(w.ctx, in(configMaps, ""), tt.opts)
			if err != nil {
				t.Fatal(err)
			}
			defer wt.Stop()
			want := strings.Split(tt.want, ", ")
			if got, _ := watched(t, w.ctx, wt, len(want)); !slices.Equal(got, want) {
				t.Errorf("got %q", strings.Join(got, ", "))
			}
		})
	}
	if err := w.store.Compact(w.ctx, w.store.Revision()); err != nil {
		t.Fatal(err)
	}
	_, err := w.admin.Watch(w.ctx, in(configMaps, ""), metav1.ListOptions{ResourceVersion: first.GetResourceVersion()})
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("watch from a compacted revision: %v", err)
	}
}

func TestWatchBeginsWithTheState(t *testing.T) {
	w := newWorld(t)
	w.create(configMaps, configMap("a", nil))
	w.create(configMaps, configMap("b", nil))
	rev := strconv.FormatInt(w.store.Revision(), 10)

	plain, err := w.admin.Watch(w.ctx, in(configMaps, ""), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Stop()
	if got, _ := watched(t, w.ctx, plain, 2); !slices.Equal(got, []string{"ADDED a", "ADDED b"}) {
		t.Errorf("got %v", got)
	}
	list, err := w.admin.Watch(w.ctx, in(configMaps, ""), metav1.ListOptions{
		SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true})
	if err != nil {
		t.Fatal(err)
	}
	defer list.Stop()
	got, last := watched(t, w.ctx, list, 3)
	if !slices.Equal(got, []string{"ADDED a", "ADDED b", "BOOKMARK"}) || last.GetResourceVersion() != rev ||
		last.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" {
		t.Errorf("got %v, %v", got, last)
	}
	_, err = w.admin.Watch(w.ctx, in(configMaps, ""), metav1.ListOptions{SendInitialEvents: ptr.To(true)})
	wantError(t, err, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
}

func TestWatchBookmarksAndTimeout(t *testing.T) {
	w := newWorld(t)
	wt, err := w.admin.Watch(w.ctx, in(configMaps, ""), metav1.ListOptions{AllowWatchBookmarks: true, TimeoutSeconds: ptr.To[int64](90)})
	if err != nil {
		t.Fatal(err)
	}
	defer wt.Stop()
	watched(t, w.ctx, wt, 1) // the end of what it begins with
	w.create(podsV1, pod("elsewhere"))
	rev := strconv.FormatInt(w.store.Revision(), 10)
	w.clock.Step(time.Minute)
	events, last := watched(t, w.ctx, wt, 1)
	if events[0] != string(watch.Bookmark) || last.GetResourceVersion() != rev {
		t.Errorf("got %v at %s, want a bookmark at %s", events, last.GetResourceVersion(), rev)
	}
	if _, ok := last.(*corev1.ConfigMap); !ok {
		t.Errorf("bookmark is a %T", last)
	}
	for !w.clock.HasWaiters() {
		runtime.Gosched()
	}
	w.clock.Step(28 * time.Second)
	watched(t, w.ctx, wt, 1)
	for !w.clock.HasWaiters() {
		runtime.Gosched()
	}
	w.clock.Step(2 * time.Second)
	if _, err := wt.Next(w.ctx); err != io.EOF {
		t.Errorf("after the timeout: %v", err)
	}
}
