package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/client"
	"proa/internal/store/memory"
)

// slow is an API whose deletions wait for a word from the test.
type slow struct {
	client.API
	asked chan string
	word  chan error
}

func (s *slow) Delete(ctx context.Context, ref client.Ref, opts metav1.DeleteOptions) (client.Object, error) {
	select {
	case s.asked <- ref.Name:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case err := <-s.word:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	opts.GracePeriodSeconds = new(int64) // there is no node to end the pod
	return s.API.Delete(ctx, ref, opts)
}

// besieged is a full node a with one unimportant pod, and a free node b.
func besieged(t *testing.T) (*world, *slow, *corev1.Pod) {
	api := &slow{newServer(t, memory.New()), make(chan string), make(chan error)}
	w := start(t, api)
	create(w, node("a", "1", "1Gi"))
	create(w, pod("low", "1"))
	w.on("low")
	create(w, node("b", "40", "80Gi"))
	high := create(w, pod("high", "1", priority(100), func(p *corev1.Pod) {
		p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "a"}
	}))
	if got := <-api.asked; got != "low" {
		t.Fatalf("deletes %s", got)
	}
	return w, api, high
}

func TestOtherPodsAreBoundWhileVictimsAreDeleted(t *testing.T) {
	w, api, _ := besieged(t)
	for i := range 100 {
		create(w, pod(fmt.Sprint("p", i), "10m"))
	}
	for i := range 100 {
		if got := w.on(fmt.Sprint("p", i)); got != "b" {
			t.Errorf("p%d is on %s: the place on a is promised", i, got)
		}
	}
	w.until("nomination", func() bool { p, _ := w.pods.Cached("default", "high"); return p.Status.NominatedNodeName == "a" })
	api.word <- nil
	if got := w.on("high"); got != "a" {
		t.Errorf("on %s", got)
	}
}

func TestAPreemptionThatFailsTakesItsNominationBack(t *testing.T) {
	w, api, high := besieged(t)
	w.until("nomination", func() bool { p, _ := w.pods.Cached("default", "high"); return p.Status.NominatedNodeName == "a" })
	api.word <- errors.New("no")
	<-api.asked // it is tried again, as everything was taken back
	got, ok := w.s.LastAttempt(high.UID)
	if !ok || got.NominatedNode != "a" {
		t.Errorf("%+v", got)
	}
	api.word <- nil
	w.on("high")
}

// noteworthy is an API that counts what victims are told, and keeps the first
// deletion until the gate opens.
type noteworthy struct {
	client.API
	gate             chan struct{}
	marked, deletion atomic.Int32
}

func (n *noteworthy) Update(ctx context.Context, ref client.Ref, obj client.Object, opts metav1.UpdateOptions) (client.Object, error) {
	p, ok := obj.(*corev1.Pod)
	if ok && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Reason == corev1.PodReasonPreemptionByScheduler }) {
		n.marked.Add(1)
	}
	return n.API.Update(ctx, ref, obj, opts)
}

func (n *noteworthy) Patch(ctx context.Context, ref client.Ref, pt types.PatchType, data []byte, opts metav1.PatchOptions) (client.Object, error) {
	if strings.Contains(string(data), corev1.PodReasonPreemptionByScheduler) {
		n.marked.Add(1)
	}
	return n.API.Patch(ctx, ref, pt, data, opts)
}

func (n *noteworthy) Delete(ctx context.Context, ref client.Ref, opts metav1.DeleteOptions) (client.Object, error) {
	n.deletion.Add(1)
	select {
	case <-n.gate:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	opts.GracePeriodSeconds = new(int64)
	return n.API.Delete(ctx, ref, opts)
}

func TestAVictimThatManyWaitForIsDisplacedOnce(t *testing.T) {
	api := &noteworthy{API: newServer(t, memory.New()), gate: make(chan struct{})}
	w := start(t, api)
	create(w, node("a", "20", "80Gi"))
	create(w, pod("low", "20"))
	w.on("low")
	var uids []types.UID
	for i := range 20 {
		uids = append(uids, create(w, pod(fmt.Sprint("high-", i), "1", priority(100))).UID)
	}
	for i, uid := range uids {
		w.until("nomination", func() bool {
			p, _ := w.pods.Cached("default", fmt.Sprint("high-", i))
			got, ok := w.s.LastAttempt(uid)
			return ok && got.NominatedNode == "a" && p.Status.NominatedNodeName == "a"
		})
	}
	close(api.gate)
	for i := range 20 {
		w.on(fmt.Sprint("high-", i))
	}
	if m, d := api.marked.Load(), api.deletion.Load(); m != 1 || d != 1 {
		t.Errorf("marked %d times, deleted %d times", m, d)
	}
	w.noted("low Normal Preempted") // which comes after the deletion
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := strings.Count(strings.Join(w.notes, "\n"), "Preempted by"); n != 1 {
		t.Errorf("%d events say that it was displaced", n)
	}
}

func TestANominationThatIsTakenOutOfTheStatusIsForgotten(t *testing.T) {
	w, api, _ := besieged(t)
	w.until("nomination", func() bool { p, _ := w.pods.Cached("default", "high"); return p.Status.NominatedNodeName == "a" })
	_, err := w.pods.MergePatch(t.Context(), "default", "high", map[string]any{"status": map[string]any{"nominatedNodeName": nil}}, "status")
	if err != nil {
		t.Fatal(err)
	}
	w.until("no nomination", func() bool { return !w.s.queue.AnyNominated() })
	api.word <- nil
	w.on("high")
}
