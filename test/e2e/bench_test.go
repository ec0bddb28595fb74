package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

// BenchmarkPodStart is the time from a pod's creation to its phase Running, one
// pod after the other, its image being there:
//
//	go test ./test/e2e -run '^$' -bench PodStart -benchtime 20x
func BenchmarkPodStart(b *testing.B) {
	ctx, pods := b.Context(), clients().CoreV1().Pods("default")
	w, err := pods.Watch(ctx, metav1.ListOptions{LabelSelector: "bench=start"})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Stop()
	var took []time.Duration
	for i := range b.N {
		name := fmt.Sprintf("start-%d-%d", b.N, i)
		begin := time.Now()
		_, err := pods.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"bench": "start"}},
			Spec: corev1.PodSpec{TerminationGracePeriodSeconds: ptr.To[int64](1),
				Containers: []corev1.Container{{Name: "c", Image: "proa.dev/testserver:1", Args: []string{"sleep"}}}},
		}, metav1.CreateOptions{})
		if err != nil {
			b.Fatal(err)
		}
		until(w.ResultChan(), func(pod *corev1.Pod, _ bool) bool { return pod.Name == name && pod.Status.Phase == corev1.PodRunning })
		took = append(took, time.Since(begin))
		if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			b.Fatal(err)
		}
		until(w.ResultChan(), func(pod *corev1.Pod, gone bool) bool { return pod.Name == name && gone })
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Milliseconds()), "p50-ms")
	b.ReportMetric(float64(took[len(took)-1].Milliseconds()), "max-ms")
}

// until reads events of pods up to the one that is wanted.
func until(events <-chan watch.Event, wanted func(pod *corev1.Pod, gone bool) bool) {
	for e := range events {
		if pod, ok := e.Object.(*corev1.Pod); ok && wanted(pod, e.Type == watch.Deleted) {
			return
		}
	}
}
