package store_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/store"
	"proa/internal/store/memory"
	"proa/internal/store/pebble"
	"proa/internal/store/storetest"
)

// benchPod is a pod of about 2.7 KB as protobuf.
func benchPod(n int) (store.Key, *corev1.Pod) {
	name := fmt.Sprintf("pod-%08d", n)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace:   "ns",
		Name:        name,
		Labels:      map[string]string{"app": "bench", "pod-template-hash": "5d8f9c7b6d"},
		Annotations: map[string]string{"note": strings.Repeat("n", 400)},
	}}
	for i := range 4 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name:  fmt.Sprintf("container-%d", i),
			Image: "registry.example/team/application:v1.2.3",
			Env: []corev1.EnvVar{
				{Name: "CONFIG", Value: strings.Repeat("c", 150)},
				{Name: "OTHER", Value: strings.Repeat("o", 150)},
			},
			VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/var/lib/data"}},
		})
	}
	pod.Status.PodIP = strings.Repeat("1", 300)
	pod.Status.Message = strings.Repeat("m", 300)
	return store.Key{Resource: storetest.Pods, Namespace: "ns", Name: name}, pod
}

func createPod(ctx context.Context, s *store.Store, n int) error {
	key, pod := benchPod(n)
	_, err := s.Update(ctx, func(tx *store.Tx) error {
		_, err := tx.Create(key, pod)
		return err
	})
	return err
}

func openBench(b *testing.B, e store.Engine) *store.Store {
	return storetest.Open(b, store.Config{Engine: e, Codec: storetest.Proto{}})
}

func openPebble(b *testing.B, dir string) *pebble.Engine {
	e, err := pebble.Open(pebble.Config{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	return e
}

// fill creates pods 0 to n-1.
func fill(b *testing.B, s *store.Store, n int) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := createPod(b.Context(), s, i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkCreateDurable(b *testing.B) {
	for _, writers := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			s := openBench(b, openPebble(b, b.TempDir()))
			var next atomic.Int64
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for range writers {
				wg.Go(func() {
					for i := int(next.Add(1)); i <= b.N; i = int(next.Add(1)) {
						if err := createPod(b.Context(), s, i); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "creates/s")
		})
	}
}

func BenchmarkOpen50000(b *testing.B) {
	dir := b.TempDir()
	s, err := store.Open(b.Context(), store.Config{Engine: openPebble(b, dir), Codec: storetest.Proto{}})
	if err != nil {
		b.Fatal(err)
	}
	fill(b, s, 50_000)
	s.Close()
	b.ResetTimer()
	for b.Loop() {
		s, err := store.Open(b.Context(), store.Config{Engine: openPebble(b, dir), Codec: storetest.Proto{}})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if n := s.Snapshot().Len(storetest.Pods, ""); n != 50_000 {
			b.Fatalf("%d pods", n)
		}
		s.Close()
		b.StartTimer()
	}
	b.StopTimer()
}

func BenchmarkGet(b *testing.B) {
	s := openBench(b, memory.Forgetful())
	fill(b, s, 50_000)
	key, _ := benchPod(31_415)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := s.Get(key); err != nil {
				b.Error(err)
			}
		}
	})
}

func BenchmarkRange50000(b *testing.B) {
	s := openBench(b, memory.Forgetful())
	fill(b, s, 50_000)
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		n := 0
		s.Snapshot().Range(storetest.Pods, "", store.Key{}, func(*store.Item) bool {
			n++
			return true
		})
		if n != 50_000 {
			b.Fatal(n)
		}
	}
}

// BenchmarkFanOut counts one write seen by 1000 watches as one operation.
func BenchmarkFanOut(b *testing.B) {
	const watchers = 1000
	s := openBench(b, memory.Forgetful())
	var seen sync.WaitGroup
	for range watchers {
		w, err := s.Watch(storetest.Pods, "", 0)
		if err != nil {
			b.Fatal(err)
		}
		seen.Go(func() {
			for n := 0; n < b.N; {
				events, err := w.Next(b.Context())
				if err != nil {
					b.Error(err)
					return
				}
				n += len(events)
			}
		})
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if err := createPod(b.Context(), s, i); err != nil {
			b.Fatal(err)
		}
	}
	seen.Wait()
	b.ReportMetric(float64(b.N)*watchers/b.Elapsed().Seconds(), "events/s")
}
