// Package static runs the pods of a manifest directory, which need no API
// server, and shows each in the API as a mirror pod: a copy that users can see
// but that does not govern the pod. Whoever deletes a mirror gets a new one.
package static

import (
	"cmp"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// Annotations of static pods and their mirrors.
const (
	annSource = "kubernetes.io/config.source"
	annHash   = "kubernetes.io/config.hash"
	annSeen   = "kubernetes.io/config.seen"
	annMirror = corev1.MirrorPodAnnotationKey
)

const rescan = 20 * time.Second

// Pods is the API of pods, for mirrors.
type Pods interface {
	Create(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error)
	Delete(ctx context.Context, namespace, name string, opts metav1.DeleteOptions) (*corev1.Pod, error)
}

// Config makes a Manager.
type Config struct {
	Dir      string        // of the manifests, or one manifest; empty: no static pods, stray mirrors are removed
	Every    time.Duration // how often manifests are read again; default 20 s
	NodeName string
	Pods     Pods
	Default  func(*corev1.Pod) // fills the API's defaults in
	Node     func() (*corev1.Node, error)
	Start    func(*corev1.Pod)
	Stop     func(*corev1.Pod)
	Running  func(types.UID) bool // whether the node still holds anything of a pod
	Mirrored func(*corev1.Pod)    // called with a static pod whose mirror appeared
	Clock    clock.WithTicker
	Log      *slog.Logger
}

// Manager follows the directory and the mirrors.
type Manager struct {
	c    Config
	poke chan struct{}

	mu      sync.Mutex
	pods    map[types.NamespacedName]*corev1.Pod // guarded by mu: static pods started
	mirrors map[types.NamespacedName]*corev1.Pod // guarded by mu: as the API has them
}

// New makes a Manager.
func New(c Config) *Manager {
	return &Manager{c: c, poke: make(chan struct{}, 1), pods: map[types.NamespacedName]*corev1.Pod{}, mirrors: map[types.NamespacedName]*corev1.Pod{}}
}

// IsMirror reports whether an API object only stands for a static pod.
func IsMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[annMirror]
	return ok
}

// Mirror is the object that stands for a static pod in the API, or nil; static
// is false for other pods.
func (m *Manager) Mirror(pod *corev1.Pod) (mirror *corev1.Pod, static bool) {
	if src := pod.Annotations[annSource]; src == "" || src == "api" {
		return nil, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	mirror = m.mirrors[nameOf(pod)]
	if mirror != nil && mirror.Annotations[annMirror] != string(pod.UID) {
		return nil, true
	}
	return mirror, true
}

// MirrorChanged tells of a mirror in the API; gone says it was deleted.
func (m *Manager) MirrorChanged(pod *corev1.Pod, gone bool) {
	key := nameOf(pod)
	m.mu.Lock()
	old := m.mirrors[key]
	if gone {
		delete(m.mirrors, key)
	} else {
		m.mirrors[key] = pod
	}
	fresh := !gone && (old == nil || old.UID != pod.UID)
	static := m.pods[key]
	m.mu.Unlock()
	if fresh && static != nil && m.c.Mirrored != nil {
		m.c.Mirrored(static)
	}
	if gone || fresh || pod.DeletionTimestamp != nil {
		m.Poke()
	}
}

// Poke makes the manager look again.
func (m *Manager) Poke() {
	select {
	case m.poke <- struct{}{}:
	default:
	}
}

func nameOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// Run follows the directory until ctx ends. Changes show at once where the file
// system tells, else within rescan.
func (m *Manager) Run(ctx context.Context) error {
	var events chan fsnotify.Event
	if m.c.Dir != "" {
		dir, err := m.directory()
		if err != nil {
			return fmt.Errorf("make manifest directory: %w", err)
		}
		w, err := fsnotify.NewWatcher()
		if err != nil {
			return fmt.Errorf("watch manifests: %w", err)
		}
		defer w.Close()
		if err := w.Add(dir); err != nil {
			return fmt.Errorf("watch manifests: %w", err)
		}
		events = w.Events
	}
	tick := m.c.Clock.NewTicker(cmp.Or(m.c.Every, rescan))
	defer tick.Stop()
	for {
		if err := m.sync(ctx); err != nil && ctx.Err() == nil {
			m.c.Log.Warn("static pods", "err", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-events:
		case <-m.poke:
		case <-tick.C():
		}
	}
}

// directory is where changes of the manifests show. One that is missing is made.
func (m *Manager) directory() (string, error) {
	if info, err := os.Stat(m.c.Dir); err == nil && !info.IsDir() {
		return filepath.Dir(m.c.Dir), nil
	}
	return m.c.Dir, os.MkdirAll(m.c.Dir, 0o755)
}

func (m *Manager) sync(ctx context.Context) error {
	if err := m.Load(); err != nil {
		return err
	}
	m.mu.Lock()
	pods := maps.Clone(m.pods)
	m.mu.Unlock()
	return m.syncMirrors(ctx, pods)
}

// Load starts and stops static pods after the directory's content.
func (m *Manager) Load() error {
	want, err := m.read()
	if err != nil {
		return err
	}
	m.mu.Lock()
	have := m.pods
	next := map[types.NamespacedName]*corev1.Pod{}
	var stop, start []*corev1.Pod
	for key, pod := range have {
		if w := want[key]; w == nil || w.UID != pod.UID {
			if m.c.Running(pod.UID) {
				stop = append(stop, pod)
				next[key] = pod // its successor waits for it
			}
		} else {
			next[key] = pod
		}
	}
	for key, pod := range want {
		if next[key] == nil {
			next[key] = pod
			start = append(start, pod)
		}
	}
	m.pods = next
	m.mu.Unlock()
	for _, pod := range stop {
		m.c.Stop(pod)
	}
	for _, pod := range start {
		m.c.Start(pod)
	}
	return nil
}

// syncMirrors makes the API show the static pods and no others.
func (m *Manager) syncMirrors(ctx context.Context, pods map[types.NamespacedName]*corev1.Pod) error {
	m.mu.Lock()
	mirrors := maps.Clone(m.mirrors)
	m.mu.Unlock()
	var errs []error
	for key, mirror := range mirrors {
		pod := pods[key]
		if pod != nil && mirror.Annotations[annMirror] == string(pod.UID) && mirror.DeletionTimestamp == nil {
			continue
		}
		_, err := m.c.Pods.Delete(ctx, mirror.Namespace, mirror.Name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &mirror.UID},
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("delete mirror %s: %w", key, err))
		}
	}
	for key, pod := range pods {
		if mirrors[key] != nil {
			continue
		}
		if err := m.createMirror(ctx, pod); err != nil {
			errs = append(errs, fmt.Errorf("create mirror %s: %w", key, err))
		}
	}
	return errors.Join(errs...)
}

func (m *Manager) createMirror(ctx context.Context, pod *corev1.Pod) error {
	node, err := m.c.Node()
	if err != nil {
		return err
	}
	mirror := pod.DeepCopy()
	mirror.UID = ""
	mirror.Status = corev1.PodStatus{}
	mirror.Annotations[annMirror] = pod.Annotations[annHash]
	mirror.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: ptr.To(true)}}
	_, err = m.c.Pods.Create(ctx, mirror)
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// read loads all manifests. One that does not parse is logged and skipped, so
// that it stops no other.
func (m *Manager) read() (map[types.NamespacedName]*corev1.Pod, error) {
	out := map[types.NamespacedName]*corev1.Pod{}
	if m.c.Dir == "" {
		return out, nil
	}
	files, err := m.files()
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err == nil {
			var pod *corev1.Pod
			if pod, err = m.parse(path, b); err == nil {
				out[nameOf(pod)] = pod
				continue
			}
		}
		m.c.Log.Warn("static pod manifest", "file", path, "err", err)
	}
	return out, nil
}

// files are the manifests.
func (m *Manager) files() ([]string, error) {
	info, err := os.Stat(m.c.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil || !info.IsDir() {
		return []string{m.c.Dir}, err
	}
	entries, err := os.ReadDir(m.c.Dir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if !e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			files = append(files, filepath.Join(m.c.Dir, e.Name()))
		}
	}
	return files, nil
}

// parse makes a static pod of a manifest. Its UID follows from the node, the
// file and the content: a changed file is another pod.
func (m *Manager) parse(path string, b []byte) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := yaml.Unmarshal(b, pod); err != nil {
		return nil, err
	}
	if pod.Kind != "Pod" || pod.Name == "" || len(pod.Spec.Containers) == 0 {
		return nil, fmt.Errorf("not a pod with a name and containers")
	}
	pod.TypeMeta = metav1.TypeMeta{}
	if pod.UID == "" {
		sum := md5.New()
		fmt.Fprintf(sum, "host:%s\nfile:%s\n", m.c.NodeName, path)
		sum.Write(b)
		pod.UID = types.UID(hex.EncodeToString(sum.Sum(nil)))
	}
	if pod.Namespace == "" {
		pod.Namespace = corev1.NamespaceDefault
	}
	pod.Name = strings.ToLower(pod.Name + "-" + m.c.NodeName)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[annHash], pod.Annotations[annSource] = string(pod.UID), "file"
	pod.Annotations[annSeen] = m.seen(pod)
	pod.Spec.NodeName = m.c.NodeName
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})
	pod.Status.Phase = corev1.PodPending
	m.c.Default(pod)
	return pod, nil
}

// seen is when this pod was first read; it does not change with each scan.
func (m *Manager) seen(pod *corev1.Pod) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.pods[nameOf(pod)]; old != nil && old.UID == pod.UID {
		return old.Annotations[annSeen]
	}
	return m.c.Clock.Now().Format(time.RFC3339Nano)
}
