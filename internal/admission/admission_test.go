package admission

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"proa/internal/apis"
	"proa/internal/apis/builtin"
	"proa/internal/auth/authtest"
	"proa/internal/auth/rbac"
	"proa/internal/store"
)

var catalogue = builtin.Catalogue()

func meta(ns, name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: ns, Name: name} }

func namespace(name string, labels ...string) *corev1.Namespace {
	n := &corev1.Namespace{ObjectMeta: meta("", name), Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}}
	n.Labels = map[string]string{}
	for i := 0; i < len(labels); i += 2 {
		n.Labels[labels[i]] = labels[i+1]
	}
	return n
}

func terminating(name string) *corev1.Namespace {
	n := namespace(name)
	n.Status.Phase = corev1.NamespaceTerminating
	return n
}

func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: meta("ns", "p"), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	for _, f := range change {
		f(p)
	}
	return p
}

var jane = &user.DefaultInfo{Name: "jane", Groups: []string{"system:authenticated"}}

type world struct {
	*Chain
	store *store.Store
}

// newWorld has the namespace ns with a default service account, and objects.
func newWorld(t testing.TB, change func(*Config), objects ...store.Object) world {
	t.Helper()
	s := authtest.Open(t, append([]store.Object{
		namespace("ns"), &corev1.ServiceAccount{ObjectMeta: meta("ns", "default")},
	}, objects...)...)
	if err := rbac.Bootstrap(t.Context(), s, clock.RealClock{}); err != nil {
		t.Fatal(err)
	}
	roles := rbac.New(s)
	c := Config{Store: s, Catalogue: catalogue, Authorizer: roles, RBAC: roles}
	if change != nil {
		change(&c)
	}
	chain, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return world{chain, s}
}

// write is one write as the registry describes it.
type write struct {
	op   admissionv1.Operation // default: create, or update when there is an old object
	sub  string
	obj  store.Object
	old  store.Object
	user user.Info
}

func (w write) attributes(t testing.TB) *Attributes {
	t.Helper()
	of := w.obj
	if of == nil {
		of = w.old
	}
	parent := of
	if w.sub == "token" {
		parent = &corev1.ServiceAccount{ObjectMeta: meta(of.GetNamespace(), of.GetName())}
	} else if w.sub == "eviction" || w.sub == "binding" {
		parent = &corev1.Pod{ObjectMeta: meta(of.GetNamespace(), of.GetName())}
	}
	resource, ok := catalogue.Of(parent)
	if !ok {
		key := authtest.Key(t, parent)
		resource = &apis.Resource{Group: key.Resource.Group, Version: "v1", Plural: key.Resource.Resource}
	}
	a := &Attributes{Operation: w.op, Resource: resource, Subresource: w.sub, Namespace: of.GetNamespace(), Name: of.GetName(), User: w.user}
	if w.obj != nil {
		a.Object = w.obj
	}
	if w.old != nil {
		a.OldObject = w.old
	}
	if a.Operation == "" {
		a.Operation = admissionv1.Create
		if w.old != nil {
			a.Operation = admissionv1.Update
		}
	}
	if a.User == nil {
		a.User = jane
	}
	if _, ok := of.(*corev1.Namespace); ok {
		a.Namespace = a.Name
	}
	return a
}

var errDry = errors.New("dry")

// run takes a write through all phases; commit says whether to keep what Commit wrote.
func (w world) run(t testing.TB, a *Attributes, commit bool) error {
	t.Helper()
	ctx := t.Context()
	if err := w.Admit(ctx, a); err != nil {
		return err
	}
	if err := w.Validate(ctx, a); err != nil {
		return err
	}
	_, err := w.store.Update(ctx, func(tx *store.Tx) error {
		if err := w.Commit(tx, a); err != nil {
			return err
		}
		if !commit {
			return errDry
		}
		_, err := tx.Create(authtest.Key(t, a.Object), a.Object.DeepCopyObject().(store.Object))
		return err
	})
	if errors.Is(err, errDry) {
		return nil
	}
	return err
}

func checkError(t testing.TB, err error, want string) {
	t.Helper()
	switch {
	case err == nil && want != "":
		t.Errorf("passed, want %s", want)
	case err != nil && err.Error() != want:
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if err != nil {
		if _, ok := err.(apierrors.APIStatus); !ok {
			t.Errorf("%T is no API status", err)
		}
	}
}

func TestNamespaceLifecycle(t *testing.T) {
	w := newWorld(t, nil, terminating("going"))
	in := func(ns string) store.Object { return &corev1.ConfigMap{ObjectMeta: meta(ns, "x")} }
	tests := []struct {
		name string
		write
		want string
	}{
		{"create in a namespace", write{obj: in("ns")}, ""},
		{"create in a missing namespace", write{obj: in("none")}, `namespaces "none" not found`},
		{"create in a terminating namespace", write{obj: in("going")},
			`configmaps "x" is forbidden: unable to create new content in namespace going because it is being terminated`},
		{"update in a terminating namespace", write{obj: in("going"), old: in("going")}, ""},
		{"delete in a missing namespace", write{op: admissionv1.Delete, old: in("none")}, ""},
		{"delete a namespace", write{op: admissionv1.Delete, old: namespace("ns")}, ""},
		{"delete kube-system", write{op: admissionv1.Delete, old: namespace("kube-system")}, `namespaces "kube-system" is forbidden: this namespace may not be deleted`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { checkError(t, w.run(t, tt.attributes(t), false), tt.want) })
	}
	err := w.run(t, write{obj: in("going")}.attributes(t), false)
	if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Errorf("no cause NamespaceTerminating in %v", err)
	}
}

func TestANamespaceThatBeginsToEndStopsWritesUnderWay(t *testing.T) {
	w := newWorld(t, nil)
	a := write{obj: &corev1.ConfigMap{ObjectMeta: meta("ns", "x")}}.attributes(t)
	if err := w.Admit(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	authtest.Put(t, w.store, terminating("ns"))
	_, err := w.store.Update(t.Context(), func(tx *store.Tx) error { return w.Commit(tx, a) })
	if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Errorf("committed: %v", err)
	}
}

func TestServiceAccount(t *testing.T) {
	w := newWorld(t, nil,
		&corev1.ServiceAccount{ObjectMeta: meta("ns", "quiet"), AutomountServiceAccountToken: new(false),
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}})
	p := pod(func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "i", VolumeMounts: []corev1.VolumeMount{{Name: "own", MountPath: tokenPath}}}}
	})
	checkError(t, w.run(t, write{obj: p}.attributes(t), false), "")
	if p.Spec.ServiceAccountName != "default" || p.Spec.DeprecatedServiceAccount != "default" {
		t.Errorf("service account %q", p.Spec.ServiceAccountName)
	}
	if len(p.Spec.Volumes) != 1 || !regexp.MustCompile("^kube-api-access-[a-z0-9]{5}$").MatchString(p.Spec.Volumes[0].Name) || *p.Spec.Volumes[0].Projected.Sources[0].ServiceAccountToken.ExpirationSeconds != 3607 {
		t.Errorf("volumes %+v", p.Spec.Volumes)
	}
	if len(p.Spec.InitContainers[0].VolumeMounts) != 1 || len(p.Spec.Containers[0].VolumeMounts) != 1 || p.Spec.Containers[0].VolumeMounts[0].MountPath != tokenPath {
		t.Errorf("mounts %+v %+v", p.Spec.InitContainers[0].VolumeMounts, p.Spec.Containers[0].VolumeMounts)
	}
	other := pod(func(*corev1.Pod) {})
	checkError(t, w.run(t, write{obj: other}.attributes(t), false), "")
	if other.Spec.Volumes[0].Name != p.Spec.Volumes[0].Name {
		t.Error("pods of one account have volumes of different names: their containers cannot be shared")
	}
	before := p.DeepCopy()
	checkError(t, w.run(t, write{obj: p}.attributes(t), false), "")
	if before.String() != p.String() {
		t.Errorf("admitting twice changed the pod: %v", p)
	}

	quiet := pod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "quiet" })
	checkError(t, w.run(t, write{obj: quiet}.attributes(t), false), "")
	if len(quiet.Spec.Volumes) != 0 || len(quiet.Spec.ImagePullSecrets) != 1 {
		t.Errorf("volumes %v, pull secrets %v", quiet.Spec.Volumes, quiet.Spec.ImagePullSecrets)
	}
	checkError(t, w.run(t, write{obj: pod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "none" })}.attributes(t), false),
		`pods "p" is forbidden: error looking up service account ns/none: serviceaccount "none" not found`)
	mirror := pod(func(p *corev1.Pod) {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		p.Spec.ServiceAccountName = "default"
	})
	checkError(t, w.run(t, write{obj: mirror}.attributes(t), false), `pods "p" is forbidden: a mirror pod may not reference service accounts`)
}

func TestAPodWaitsForTheDefaultAccountOfANewNamespace(t *testing.T) {
	w := newWorld(t, nil, namespace("new"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	p := pod(func(p *corev1.Pod) { p.Namespace = "new" })
	a := write{obj: p}.attributes(t)
	go func() { done <- w.Admit(ctx, a) }()
	authtest.Put(t, w.store, &corev1.ServiceAccount{ObjectMeta: meta("new", "default")})
	if err := <-done; err != nil {
		t.Error(err)
	}
	cancel()
}

// stand answers yes to requests whose "verb resource name" it holds.
type stand map[string]bool

func (s stand) authorizer() authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if s[strings.TrimSpace(a.GetVerb()+" "+a.GetResource()+" "+a.GetName())] {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	})
}
