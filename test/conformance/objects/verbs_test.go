package objects

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// elsewhere is a second namespace.
const elsewhere = "elsewhere"

// kind is a resource and what a test of its verbs has to know of it.
type kind struct {
	gvr        schema.GroupVersionResource
	kind       string
	clustered  bool
	object     string            // in YAML, without apiVersion, kind and name; NAMESPACE is where it is
	change     string            // a merge patch of the desired state; empty where it cannot change
	status     string            // a merge patch of the status subresource; empty where there is none
	bareStatus bool              // the status subresource is there, its fields are behind gates that are off
	first      int64             // the generation of a new object
	counts     bool              // changes of the desired state make a new generation
	names      map[string]string // where names have a form: what stands for the names of the test
}

// label is the value of the label that the objects of a kind have in its test.
func (k kind) label() string { return k.gvr.Resource + "." + k.gvr.Group + "." + k.gvr.Version }

func resourceOf(group, version, resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: resource}
}

// everyVerb takes kinds through discovery, create, get, list, watch, update, the
// four kinds of patch, their status, delete and deletecollection.
func everyVerb(t *testing.T, s *server, kinds []kind) {
	t.Helper()
	client, err := dynamic.NewForConfig(s.access)
	if err != nil {
		t.Fatal(err)
	}
	s.namespace(t, elsewhere)
	for _, k := range kinds {
		t.Run(k.kind+"."+k.gvr.Group, func(t *testing.T) {
			t.Parallel()
			r := &run{kind: k, all: client.Resource(k.gvr), in: client.Resource(k.gvr), labels: "run=" + k.label()}
			if !k.clustered {
				r.in, r.elsewhere = client.Resource(k.gvr).Namespace(space), client.Resource(k.gvr).Namespace(elsewhere)
			}
			discovered(t, s, k)
			r.run(within(t), t)
		})
	}
}

// verbs are those of an object that clients create, and of its status.
var (
	verbs       = metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	statusVerbs = metav1.Verbs{"get", "patch", "update"}
)

// discovered wants the group in /apis, the version in the group and the resource
// in the version, each with its verbs.
func discovered(t *testing.T, s *server, k kind) {
	t.Helper()
	d := s.Discovery()
	if k.gvr.Group != "" {
		groups := must(d.ServerGroups())(t).Groups
		i := slices.IndexFunc(groups, func(g metav1.APIGroup) bool { return g.Name == k.gvr.Group })
		if i < 0 {
			t.Fatalf("group %s is not discovered", k.gvr.Group)
		}
		has := func(g metav1.APIGroup) bool {
			return slices.ContainsFunc(g.Versions, func(v metav1.GroupVersionForDiscovery) bool {
				return v.Version == k.gvr.Version && v.GroupVersion == k.gvr.GroupVersion().String()
			})
		}
		var group metav1.APIGroup
		if err := d.RESTClient().Get().AbsPath("/apis/" + k.gvr.Group).Do(t.Context()).Into(&group); err != nil {
			t.Fatal(err)
		}
		if !has(groups[i]) || !has(group) {
			t.Errorf("version %s is not discovered in %v and %v", k.gvr.Version, groups[i], group)
		}
	}
	list := must(d.ServerResourcesForGroupVersion(k.gvr.GroupVersion().String()))(t)
	served := map[string]metav1.APIResource{}
	for _, r := range list.APIResources {
		served[r.Name] = r
	}
	own := served[k.gvr.Resource]
	if own.Kind != k.kind || own.Namespaced == k.clustered || !slices.Equal(own.Verbs, verbs) {
		t.Errorf("%s is discovered as %+v", k.gvr.Resource, own)
	}
	status, ok := served[k.gvr.Resource+"/status"]
	if ok != (k.status != "" || k.bareStatus) || ok && !slices.Equal(status.Verbs, statusVerbs) {
		t.Errorf("the status of %s is discovered as %+v", k.gvr.Resource, status)
	}
}

// run is one kind under test. What its writes answered is what watches have to
// show, in order.
type run struct {
	kind
	all, in, elsewhere dynamic.ResourceInterface
	labels             string
	want               []watch.Event
}

func (r *run) run(ctx context.Context, t *testing.T) {
	before := must(r.all.List(ctx, metav1.ListOptions{LabelSelector: r.labels}))(t)
	if len(before.Items) != 0 {
		t.Fatalf("before any is created there is %v", before.Items)
	}
	options := metav1.ListOptions{LabelSelector: r.labels, ResourceVersion: before.GetResourceVersion()}
	everything := must(r.all.Watch(ctx, options))(t)
	defer everything.Stop()

	r.create(ctx, t, r.in, "one")
	two := r.create(ctx, t, r.in, "two")
	r.reads(ctx, t, two)
	r.patches(ctx, t)
	r.updates(ctx, t)
	if r.status != "" {
		r.statuses(ctx, t)
	}
	r.deletes(ctx, t)
	r.collections(ctx, t)
	r.watched(ctx, t, everything)
}

// name is the name of an object of the test.
func (r *run) name(name string) string {
	if formed := r.names[name]; formed != "" {
		return formed
	}
	return name
}

// manifest is a new object of the kind.
func (r *run) manifest(t *testing.T, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{Object: decode(t, strings.ReplaceAll(r.object, "NAMESPACE", namespace))}
	u.SetGroupVersionKind(r.gvr.GroupVersion().WithKind(r.kind.kind))
	u.SetName(r.name(name))
	u.SetLabels(map[string]string{"run": r.label()})
	return u
}

func (r *run) create(ctx context.Context, t *testing.T, in dynamic.ResourceInterface, name string) *unstructured.Unstructured {
	t.Helper()
	namespace := space
	if in == r.elsewhere {
		namespace = elsewhere
	}
	sent := r.manifest(t, namespace, name)
	u := must(in.Create(ctx, sent, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}))(t)
	r.expect(watch.Added, u)
	if u.GetUID() == "" || u.GetCreationTimestamp() == (metav1.Time{}) || u.GetGeneration() != r.first {
		t.Errorf("created with the metadata %v", u.Object["metadata"])
	}
	if _, err := in.Create(ctx, sent, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("created again: %v", err)
	}
	return u
}

func (r *run) expect(e watch.EventType, u *unstructured.Unstructured) {
	r.want = append(r.want, watch.Event{Type: e, Object: u})
}

// reads gets and lists what is there, by name, label, namespace and in all of them.
func (r *run) reads(ctx context.Context, t *testing.T, created *unstructured.Unstructured) {
	t.Helper()
	if got := must(r.in.Get(ctx, created.GetName(), metav1.GetOptions{}))(t); !reflect.DeepEqual(got, created) {
		t.Errorf("created was\n%v\nand read is\n%v", created, got)
	}
	if _, err := r.in.Get(ctx, r.name("three"), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what was never created reads %v", err)
	}
	r.listed(ctx, t, r.in, r.labels, "one", "two")
	r.listed(ctx, t, r.in, r.labels+",other=yes")
	if r.elsewhere != nil {
		r.listed(ctx, t, r.elsewhere, r.labels)
		r.create(ctx, t, r.elsewhere, "three")
		r.listed(ctx, t, r.in, r.labels, "one", "two")
		r.listed(ctx, t, r.all, r.labels, "one", "three", "two")
	}
}

// listed wants exactly these names.
func (r *run) listed(ctx context.Context, t *testing.T, in dynamic.ResourceInterface, selector string, want ...string) {
	t.Helper()
	list := must(in.List(ctx, metav1.ListOptions{LabelSelector: selector}))(t)
	var got []string
	for _, u := range list.Items {
		got = append(got, u.GetName())
	}
	for i, name := range want {
		want[i] = r.name(name)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s lists %q, want %q", selector, got, want)
	}
}

// patches changes "one" by every kind of patch, each of which must show in what
// is answered and read, and leave the rest.
func (r *run) patches(ctx context.Context, t *testing.T) {
	t.Helper()
	apply := map[string]any{
		"apiVersion": r.gvr.GroupVersion().String(), "kind": r.kind.kind,
		"metadata": map[string]any{"name": r.name("one"), "annotations": map[string]string{"apply": "yes"}},
	}
	applied, err := json.Marshal(apply)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, p := range []struct {
		by   string
		kind types.PatchType
		data []byte
	}{
		{"merge", types.MergePatchType, []byte(`{"metadata":{"annotations":{"merge":"yes"}}}`)},
		{"json", types.JSONPatchType, []byte(`[{"op":"add","path":"/metadata/annotations/json","value":"yes"}]`)},
		{"strategic", types.StrategicMergePatchType, []byte(`{"metadata":{"annotations":{"strategic":"yes"}}}`)},
		{"apply", types.ApplyPatchType, applied},
	} {
		want[p.by] = "yes"
		options := metav1.PatchOptions{FieldManager: p.by}
		u := must(r.in.Patch(ctx, r.name("one"), p.kind, p.data, options))(t)
		r.expect(watch.Modified, u)
		if !maps.Equal(u.GetAnnotations(), want) {
			t.Errorf("after %s the annotations are %v, want %v", p.by, u.GetAnnotations(), want)
		}
		if !managedBy(u, p.by) {
			t.Errorf("after %s the managers are %v", p.by, u.GetManagedFields())
		}
		if got := must(r.in.Get(ctx, r.name("one"), metav1.GetOptions{}))(t); !reflect.DeepEqual(got, u) {
			t.Errorf("after %s it reads\n%v\nwant\n%v", p.by, got, u)
		}
	}
	if _, err := r.in.Patch(ctx, r.name("three"), types.MergePatchType, []byte(`{}`), metav1.PatchOptions{}); r.clustered && !apierrors.IsNotFound(err) {
		t.Errorf("what is not there is patched: %v", err)
	}
}

func managedBy(u *unstructured.Unstructured, manager string) bool {
	return slices.ContainsFunc(u.GetManagedFields(), func(f metav1.ManagedFieldsEntry) bool { return f.Manager == manager })
}

// updates replaces "one", its desired state where that can change, and refuses
// to replace what has changed meanwhile.
func (r *run) updates(ctx context.Context, t *testing.T) {
	t.Helper()
	old := must(r.in.Get(ctx, r.name("one"), metav1.GetOptions{}))(t)
	changed := old.DeepCopy()
	changed.SetAnnotations(map[string]string{"updated": "yes"})
	r.merge(t, changed, r.change)
	updated := must(r.in.Update(ctx, changed, metav1.UpdateOptions{}))(t)
	r.expect(watch.Modified, updated)
	r.changed(t, updated)
	generation := r.first
	if r.counts {
		generation++
	}
	if updated.GetGeneration() != generation {
		t.Errorf("after an update the generation is %d, want %d", updated.GetGeneration(), generation)
	}
	if !maps.Equal(updated.GetAnnotations(), map[string]string{"updated": "yes"}) {
		t.Errorf("updated annotations are %v", updated.GetAnnotations())
	}
	if got := must(r.in.Get(ctx, r.name("one"), metav1.GetOptions{}))(t); !reflect.DeepEqual(got, updated) {
		t.Errorf("updated was\n%v\nand read is\n%v", updated, got)
	}
	if again := must(r.in.Update(ctx, updated, metav1.UpdateOptions{}))(t); again.GetResourceVersion() != updated.GetResourceVersion() {
		t.Error("an update that changes nothing makes a revision")
	}
	if _, err := r.in.Update(ctx, old, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an old object is updated: %v", err)
	}
}

// merge lays a merge patch of plain fields over an object.
func (r *run) merge(t *testing.T, u *unstructured.Unstructured, patch string) {
	t.Helper()
	if patch == "" {
		return
	}
	var over func(at, change map[string]any)
	over = func(at, change map[string]any) {
		for field, v := range change {
			inner, isMap := v.(map[string]any)
			below, has := at[field].(map[string]any)
			if isMap && has {
				over(below, inner)
				continue
			}
			at[field] = v
		}
	}
	over(u.Object, decode(t, patch))
}

// changed wants what the kind's change says.
func (r *run) changed(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	if r.change != "" {
		holds(t, u.Object, decode(t, r.change))
	}
}

func decode(t *testing.T, data string) map[string]any {
	t.Helper()
	m := map[string]any{}
	if err := yaml.Unmarshal([]byte(data), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// holds wants every field of want in got.
func holds(t *testing.T, got, want map[string]any) {
	t.Helper()
	for field, w := range want {
		inner, isMap := w.(map[string]any)
		below, has := got[field].(map[string]any)
		switch {
		case isMap && has:
			holds(t, below, inner)
		case fmt.Sprint(got[field]) != fmt.Sprint(w):
			t.Errorf("%s is %v, want %v", field, got[field], w)
		}
	}
}

// statuses reads, patches and updates the status of "one". Neither side of an
// object is changed by a write of the other.
func (r *run) statuses(ctx context.Context, t *testing.T) {
	t.Helper()
	before := must(r.in.Get(ctx, r.name("one"), metav1.GetOptions{}, "status"))(t)
	if whole := must(r.in.Get(ctx, r.name("one"), metav1.GetOptions{}))(t); !reflect.DeepEqual(before, whole) {
		t.Errorf("the status reads\n%v\nand the object\n%v", before, whole)
	}
	r.ignored(ctx, t, before, r.status)
	patched := must(r.in.Patch(ctx, r.name("one"), types.MergePatchType, []byte(r.status), metav1.PatchOptions{}, "status"))(t)
	r.expect(watch.Modified, patched)
	holds(t, patched.Object, decode(t, r.status))
	if patched.GetGeneration() != before.GetGeneration() {
		t.Errorf("a new status took the generation from %d to %d", before.GetGeneration(), patched.GetGeneration())
	}
	if r.change != "" {
		reset := must(r.in.Get(ctx, r.name("two"), metav1.GetOptions{}))(t)
		back := map[string]any{}
		for field := range decode(t, r.change) {
			back[field] = reset.Object[field]
		}
		data, err := json.Marshal(back)
		if err != nil {
			t.Fatal(err)
		}
		r.ignored(ctx, t, patched, string(data), "status")
	}
	emptied := patched.DeepCopy()
	emptied.Object["status"] = before.Object["status"]
	updated := must(r.in.UpdateStatus(ctx, emptied, metav1.UpdateOptions{}))(t)
	r.expect(watch.Modified, updated)
	if !reflect.DeepEqual(updated.Object["status"], before.Object["status"]) || !reflect.DeepEqual(updated.Object["spec"], patched.Object["spec"]) {
		t.Errorf("updated to status %v and spec %v, want %v and %v",
			updated.Object["status"], updated.Object["spec"], before.Object["status"], patched.Object["spec"])
	}
	if _, err := r.in.UpdateStatus(ctx, patched, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an old status is updated: %v", err)
	}
}

// ignored wants a patch that has no effect on "one".
func (r *run) ignored(ctx context.Context, t *testing.T, is *unstructured.Unstructured, patch string, subresource ...string) {
	t.Helper()
	got := must(r.in.Patch(ctx, r.name("one"), types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...))(t)
	if got.GetResourceVersion() != is.GetResourceVersion() {
		t.Errorf("%s of %q had an effect: the object was\n%v\nand is\n%v", patch, subresource, is, got)
	}
}

// deletes removes "one", and only that.
func (r *run) deletes(ctx context.Context, t *testing.T) {
	t.Helper()
	last := must(r.in.Get(ctx, r.name("one"), metav1.GetOptions{}))(t)
	wrong := types.UID("another")
	err := r.in.Delete(ctx, r.name("one"), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}})
	if !apierrors.IsConflict(err) {
		t.Errorf("an object of another uid is deleted: %v", err)
	}
	if err := r.in.Delete(ctx, r.name("one"), atOnce); err != nil {
		t.Fatal(err)
	}
	r.expect(watch.Deleted, last)
	if _, err := r.in.Get(ctx, r.name("one"), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what was deleted reads %v", err)
	}
	if err := r.in.Delete(ctx, r.name("one"), atOnce); !apierrors.IsNotFound(err) {
		t.Errorf("what was deleted is deleted: %v", err)
	}
	r.listed(ctx, t, r.in, r.labels, "two")
}

// atOnce deletes without grace and whatever an object owns.
var atOnce = metav1.DeleteOptions{GracePeriodSeconds: new(int64), PropagationPolicy: &background}

var background = metav1.DeletePropagationBackground

// collections removes what carries a label from one namespace, and only that.
func (r *run) collections(ctx context.Context, t *testing.T) {
	t.Helper()
	kept := must(r.in.Patch(ctx, r.name("two"), types.MergePatchType, []byte(`{"metadata":{"labels":{"keep":"yes"}}}`), metav1.PatchOptions{}))(t)
	r.expect(watch.Modified, kept)
	four := r.create(ctx, t, r.in, "four")
	if err := r.in.DeleteCollection(ctx, atOnce, metav1.ListOptions{LabelSelector: r.labels + ",!keep"}); err != nil {
		t.Fatal(err)
	}
	r.expect(watch.Deleted, four)
	r.listed(ctx, t, r.in, r.labels, "two")
	if r.elsewhere != nil {
		r.listed(ctx, t, r.elsewhere, r.labels, "three")
	}
	if err := r.in.DeleteCollection(ctx, atOnce, metav1.ListOptions{LabelSelector: r.labels}); err != nil {
		t.Fatal(err)
	}
	r.expect(watch.Deleted, kept)
	r.listed(ctx, t, r.in, r.labels)
}

// watched wants every write, and nothing else, in the order and the state in
// which it was answered; an object that is gone has its last state, at the
// revision of its end.
func (r *run) watched(ctx context.Context, t *testing.T, w watch.Interface) {
	t.Helper()
	r.create(ctx, t, r.in, "last") // behind which an event too many would be seen
	at := int64(0)
	for i, want := range r.want {
		e := next(ctx, t, w)
		got, ok := e.Object.(*unstructured.Unstructured)
		if !ok {
			t.Fatalf("watched %v", e)
		}
		revision, err := strconv.ParseInt(got.GetResourceVersion(), 10, 64)
		if err != nil || revision <= at {
			t.Errorf("after revision %d comes %q", at, got.GetResourceVersion())
		}
		at = revision
		expected := want.Object.(*unstructured.Unstructured)
		if e.Type == watch.Deleted && want.Type == watch.Deleted {
			if got.GetResourceVersion() == expected.GetResourceVersion() {
				t.Errorf("%s is deleted at the revision of its last change", got.GetName())
			}
			got.SetResourceVersion(expected.GetResourceVersion())
		}
		if e.Type != want.Type || !reflect.DeepEqual(got, expected) {
			t.Fatalf("event %d is %s\n%v\nwant %s\n%v", i, e.Type, got, want.Type, expected)
		}
	}
}
