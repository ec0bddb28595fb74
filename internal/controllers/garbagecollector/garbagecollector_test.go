package garbagecollector

import (
	"context"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/apis"
	"proa/internal/apis/builtin"
	"proa/internal/apiserver/registry"
	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
	"proa/internal/store"
	"proa/internal/store/memory"
)

// world has config maps named "namespace/name" and cluster roles named "name".
type world struct {
	*controllertest.World
	uids map[string]types.UID
}

func run(t *testing.T, test func(w *world)) {
	t.Helper()
	controllertest.Run(t, func(cw *controllertest.World) {
		w := &world{cw, map[string]types.UID{}}
		w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			return []controllertest.Runner{New(c, builtin.Catalogue())}
		})()
		test(w)
	})
}

func (w *world) roles() client.Resource[*rbacv1.ClusterRole] {
	return client.Of[*rbacv1.ClusterRole](w.API)
}
func (w *world) maps() client.Resource[*corev1.ConfigMap] { return client.Of[*corev1.ConfigMap](w.API) }

// refs are owner references to objects made before; "!x" blocks x's deletion.
func (w *world) refs(owners []string) (refs []metav1.OwnerReference) {
	for _, owner := range owners {
		owner, blocks := strings.CutPrefix(owner, "!")
		ref := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: owner[strings.Index(owner, "/")+1:], UID: w.uids[owner]}
		if !strings.Contains(owner, "/") {
			ref.APIVersion, ref.Kind = "rbac.authorization.k8s.io/v1", "ClusterRole"
		}
		if blocks {
			ref.BlockOwnerDeletion = new(true)
		}
		refs = append(refs, ref)
	}
	return refs
}

func (w *world) add(name string, owners ...string) {
	w.T.Helper()
	w.addHeld(name, nil, owners...)
}

func (w *world) addHeld(name string, finalizers []string, owners ...string) {
	w.T.Helper()
	meta := metav1.ObjectMeta{OwnerReferences: w.refs(owners), Finalizers: finalizers}
	var obj client.Object
	var err error
	if namespace, plain, ok := strings.Cut(name, "/"); ok {
		meta.Namespace, meta.Name = namespace, plain
		obj, err = w.maps().Create(w.T.Context(), &corev1.ConfigMap{ObjectMeta: meta})
	} else {
		meta.Name = name
		obj, err = w.roles().Create(w.T.Context(), &rbacv1.ClusterRole{ObjectMeta: meta})
	}
	if err != nil {
		w.T.Fatal(err)
	}
	w.uids[name] = obj.GetUID()
}

// own replaces an object's owner references.
func (w *world) own(name string, owners ...string) {
	w.T.Helper()
	w.patch(name, map[string]any{"ownerReferences": w.refs(owners)})
}

func (w *world) patch(name string, meta map[string]any) {
	w.T.Helper()
	namespace, plain, _ := strings.Cut(name, "/")
	if _, err := w.maps().MergePatch(w.T.Context(), namespace, plain, map[string]any{"metadata": meta}); err != nil {
		w.T.Fatal(err)
	}
}

func (w *world) delete(name string, policy metav1.DeletionPropagation) {
	w.T.Helper()
	opts := metav1.DeleteOptions{PropagationPolicy: &policy}
	var err error
	if namespace, plain, ok := strings.Cut(name, "/"); ok {
		_, err = w.maps().Delete(w.T.Context(), namespace, plain, opts)
	} else {
		_, err = w.roles().Delete(w.T.Context(), "", name, opts)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		w.T.Fatal(err)
	}
}

// left are the objects that exist, with their owners: "default/b<a". One that
// is being deleted has a "-" before its name.
func (w *world) left() []string {
	w.T.Helper()
	w.Settle()
	time.Sleep(time.Second)
	w.Settle()
	var out []string
	tell := func(name string, obj client.Object) {
		if obj.GetDeletionTimestamp() != nil {
			name = "-" + name
		}
		var owners []string
		for _, ref := range obj.GetOwnerReferences() {
			owners = append(owners, ref.Name)
		}
		if len(owners) > 0 {
			name += "<" + strings.Join(owners, ",")
		}
		out = append(out, name)
	}
	for _, m := range controllertest.List[*corev1.ConfigMap](w.World) {
		tell(m.Namespace+"/"+m.Name, m)
	}
	for _, r := range controllertest.List[*rbacv1.ClusterRole](w.World) {
		tell(r.Name, r)
	}
	slices.Sort(out)
	return out
}

func (w *world) want(what string, names ...string) {
	w.T.Helper()
	if got := w.left(); !slices.Equal(got, names) {
		w.T.Errorf("%s: left %v, want %v", what, got, names)
	}
}

const (
	background = metav1.DeletePropagationBackground
	foreground = metav1.DeletePropagationForeground
	orphan     = metav1.DeletePropagationOrphan
)

func TestDependentsGoInTheBackground(t *testing.T) {
	run(t, func(w *world) {
		w.add("default/a")
		w.add("default/b", "default/a")
		w.add("default/c", "default/b")
		w.add("role")
		w.add("other/d", "role")
		w.want("before", "default/a", "default/b<a", "default/c<b", "other/d<role", "role")
		if got := w.Writes(); len(got) != 0 {
			t.Errorf("wrote %v while nothing was deleted", got)
		}
		w.delete("default/a", background)
		w.want("after a", "other/d<role", "role")
		w.delete("role", background)
		w.want("after role")
	})
}

func TestARingOfOwnersIsCollected(t *testing.T) {
	for _, policy := range []metav1.DeletionPropagation{background, foreground} {
		t.Run(string(policy), func(t *testing.T) {
			run(t, func(w *world) {
				w.add("default/a")
				w.add("default/b", "!default/a")
				w.add("default/c", "!default/b")
				w.own("default/a", "!default/c")
				w.want("before", "default/a<c", "default/b<a", "default/c<b")
				w.delete("default/a", policy)
				w.want("after")
			})
		})
	}
}

func TestForegroundWaitsForDependentsThatBlock(t *testing.T) {
	run(t, func(w *world) {
		w.add("default/a")
		w.addHeld("default/b", []string{"example.com/hold"}, "!default/a")
		w.addHeld("default/c", []string{"example.com/hold"}, "default/a")
		w.delete("default/a", foreground)
		w.want("held", "-default/a", "-default/b<a", "-default/c<a")
		w.patch("default/b", map[string]any{"finalizers": nil})
		w.want("released", "-default/c<a")
	})
}

func TestASecondOwnerKeepsADependent(t *testing.T) {
	run(t, func(w *world) {
		w.add("default/a")
		w.add("default/b")
		w.add("default/c", "!default/a", "default/b")
		w.delete("default/a", foreground)
		w.want("after the first", "default/b", "default/c<b")
		w.delete("default/b", background)
		w.want("after the second")
	})
}

func TestOrphansStay(t *testing.T) {
	run(t, func(w *world) {
		w.add("default/a")
		w.add("default/b", "!default/a")
		w.add("default/c", "default/b")
		w.delete("default/a", orphan)
		w.want("after", "default/b", "default/c<b")
	})
}

func TestAnOwnerThatNeverWasIsAbsent(t *testing.T) {
	run(t, func(w *world) {
		w.uids["default/ghost"] = "no-such-uid"
		w.add("default/a", "default/ghost")
		w.want("after")
	})
}

func TestAnOwnerOfTheSameNameIsNotTheOwner(t *testing.T) {
	run(t, func(w *world) {
		w.add("default/a")
		w.uids["default/a"] = "earlier"
		w.add("default/b", "default/a")
		w.want("after", "default/a")
	})
}

func TestAnOwnerInAnotherNamespaceIsAbsent(t *testing.T) {
	run(t, func(w *world) {
		w.add("default/a")
		w.add("other/b", "default/a")
		w.want("after", "default/a")
		events := w.Events()
		want := fmt.Sprintf(`Warning OwnerRefInvalidNamespace ownerRef [v1/ConfigMap, namespace: other, name: a, uid: %s] does not exist in namespace "other"`, w.uids["default/a"])
		if !slices.Contains(events, want) {
			t.Errorf("events %v, want %s", events, want)
		}
	})
}

func TestAClusterObjectWithANamespacedOwnerStays(t *testing.T) {
	run(t, func(w *world) {
		w.add("default/a")
		w.add("role", "default/a")
		w.delete("default/a", background)
		w.want("after", "role<a")
	})
}

func TestAnOwnerOfAnUnknownKindKeepsItsDependents(t *testing.T) {
	run(t, func(w *world) {
		w.add("default/a")
		w.patch("default/a", map[string]any{"ownerReferences": []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Thing", Name: "x", UID: "y"}}})
		time.Sleep(time.Hour)
		w.want("after", "default/a<x")
	})
}

// elsewhere is an API whose group example.com another server keeps; one that is down
// answers nothing.
type elsewhere struct {
	client.API
	other client.API
	down  atomic.Bool
}

// newElsewhere returns one with the cluster-scoped kind Thing.
func newElsewhere(w *controllertest.World) (*elsewhere, *apis.Catalogue) {
	w.T.Helper()
	catalogue := apis.NewCatalogue(&apis.Resource{
		Group: "example.com", Version: "v1", Kind: "Thing", Plural: "things", Scope: apis.Cluster,
		New:     func() apis.Object { return &unstructured.Unstructured{Object: map[string]any{}} },
		NewList: func() runtime.Object { return &unstructured.UnstructuredList{} },
	})
	st, err := store.Open(w.T.Context(), store.Config{Engine: memory.New(), Codec: registry.NewCodec(catalogue)})
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { st.Close() })
	r, err := registry.New(registry.Config{Store: st, Catalogue: catalogue})
	if err != nil {
		w.T.Fatal(err)
	}
	return &elsewhere{API: w.API, other: r.As(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})}, catalogue
}

func (e *elsewhere) at(ref client.Ref) (client.API, error) {
	switch {
	case ref.Resource.Group != "example.com":
		return e.API, nil
	case e.down.Load():
		return nil, apierrors.NewServiceUnavailable("down")
	}
	return e.other, nil
}

func (e *elsewhere) Get(ctx context.Context, ref client.Ref, opts metav1.GetOptions) (client.Object, error) {
	api, err := e.at(ref)
	if err != nil {
		return nil, err
	}
	return api.Get(ctx, ref, opts)
}

func (e *elsewhere) Watch(ctx context.Context, ref client.Ref, opts metav1.ListOptions) (client.Watch, error) {
	api, err := e.at(ref)
	if err != nil {
		return nil, err
	}
	return api.Watch(ctx, ref, opts)
}

func (e *elsewhere) Delete(ctx context.Context, ref client.Ref, opts metav1.DeleteOptions) (client.Object, error) {
	api, err := e.at(ref)
	if err != nil {
		return nil, err
	}
	return api.Delete(ctx, ref, opts)
}

func TestOwnersOnAServerThatIsDown(t *testing.T) {
	controllertest.Run(t, func(cw *controllertest.World) {
		others, kinds := newElsewhere(cw)
		things := client.Ref{Resource: schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "things"}}
		owner, err := others.other.Create(cw.T.Context(), things, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Thing", "metadata": map[string]any{"name": "x"},
		}}, metav1.CreateOptions{})
		if err != nil {
			cw.T.Fatal(err)
		}
		others.down.Store(true)
		defer cw.Start(func(c controllers.Config) []controllertest.Runner {
			return []controllertest.Runner{New(c, builtin.Catalogue()).With(kinds, others)}
		})()
		w := &world{cw, map[string]types.UID{}}
		owned := func(name string, uid types.UID) {
			w.add("default/" + name)
			w.patch("default/"+name, map[string]any{"ownerReferences": []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Thing", Name: "x", UID: uid}}})
		}
		owned("a", owner.GetUID())
		owned("b", "earlier")
		time.Sleep(time.Hour)
		w.want("while it is down", "default/a<x", "default/b<x")
		w.add("default/d")
		w.add("default/e", "default/d")
		w.delete("default/d", background)
		w.want("others are collected meanwhile", "default/a<x", "default/b<x")
		others.down.Store(false)
		time.Sleep(10 * time.Minute)
		w.want("once it answers", "default/a<x")
		things.Name = "x"
		if _, err := others.Delete(cw.T.Context(), things, metav1.DeleteOptions{}); err != nil {
			cw.T.Fatal(err)
		}
		w.want("after its owner")
	})
}

func TestAConflictingWriteIsRepeated(t *testing.T) {
	run(t, func(w *world) {
		w.add("default/a")
		for i := range 5 {
			w.add(fmt.Sprintf("default/b%d", i), "!default/a")
		}
		w.FailWrites(func(n int) (before, after error) {
			switch n % 3 {
			case 0:
				return apierrors.NewConflict(corev1.Resource("configmaps"), "x", nil), nil
			case 1:
				return nil, apierrors.NewServerTimeout(corev1.Resource("configmaps"), "write", 1)
			}
			return nil, nil
		})
		w.delete("default/a", foreground)
		w.want("after")
	})
}

func TestKindsServedLaterAreCollected(t *testing.T) {
	controllertest.Run(t, func(cw *controllertest.World) {
		defer cw.Start(func(c controllers.Config) []controllertest.Runner {
			return []controllertest.Runner{New(c, cw.Catalogue)}
		})()
		w := &world{cw, map[string]types.UID{}}
		w.add("default/a")
		w.Settle()
		widgets := client.Ref{Resource: schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}, Namespace: "default"}
		err := w.Catalogue.Add(&apis.Resource{
			Group: "example.com", Version: "v1", Kind: "Widget", Plural: "widgets",
			New:     func() apis.Object { return &unstructured.Unstructured{Object: map[string]any{}} },
			NewList: func() runtime.Object { return &unstructured.UnstructuredList{} },
		})
		if err != nil {
			t.Fatal(err)
		}
		widget := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"}}}
		widget.SetOwnerReferences(w.refs([]string{"default/a"}))
		if _, err := w.API.Create(w.T.Context(), widgets, widget, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.delete("default/a", background)
		w.want("built-in kinds after")
		list, err := w.API.List(w.T.Context(), widgets, metav1.ListOptions{})
		if err != nil || len(list.Items) != 0 {
			t.Errorf("widgets left: %v, %v", list, err)
		}
	})
}

// model is the same set of objects, kept by recomputing everything.
type model map[string][]string // owners by name

func (m model) valid(dependent, owner string) bool {
	if _, ok := m[owner]; !ok {
		return false
	}
	ons, _, namespaced := strings.Cut(owner, "/")
	dns, _, _ := strings.Cut(dependent, "/")
	return !namespaced || ons == dns
}

func (m model) collect() {
	for changed := true; changed; {
		changed = false
		for name, owners := range m {
			kept := slices.DeleteFunc(slices.Clone(owners), func(o string) bool { return !m.valid(name, o) })
			if len(owners) > 0 && len(kept) == 0 {
				delete(m, name)
				changed = true
			} else if len(kept) != len(owners) {
				m[name] = kept
			}
		}
	}
}

func (m model) left() []string {
	var out []string
	for name, owners := range m {
		plain := make([]string, len(owners))
		for i, o := range owners {
			plain[i] = o[strings.Index(o, "/")+1:]
		}
		if len(plain) > 0 {
			name += "<" + strings.Join(plain, ",")
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func TestRandomGraphsEndAsTheModelSays(t *testing.T) {
	for seed := range int64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			run(t, func(w *world) { play(w, rand.New(rand.NewSource(seed))) })
		})
	}
}

func play(w *world, rnd *rand.Rand) {
	m := model{}
	owners := func() (names []string, written []string) {
		all := slices.Sorted(maps.Keys(w.uids))
		rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for _, name := range all[:min(len(all), rnd.Intn(4))] {
			names = append(names, name)
			if rnd.Intn(2) == 0 {
				name = "!" + name
			}
			written = append(written, name)
		}
		return names, written
	}
	for step := range 60 {
		for range 1 + rnd.Intn(4) { // at the same time, in any order
			names := slices.Sorted(maps.Keys(m))
			if len(names) == 0 || rnd.Intn(5) < 3 {
				name := fmt.Sprintf("default/n%d", len(w.uids))
				var names, written []string
				switch rnd.Intn(6) {
				case 0:
					name = fmt.Sprintf("role%d", len(w.uids))
				case 1:
					name = fmt.Sprintf("other/n%d", len(w.uids))
					fallthrough
				default:
					names, written = owners()
				}
				w.add(name, written...)
				m[name] = names
				continue
			}
			name := names[rnd.Intn(len(names))]
			w.delete(name, []metav1.DeletionPropagation{background, foreground}[rnd.Intn(2)])
			delete(m, name)
		}
		m.collect()
		if got, want := w.left(), m.left(); !slices.Equal(got, want) {
			w.T.Fatalf("step %d: left %v, want %v", step, got, want)
		}
		if names := slices.Sorted(maps.Keys(m)); len(names) > 0 && rnd.Intn(4) == 0 {
			name := names[rnd.Intn(len(names))]
			w.delete(name, orphan)
			w.Settle() // whether later dependents are orphans too is a race
			delete(m, name)
			for other, of := range m {
				m[other] = slices.DeleteFunc(of, func(o string) bool { return o == name })
			}
			m.collect()
		}
	}
}
