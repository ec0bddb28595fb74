package objects

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"proa/pkg/proatest"
)

var eventKinds = []kind{
	{
		gvr: resourceOf("", "v1", "events"), kind: "Event",
		object: "{involvedObject: {namespace: NAMESPACE, kind: Pod, name: p}, type: Normal, reason: Test, message: a, count: 1}",
		change: "{message: b, count: 2}",
	},
	{
		gvr: resourceOf("events.k8s.io", "v1", "events"), kind: "Event",
		object: "{regarding: {namespace: NAMESPACE, kind: Pod, name: p}, type: Normal, reason: Test, note: a, action: Do, " +
			"eventTime: '2026-01-01T00:00:00.123456Z', reportingController: test-controller, reportingInstance: test-node}",
		// These are the events of the core group under another name: they share their names.
		names:  map[string]string{"one": "e1", "two": "e2", "three": "e3", "four": "e4", "last": "e5"},
		change: "series: {count: 2, lastObservedTime: '2026-01-01T00:00:05.000001Z'}",
	},
}

func TestEveryVerbOfEvents(t *testing.T) {
	t.Parallel()
	everyVerb(t, newServer(t, proatest.Options{}), eventKinds)
}

// TestTheLifeOfAnEvent patches and updates an event, each by one group, which the
// other shows.
func TestTheLifeOfAnEvent(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	ctx := within(t)
	old, current := s.CoreV1().Events(space), s.EventsV1().Events(space)
	byLabel := metav1.ListOptions{LabelSelector: "constant=yes"}
	created := must(current.Create(ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "e", Labels: map[string]string{"constant": "yes"}},
		Regarding:  corev1.ObjectReference{Namespace: space}, Type: "Normal", Reason: "Test", Action: "Do", Note: "a note",
		EventTime: metav1.NewMicroTime(time.Unix(1505828956, 1000)), ReportingController: "test-controller", ReportingInstance: "test-node",
	}, metav1.CreateOptions{}))(t)
	for _, list := range []*eventsv1.EventList{
		must(current.List(ctx, byLabel))(t), must(s.EventsV1().Events("").List(ctx, byLabel))(t),
		must(current.List(ctx, metav1.ListOptions{FieldSelector: "reportingController=test-controller"}))(t),
	} {
		if len(list.Items) != 1 || list.Items[0].UID != created.UID {
			t.Errorf("listed are %v", list.Items)
		}
	}
	for _, selector := range []string{"source=test-controller", "reportingComponent=test-controller", "reason=Test", "involvedObject.namespace=" + space} {
		if list := must(old.List(ctx, metav1.ListOptions{FieldSelector: selector}))(t); len(list.Items) != 1 || list.Items[0].Message != "a note" {
			t.Errorf("%s lists %v", selector, list.Items)
		}
	}
	series := func(count int32, at int64) *eventsv1.EventSeries {
		return &eventsv1.EventSeries{Count: count, LastObservedTime: metav1.NewMicroTime(time.Unix(at, 0))}
	}
	patch := []byte(`{"series":{"count":2,"lastObservedTime":"2017-09-19T13:49:11.000000Z"}}`)
	patched := must(current.Patch(ctx, "e", types.StrategicMergePatchType, patch, metav1.PatchOptions{}))(t)
	want := created.DeepCopy()
	want.Series = series(2, 1505828951)
	same(t, patched, want)

	want.Series = series(100, 1505828956)
	sent := want.DeepCopy()
	sent.ResourceVersion = "" // an update of an event need not know what it replaces
	must(current.Update(ctx, sent, metav1.UpdateOptions{}))(t)
	same(t, must(current.Get(ctx, "e", metav1.GetOptions{}))(t), want)
	if _, err := current.Patch(ctx, "e", types.StrategicMergePatchType, []byte(`{"note":"another"}`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("the note of an event of events.k8s.io is patched: %v", err)
	}

	message := must(old.Patch(ctx, "e", types.StrategicMergePatchType, []byte(`{"message":"patched"}`), metav1.PatchOptions{}))(t)
	if message.Message != "patched" || message.Series.Count != 100 {
		t.Errorf("patched to %v", message)
	}
	message.Series = &corev1.EventSeries{Count: 101, LastObservedTime: want.Series.LastObservedTime}
	message.ResourceVersion, message.ManagedFields = "", nil
	must(old.Update(ctx, message, metav1.UpdateOptions{}))(t)
	want.Note, want.Series.Count = "patched", 101
	same(t, must(current.Get(ctx, "e", metav1.GetOptions{}))(t), want)

	if err := current.Delete(ctx, "e", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if list := must(s.CoreV1().Events("").List(ctx, byLabel))(t); len(list.Items) != 0 {
		t.Errorf("left are %v", list.Items)
	}
}

// same wants an event as it was sent, what the server keeps for itself aside.
func same(t *testing.T, got, want *eventsv1.Event) {
	t.Helper()
	got, want = got.DeepCopy(), want.DeepCopy()
	for _, e := range []*eventsv1.Event{got, want} {
		e.ResourceVersion, e.ManagedFields = "", nil
	}
	if !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("the event is\n%v\nwant\n%v", got, want)
	}
}

// TestEventsOfALabelAreDeleted makes three of each group, and deletes them by
// label: the others stay.
func TestEventsOfALabelAreDeleted(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	ctx := within(t)
	meta := func(name, set string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: set + "-" + name, Labels: map[string]string{"set": set}}
	}
	for _, name := range []string{"1", "2", "3"} {
		must(s.CoreV1().Events(space).Create(ctx, &corev1.Event{
			ObjectMeta: meta(name, "core"), InvolvedObject: corev1.ObjectReference{Namespace: space}, Type: "Normal", Reason: "Test", Count: 1,
		}, metav1.CreateOptions{}))(t)
		must(s.EventsV1().Events(space).Create(ctx, &eventsv1.Event{
			ObjectMeta: meta(name, "new"), Regarding: corev1.ObjectReference{Namespace: space}, Type: "Normal", Reason: "Test", Action: "Do",
			EventTime: metav1.NewMicroTime(time.Unix(1505828956, 0)), ReportingController: "c", ReportingInstance: "i",
		}, metav1.CreateOptions{}))(t)
	}
	count := func(core, newer int) {
		t.Helper()
		olds := must(s.CoreV1().Events(space).List(ctx, metav1.ListOptions{LabelSelector: "set=core"}))(t)
		news := must(s.EventsV1().Events(space).List(ctx, metav1.ListOptions{LabelSelector: "set=new"}))(t)
		if len(olds.Items) != core || len(news.Items) != newer {
			t.Errorf("there are %d and %d, want %d and %d", len(olds.Items), len(news.Items), core, newer)
		}
	}
	count(3, 3)
	if err := s.CoreV1().Events(space).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "set=core"}); err != nil {
		t.Fatal(err)
	}
	count(0, 3)
	if err := s.EventsV1().Events(space).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "set=new"}); err != nil {
		t.Fatal(err)
	}
	count(0, 0)
}
