package objects

import (
	"context"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"proa/internal/client"
)

// server holds one ConfigMap and counts open watches.
type server struct {
	client.API
	mu      sync.Mutex
	changed *sync.Cond
	object  *corev1.ConfigMap
	events  []client.Event
	watches int
	gets    int
}

func newServer() *server {
	s := &server{}
	s.changed = sync.NewCond(&s.mu)
	return s
}

func (s *server) set(obj *corev1.ConfigMap, kind watch.EventType) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.object = obj
	if kind == watch.Deleted {
		s.object = nil
	}
	s.events = append(s.events, client.Event{Type: kind, Object: obj})
	s.changed.Broadcast()
}

func (s *server) Get(_ context.Context, ref client.Ref, _ metav1.GetOptions) (client.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gets++
	if s.object == nil {
		return nil, apierrors.NewNotFound(ref.Resource.GroupResource(), ref.Name)
	}
	return s.object, nil
}

func (s *server) List(_ context.Context, _ client.Ref, opts metav1.ListOptions) (*client.List, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := &client.List{ResourceVersion: "1"}
	if opts.FieldSelector == "metadata.name=cm" && s.object != nil {
		list.Items = []client.Object{s.object}
	}
	return list, nil
}

func (s *server) Watch(ctx context.Context, _ client.Ref, _ metav1.ListOptions) (client.Watch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches++
	s.changed.Broadcast()
	w := &stream{s: s, at: len(s.events)}
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed.Broadcast()
	})
	return w, nil
}

type stream struct {
	s  *server
	at int
}

func (w *stream) Next(ctx context.Context) ([]client.Event, error) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	for w.at == len(w.s.events) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		w.s.changed.Wait()
	}
	events := w.s.events[w.at:]
	w.at = len(w.s.events)
	return events, nil
}

func (w *stream) Stop() {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.s.watches--
	w.s.changed.Broadcast()
}

func (s *server) awaitWatches(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.watches != n {
		s.changed.Wait()
	}
}

func configMap(version, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cm", Namespace: "ns", UID: "1", ResourceVersion: version}, Data: map[string]string{"k": value}}
}

func user(uid types.UID) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", UID: uid}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
		VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}},
	}}}}
}

func TestObjectsAreFollowedWhilePodsReferToThem(t *testing.T) {
	s := newServer()
	changed := make(chan []types.UID, 10)
	c := New(Config{API: s, Changed: func(pods []types.UID) { changed <- pods }})
	defer c.Close()
	c.Track(user("p1"))
	if _, err := c.ConfigMap(t.Context(), "ns", "cm"); !apierrors.IsNotFound(err) {
		t.Fatalf("got %v", err)
	}
	<-changed // the first answer
	s.awaitWatches(1)
	s.set(configMap("2", "v1"), watch.Added)
	if pods := <-changed; len(pods) != 1 || pods[0] != "p1" {
		t.Errorf("told about %v", pods)
	}
	cm, err := c.ConfigMap(t.Context(), "ns", "cm")
	if err != nil || cm.Data["k"] != "v1" {
		t.Errorf("got %v, %v", cm, err)
	}
	c.Track(user("p2"))
	s.set(configMap("3", "v2"), watch.Modified)
	if pods := <-changed; len(pods) != 2 {
		t.Errorf("told about %v", pods)
	}
	s.set(configMap("4", ""), watch.Deleted)
	<-changed
	if _, err := c.ConfigMap(t.Context(), "ns", "cm"); !apierrors.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
	if s.gets != 0 {
		t.Errorf("%d reads beside the watch", s.gets)
	}
	c.Forget("p1")
	s.awaitWatches(1)
	c.Forget("p2")
	s.awaitWatches(0)
	if _, err := c.ConfigMap(t.Context(), "ns", "cm"); !apierrors.IsNotFound(err) || s.gets != 1 {
		t.Errorf("an object nobody follows: %v after %d reads", err, s.gets)
	}
}

// A pod names objects in many places; one that is missed cannot be read. Each
// reference here has a name of its own.
func TestReferencesOfAPod(t *testing.T) {
	local := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	env := func(name string) ([]corev1.EnvVar, []corev1.EnvFromSource) {
		return []corev1.EnvVar{
				{ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: local(name + "-cm-key")}}},
				{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: local(name + "-s-key")}}},
			}, []corev1.EnvFromSource{
				{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: local(name + "-cm")}},
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: local(name + "-s")}},
			}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}
	pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{local("pull"), local("")}
	pod.Spec.Containers = make([]corev1.Container, 1)
	pod.Spec.InitContainers = make([]corev1.Container, 1)
	pod.Spec.EphemeralContainers = make([]corev1.EphemeralContainer, 1)
	pod.Spec.Containers[0].Env, pod.Spec.Containers[0].EnvFrom = env("c")
	pod.Spec.InitContainers[0].Env, pod.Spec.InitContainers[0].EnvFrom = env("i")
	pod.Spec.EphemeralContainers[0].Env, pod.Spec.EphemeralContainers[0].EnvFrom = env("e")
	pod.Spec.Volumes = []corev1.Volume{
		{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: local("v-cm")}}},
		{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "v-s"}}},
		{VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: &corev1.LocalObjectReference{Name: "v-csi"}}}},
		{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: local("p-cm")}},
			{Secret: &corev1.SecretProjection{LocalObjectReference: local("p-s")}},
		}}}},
	}
	got := references(pod)
	want := []ref{{"secrets", "ns", "pull"}, {"configmaps", "ns", "v-cm"}, {"secrets", "ns", "v-s"}, {"secrets", "ns", "v-csi"}, {"configmaps", "ns", "p-cm"}, {"secrets", "ns", "p-s"}}
	for _, p := range []string{"c", "i", "e"} {
		want = append(want, ref{"configmaps", "ns", p + "-cm-key"}, ref{"secrets", "ns", p + "-s-key"}, ref{"configmaps", "ns", p + "-cm"}, ref{"secrets", "ns", p + "-s"})
	}
	if got.Len() != len(want) || !got.HasAll(want...) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}
