package apiserver

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"proa/internal/store"
)

func largePod(i int) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%06d", i), Namespace: "default", UID: "11111111-2222-3333-4444-555555555555", Labels: map[string]string{"app": "a", "tier": "b"}}}
	c := corev1.Container{Name: "c", Image: "registry.example/app:v1", Command: []string{"/bin/server", "--listen=:8080", "--config=/etc/config/server.yaml"}}
	for i := range 12 {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", i), Value: "some value of a usual length"})
	}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "config", MountPath: "/etc/config"}, {Name: "data", MountPath: "/data"}}
	p.Spec.Containers = []corev1.Container{c}
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "bench", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1",
		FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:command":{},"f:env":{".":{},"k:{\"name\":\"VARIABLE_0\"}":{".":{},"f:name":{},"f:value":{}}},"f:image":{},"f:name":{},"f:resources":{}}}}}`)}}}
	for _, typ := range []corev1.PodConditionType{"Ready", "Initialized", "ContainersReady", "PodScheduled"} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: typ, Status: "True", LastTransitionTime: metav1.Unix(1e9, 0)})
	}
	return p
}

func podKey(i int) store.Key {
	return store.Key{Resource: schema.GroupResource{Resource: "pods"}, Namespace: "default", Name: fmt.Sprintf("pod-%06d", i)}
}

func (w *world) fill(n int) {
	w.t.Helper()
	const batch = 1000
	for start := 0; start < n; start += batch {
		_, err := w.store.Update(w.t.Context(), func(tx *store.Tx) error {
			for i := start; i < min(n, start+batch); i++ {
				if _, err := tx.Create(podKey(i), largePod(i)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

func BenchmarkListOf50000(b *testing.B) {
	w := newWorld(b)
	w.fill(50_000)
	client, err := rest.HTTPClientFor(w.config)
	if err != nil {
		b.Fatal(err)
	}
	for _, accept := range []string{"application/json", protobuf} {
		b.Run(accept, func(b *testing.B) {
			before := cpuTime()
			for b.Loop() {
				r, _ := http.NewRequest("GET", w.config.Host+"/api/v1/pods", nil)
				r.Header.Set("Accept", accept)
				r.Header.Set("Accept-Encoding", "identity")
				resp, err := client.Do(r)
				if err != nil {
					b.Fatal(err)
				}
				n, err := io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(n)
			}
			b.ReportMetric(float64(cpuTime()-before)/1e6/float64(b.N), "cpu-ms/op")
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			b.ReportMetric(float64(m.HeapAlloc)/1e6, "heap-MB")
		})
	}
}

// BenchmarkFanOut writes events that 1000 watchers read; an operation is one
// event at one watcher.
func BenchmarkFanOut(b *testing.B) {
	const watchers, events = 1000, 20
	w := newWorld(b)
	w.fill(1)
	client, err := rest.HTTPClientFor(w.config)
	if err != nil {
		b.Fatal(err)
	}
	var lines [watchers]*bufio.Reader
	for i := range lines {
		r, _ := http.NewRequestWithContext(b.Context(), "GET", w.config.Host+"/api/v1/pods?watch=1&resourceVersion="+strconv.FormatInt(w.store.Revision(), 10), nil)
		resp, err := client.Do(r)
		if err != nil {
			b.Fatal(err)
		}
		defer resp.Body.Close()
		lines[i] = bufio.NewReader(resp.Body)
	}
	var rounds int
	before := cpuTime()
	for b.Loop() {
		rounds++
		var all sync.WaitGroup
		for _, l := range lines {
			all.Go(func() {
				for range events {
					if _, err := l.ReadSlice('\n'); err != nil && err != bufio.ErrBufferFull {
						b.Error(err)
						return
					} else if err != nil {
						if _, err := l.ReadBytes('\n'); err != nil {
							b.Error(err)
						}
					}
				}
			})
		}
		for e := range events {
			p := largePod(0)
			p.Annotations = map[string]string{"n": strconv.Itoa(e)}
			if _, err := w.store.Update(b.Context(), func(tx *store.Tx) error {
				if _, err := tx.Get(podKey(0)); err != nil {
					return err
				}
				_, err := tx.Put(podKey(0), p.DeepCopy())
				return err
			}); err != nil {
				b.Fatal(err)
			}
		}
		all.Wait()
	}
	b.ReportMetric(float64(rounds*watchers*events)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(cpuTime()-before)/1e3/float64(rounds*watchers*events), "cpu-us/event")
}

// cpuTime is what the process used, in nanoseconds: clients and server together.
func cpuTime() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Utime.Nano() + u.Stime.Nano()
}
