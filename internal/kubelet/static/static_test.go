package static

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	var started, stopped []string
	held := map[types.UID]bool{}
	m := New(Config{Dir: dir, NodeName: "N1", Default: func(*corev1.Pod) {}, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
		Start: func(p *corev1.Pod) {
			started = append(started, p.Name+" "+p.Spec.Containers[0].Image)
			held[p.UID] = true
		},
		Stop:    func(p *corev1.Pod) { stopped = append(stopped, p.Name+" "+p.Spec.Containers[0].Image) },
		Running: func(uid types.UID) bool { return held[uid] }})
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	load := func(wantStarted, wantStopped int) {
		t.Helper()
		started, stopped = nil, nil
		if err := m.Load(); err != nil {
			t.Fatal(err)
		}
		if len(started) != wantStarted || len(stopped) != wantStopped {
			t.Fatalf("started %v, stopped %v", started, stopped)
		}
	}
	write("a.yaml", "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: one}]}\n")
	write("broken.yaml", "kind: [")
	write("other.yaml", "kind: Service\nmetadata: {name: s}\n")
	write(".hidden", "kind: Pod\nmetadata: {name: h}\nspec: {containers: [{name: c}]}\n")
	load(1, 0)
	if started[0] != "a-n1 one" {
		t.Errorf("started %v", started)
	}
	load(0, 0)

	pod := m.pods[types.NamespacedName{Namespace: "default", Name: "a-n1"}]
	if mirror, static := m.Mirror(pod); !static || mirror != nil {
		t.Errorf("mirror %v static %v before the API has one", mirror, static)
	}
	mirror := pod.DeepCopy()
	mirror.UID, mirror.Annotations[annMirror] = "m", string(pod.UID)
	m.MirrorChanged(mirror, false)
	if got, _ := m.Mirror(pod); got == nil || got.UID != "m" {
		t.Errorf("mirror %v", got)
	}

	write("a.yaml", "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: two}]}\n")
	load(0, 1) // the new one waits for the old
	delete(held, pod.UID)
	load(1, 0)
	if started[0] != "a-n1 two" {
		t.Errorf("started %v", started)
	}
}
