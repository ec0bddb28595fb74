package scheduler

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/store/memory"
)

// stalling is an API that keeps one update of a pod's status waiting.
type stalling struct {
	client.API
	mu      sync.Mutex
	release chan struct{} // nil: nothing is kept waiting
}

func (s *stalling) stall() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := make(chan struct{})
	s.release = c
	return func() { close(c) }
}

func (s *stalling) Update(ctx context.Context, ref client.Ref, obj client.Object, opts metav1.UpdateOptions) (client.Object, error) {
	if ref.Resource.Resource == "pods" && ref.Subresource == "status" {
		s.mu.Lock()
		wait := s.release
		s.release = nil
		s.mu.Unlock()
		if wait != nil {
			<-wait
		}
	}
	return s.API.Update(ctx, ref, obj, opts)
}

// A pod is tried again before it has been written why it did not fit: what was found
// last is what it says in the end.
func TestTheLatestVerdictStands(t *testing.T) {
	taint := func(w *world, taints ...corev1.Taint) {
		patch(w, map[string]any{"spec": map[string]any{"taints": taints}})
	}
	allot := func(w *world, cpu string) {
		patch(w, map[string]any{"status": map[string]any{"allocatable": map[string]any{"cpu": cpu}}}, "status")
	}
	for name, story := range map[string]func(w *world, api *stalling){
		"one after another": func(w *world, api *stalling) {
			defer api.stall()()
			create(w, pod("p", "4"))
			synctest.Wait() // it cannot say that there are no nodes
			create(w, node("n", "1", "1Gi"))
			synctest.Wait()
		},
		"that it has said before": func(w *world, api *stalling) {
			create(w, node("n", "1", "1Gi"))
			create(w, pod("p", "4"))
			synctest.Wait()
			defer api.stall()()
			taint(w, corev1.Taint{Key: "example.com/away", Effect: corev1.TaintEffectNoSchedule})
			allot(w, "8")
			synctest.Wait() // it cannot say that there is a taint
			allot(w, "1")
			taint(w)
			synctest.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &stalling{API: newServer(t, memory.New())}
				w := start(t, api)
				story(w, api)
				synctest.Wait()
				if got := w.pending("p").Message; !strings.Contains(got, "Insufficient cpu") {
					t.Errorf("it says %q", got)
				}
			})
		})
	}
}

// patch changes the node n.
func patch(w *world, change map[string]any, subresource ...string) {
	w.t.Helper()
	if _, err := client.Of[*corev1.Node](w.api).MergePatch(w.t.Context(), "", "n", change, subresource...); err != nil {
		w.t.Fatal(err)
	}
}
