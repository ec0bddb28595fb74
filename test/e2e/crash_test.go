package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

const (
	crashes      = 4
	crashWriters = 8
	crashWrites  = 400 // acknowledged between two crashes, about
)

const crashPods = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: steady}
spec:
  replicas: 3
  selector: {matchLabels: {app: steady}}
  template:
    metadata: {labels: {app: steady}}
    spec:
      containers: [{name: c, image: "busybox:1.35", command: [sleep, "86397"]}]
`

// proa is killed again and again while eight clients write over HTTPS. Beside
// them runs a model of what was acknowledged. After each start the cluster is
// what the model says, the watch goes on where it was cut, and the containers
// never noticed.
func TestNothingAcknowledgedIsLostInACrash(t *testing.T) {
	c := &cluster{dir: filepath.Join(t.TempDir(), "crash"), port: freePort(), kubeletPort: freePort()}
	up := func() {
		t.Helper()
		if out, err := c.proa("up", "--detach", "--port", fmt.Sprint(c.port), "--kubelet-port", fmt.Sprint(c.kubeletPort)); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	up()
	t.Cleanup(func() {
		if out, err := c.proa("down", "--delete"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	if out, err := c.proa("image", "load", imageFile("busybox")); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c.kubectl(t, "create", "namespace", "crash")
	c.apply(t, crashPods)
	c.kubectl(t, "rollout", "status", "deployment/steady", "--timeout=60s")
	containers, started := c.steady(t), processIDs(t, "sleep 86397")

	client, err := kubernetes.NewForConfig(c.config(t))
	if err != nil {
		t.Fatal(err)
	}
	objects := client.CoreV1().ConfigMaps("crash")
	model := newModel(objects)
	follower := follow(t, objects)
	for range crashes {
		model.writeUntil(t, crashWrites/2+rand.Int64N(crashWrites), func() { c.kill(t) })
		up()
		live := list(t, objects)
		model.compare(t, live)
		follower.reaches(t, live)
		eventually(t, 20*time.Second, func() error {
			if now := c.steady(t); now != containers {
				return fmt.Errorf("containers were\n%s\nand are\n%s", containers, now)
			}
			return nil
		})
		if now := processIDs(t, "sleep 86397"); now != started {
			t.Fatalf("processes %s became %s", started, now)
		}
	}
	follower.saw(t, model)
	t.Logf("%d writes acknowledged, %d in doubt, over %d crashes; the watch was opened %d times", model.acknowledged.Load(), model.doubts, crashes, follower.opened)
}

// steady are the ids and restart counts of the containers, a line each.
func (c *cluster) steady(t *testing.T) string {
	t.Helper()
	return c.kubectl(t, "get", "pods", "-l", "app=steady", "--sort-by=.metadata.name", "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.status.phase} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}{"\n"}{end}`)
}

// processIDs are the processes with a command line, as the kernel knows them.
func processIDs(t *testing.T, commandLine string) string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, file := range files {
		data, _ := os.ReadFile(file)
		if strings.TrimSpace(strings.ReplaceAll(string(data), "\x00", " ")) == commandLine {
			ids = append(ids, strings.Split(file, "/")[2])
		}
	}
	sort.Strings(ids)
	return strings.Join(ids, " ")
}

// version is one state of an object: the number of the write that made it, and
// the resourceVersion it got. The zero value is an object that is not there.
type version struct {
	write    int64
	revision string
}

// slot is an object that one writer alone writes.
type slot struct {
	name  string
	acked version
	doubt *version // what the object is now if the last write, unanswered, took place
}

// model is what writers were told.
type model struct {
	objects      typedcorev1.ConfigMapInterface
	writers      [crashWriters][]*slot
	numbers      atomic.Int64 // of writes; no two are the same
	acknowledged atomic.Int64
	doubts       int

	mu        sync.Mutex // guards revisions
	revisions []string   // of acknowledged creates and updates
}

func newModel(objects typedcorev1.ConfigMapInterface) *model {
	m := &model{objects: objects}
	const slots = 12
	for w := range m.writers {
		for i := range slots {
			m.writers[w] = append(m.writers[w], &slot{name: fmt.Sprintf("w%d-%d", w, i)})
		}
	}
	return m
}

// writeUntil lets all writers write, calls crash when about n writes were
// acknowledged, and returns when every writer has met with the crash.
func (m *model) writeUntil(t *testing.T, n int64, crash func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	target := m.acknowledged.Load() + n
	reached := make(chan struct{})
	var once sync.Once
	var writers sync.WaitGroup
	for _, slots := range m.writers {
		writers.Go(func() {
			for {
				err := m.write(ctx, slots[rand.IntN(len(slots))])
				if err != nil {
					if status := apierrors.APIStatus(nil); errors.As(err, &status) {
						t.Errorf("refused: %v", err)
					}
					return
				}
				if m.acknowledged.Add(1) >= target {
					once.Do(func() { close(reached) })
				}
			}
		})
	}
	select {
	case <-reached:
	case <-ctx.Done():
		t.Error("the writers do not get on")
	}
	crash()
	writers.Wait()
}

// write changes one object some way. An error leaves it in doubt.
func (m *model) write(ctx context.Context, s *slot) error {
	next := version{write: m.numbers.Add(1)}
	data := map[string]string{"write": strconv.FormatInt(next.write, 10), "weight": strings.Repeat("x", rand.IntN(2000))}
	var made *corev1.ConfigMap
	var err error
	switch {
	case s.acked.write == 0:
		made, err = m.objects.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: s.name}, Data: data}, metav1.CreateOptions{})
	default:
		switch rand.IntN(8) {
		case 0:
			next = version{}
			err = m.objects.Delete(ctx, s.name, metav1.DeleteOptions{})
		case 1, 2, 3:
			made, err = m.objects.Update(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: s.name, ResourceVersion: s.acked.revision}, Data: data}, metav1.UpdateOptions{})
		case 4, 5:
			made, err = m.objects.Patch(ctx, s.name, types.MergePatchType, fmt.Appendf(nil, `{"data":{"write":"%d"}}`, next.write), metav1.PatchOptions{})
		default:
			made, err = m.objects.Apply(ctx, applycorev1.ConfigMap(s.name, "crash").WithData(data), metav1.ApplyOptions{FieldManager: "crash", Force: true})
		}
	}
	if err != nil {
		s.doubt = &next
		return err
	}
	if made != nil {
		next.revision = made.ResourceVersion
		m.mu.Lock()
		m.revisions = append(m.revisions, next.revision)
		m.mu.Unlock()
	}
	s.acked = next
	return nil
}

// compare holds the cluster against the model, and settles what was in doubt.
func (m *model) compare(t *testing.T, live map[string]version) {
	t.Helper()
	for _, slots := range m.writers {
		for _, s := range slots {
			now := live[s.name]
			switch {
			case now == s.acked:
			case s.doubt != nil && now.write == s.doubt.write:
				m.doubts++
			case s.doubt != nil:
				t.Errorf("%s is %+v; acknowledged was %+v, in doubt %+v", s.name, now, s.acked, *s.doubt)
			default:
				t.Errorf("%s is %+v; acknowledged was %+v", s.name, now, s.acked)
			}
			s.acked, s.doubt = now, nil
		}
	}
}

func list(t *testing.T, objects typedcorev1.ConfigMapInterface) map[string]version {
	t.Helper()
	found, err := objects.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	live := map[string]version{}
	for i := range found.Items {
		if v, ours := versionOf(&found.Items[i]); ours {
			live[found.Items[i].Name] = v
		}
	}
	return live
}

func versionOf(o *corev1.ConfigMap) (v version, ours bool) {
	n, err := strconv.ParseInt(o.Data["write"], 10, 64)
	return version{n, o.ResourceVersion}, err == nil
}

// follower watches all the while, as a client does: when the connection breaks
// it asks for what came after the last it saw.
type follower struct {
	objects typedcorev1.ConfigMapInterface
	opened  int

	mu        sync.Mutex // guards the rest
	last      int64      // resourceVersion
	state     map[string]version
	revisions map[string]bool
	failure   error
}

func follow(t *testing.T, objects typedcorev1.ConfigMapInterface) *follower {
	t.Helper()
	found, err := objects.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{objects: objects, state: map[string]version{}, revisions: map[string]bool{}}
	if f.last, err = strconv.ParseInt(found.ResourceVersion, 10, 64); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f.run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return f
}

func (f *follower) run(ctx context.Context) {
	for ctx.Err() == nil && f.failed() == nil {
		f.mu.Lock()
		from := strconv.FormatInt(f.last, 10)
		f.mu.Unlock()
		w, err := f.objects.Watch(ctx, metav1.ListOptions{ResourceVersion: from, AllowWatchBookmarks: true})
		if status := apierrors.APIStatus(nil); errors.As(err, &status) {
			f.fail(fmt.Errorf("watch from %s: %w", from, err))
		}
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond): // nobody listens yet
			}
			continue
		}
		f.opened++
		for event := range w.ResultChan() {
			if status, ok := event.Object.(*metav1.Status); ok && strings.Contains(status.Message, "unable to decode an event from the watch stream") {
				break // the client's word for a connection that broke in the middle of an event
			}
			if err := f.take(event); err != nil {
				f.fail(err)
			}
		}
	}
}

// take holds one event against those before it.
func (f *follower) take(event watch.Event) error {
	o, ok := event.Object.(*corev1.ConfigMap)
	if !ok {
		return fmt.Errorf("event %s: %w", event.Type, apierrors.FromObject(event.Object))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	revision, err := strconv.ParseInt(o.ResourceVersion, 10, 64)
	if err != nil {
		return err
	}
	if event.Type == watch.Bookmark {
		f.last = max(f.last, revision)
		return nil
	}
	if revision <= f.last {
		return fmt.Errorf("%s %s at %d comes after %d", event.Type, o.Name, revision, f.last)
	}
	f.last = revision
	now, ours := versionOf(o)
	if !ours {
		return nil
	}
	before, known := f.state[o.Name]
	if known != (event.Type != watch.Added) {
		return fmt.Errorf("%s %s at %d, which was %+v", event.Type, o.Name, revision, before)
	}
	if event.Type == watch.Deleted {
		delete(f.state, o.Name)
		return nil
	}
	if now.write <= before.write {
		return fmt.Errorf("%s: write %d comes after %d", o.Name, now.write, before.write)
	}
	f.state[o.Name] = now
	f.revisions[o.ResourceVersion] = true
	return nil
}

func (f *follower) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure == nil {
		f.failure = err
	}
}

func (f *follower) failed() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failure
}

// reaches waits until the events add up to the state that a list shows.
func (f *follower) reaches(t *testing.T, live map[string]version) {
	t.Helper()
	eventually(t, 20*time.Second, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.failure != nil {
			t.Fatal(f.failure)
		}
		if len(f.state) != len(live) {
			return fmt.Errorf("the watch shows %d objects, a list %d", len(f.state), len(live))
		}
		for name, v := range live {
			if f.state[name] != v {
				return fmt.Errorf("%s: the watch shows %+v, a list %+v", name, f.state[name], v)
			}
		}
		return nil
	})
}

// saw checks that no acknowledged write went past the watch.
func (f *follower) saw(t *testing.T, m *model) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	missed := 0
	for _, revision := range m.revisions {
		if !f.revisions[revision] {
			missed++
		}
	}
	if missed > 0 {
		t.Errorf("%d of %d acknowledged writes had no event", missed, len(m.revisions))
	}
}
