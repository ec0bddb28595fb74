package metrics

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int, cpu float64) point {
	return point{at: start.Add(time.Duration(seconds) * time.Second), cpu: cpu, memory: 1 << 20}
}

func startedAt(p point, seconds int) point {
	p.started = start.Add(time.Duration(seconds) * time.Second)
	return p
}

func TestRate(t *testing.T) {
	tests := []struct {
		name   string
		series series
		want   string // cpu over window; empty: none
	}{
		{"two points make a rate", series{at(0, 10), at(15, 13)}, "200m over 15s"},
		{"one point of a node makes none", series{last: at(15, 13)}, ""},
		{"a young container is measured from its start", series{last: startedAt(at(5, 1), 1)}, "250m over 4s"},
		{"an old container with one point is not measured", series{last: startedAt(at(60, 1), 0)}, ""},
		{"a container that began anew is measured from then", series{startedAt(at(0, 100), -90), startedAt(at(15, 1), 5)}, "100m over 10s"},
		{"a counter that fell without a known start says nothing", series{at(0, 100), at(15, 1)}, ""},
		{"a container that only just started is not measured", series{last: startedAt(at(5, 0), 5)}, ""},
		{"a stopped world", series{}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, ok := tt.series.rate(15 * time.Second)
			got := ""
			if ok {
				got = fmt.Sprintf("%s over %s", r.usage.Cpu(), r.window)
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if ok && (r.usage.Memory().String() != "1Mi" || r.at != tt.series.last.at) {
				t.Errorf("memory %s at %s", r.usage.Memory(), r.at)
			}
		})
	}
}

func TestASecondAnswerWithTheSameTimeChangesNothing(t *testing.T) {
	old := series{at(0, 10), at(15, 13)}
	if got := (series{last: at(15, 13)}).after(old); got != old {
		t.Errorf("%+v", got)
	}
	if got := (series{last: at(30, 14)}).after(old); got != (series{at(15, 13), at(30, 14)}) {
		t.Errorf("%+v", got)
	}
}

// agent is a node's agent: one node, one pod with two containers, half a core
// used by the one and nothing by the other since its start.
type agent struct {
	began time.Time
	asked atomic.Int64
	down  atomic.Bool
}

func (a *agent) RoundTrip(r *http.Request) (*http.Response, error) {
	a.asked.Add(1)
	if a.down.Load() || r.URL.String() != "https://10.0.0.1:10250/metrics/resource" {
		return &http.Response{StatusCode: 503, Status: "503", Body: http.NoBody}, nil
	}
	now := time.Now()
	used, ms := now.Sub(a.began).Seconds(), now.UnixMilli()
	var b strings.Builder
	b.WriteString("# TYPE container_cpu_usage_seconds_total counter\n")
	for name, share := range map[string]float64{"spins": 0.5, "sleeps": 0} {
		fmt.Fprintf(&b, "container_cpu_usage_seconds_total{container=%q,namespace=\"default\",pod=\"p\"} %f %d\n", name, used*share, ms)
	}
	b.WriteString("# TYPE container_memory_working_set_bytes gauge\n")
	for _, name := range []string{"spins", "sleeps", "stopped"} {
		fmt.Fprintf(&b, "container_memory_working_set_bytes{container=%q,namespace=\"default\",pod=\"p\"} 4096 %d\n", name, ms)
	}
	fmt.Fprintf(&b, "# TYPE node_cpu_usage_seconds_total counter\nnode_cpu_usage_seconds_total %f %d\n", 100+used, ms)
	fmt.Fprintf(&b, "# TYPE node_memory_working_set_bytes gauge\nnode_memory_working_set_bytes 1048576 %d\n", ms)
	return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(b.String()))}, nil
}

func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": "a"}}}
}

func pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"app": "x"}},
		Spec:       corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "spins", Image: "i"}, {Name: "sleeps", Image: "i"}}},
	}
}

func collect(w *controllertest.World, a *agent) (*Collector, func()) {
	var m *Collector
	stop := w.Start(func(c controllers.Config) []controllertest.Runner {
		m = New(Config{Cache: c.Cache, Client: &http.Client{Transport: a}, Address: func(string) (string, error) { return "10.0.0.1:10250", nil }})
		return []controllertest.Runner{m}
	})
	return m, stop
}

func TestMeasuresWhatNodesAndPodsUse(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		a := &agent{began: time.Now()}
		w.Create(node("n"))
		w.Create(pod())
		controllertest.ChangeStatus(w, "p", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
		m, stop := collect(w, a)
		defer stop()
		if _, err := (Nodes{m}).Get("", "n"); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `nodemetrics.metrics.k8s.io "n" not found`) {
			t.Errorf("after one reading: %v", err)
		}
		time.Sleep(2 * settle)
		w.Settle()
		obj, err := Nodes{m}.Get("", "n")
		if err != nil {
			t.Fatal(err)
		}
		n := obj.(*v1beta1.NodeMetrics)
		if n.Usage.Cpu().Value() != 1 || n.Usage.Memory().String() != "1Mi" || n.Window.Duration != settle || n.Labels["zone"] != "a" {
			t.Errorf("%+v", n)
		}
		if obj, err = (Pods{m}).Get("default", "p"); err != nil {
			t.Fatal(err)
		}
		p := obj.(*v1beta1.PodMetrics)
		if len(p.Containers) != 2 || p.Containers[0].Name != "sleeps" || !p.Containers[0].Usage.Cpu().IsZero() || p.Containers[1].Usage.Cpu().MilliValue() != 500 || p.Labels["app"] != "x" {
			t.Errorf("%+v", p)
		}
		if nodes, pods := (Nodes{m}).List(""), (Pods{m}).List("default"); len(nodes) != 1 || len(pods) != 1 || len((Pods{m}).List("elsewhere")) != 0 {
			t.Errorf("%d nodes, %d pods", len(nodes), len(pods))
		}
		if asked := a.asked.Load(); asked > 3 {
			t.Errorf("asked %d times within two seconds", asked)
		}
		time.Sleep(time.Minute)
		w.Settle()
		if obj, _ = (Nodes{m}).Get("", "n"); obj.(*v1beta1.NodeMetrics).Window.Duration != 15*time.Second {
			t.Errorf("%+v", obj)
		}
	})
}

func TestWhatCannotBeMeasuredIsNotFound(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		a := &agent{began: time.Now()}
		a.down.Store(true)
		w.Create(node("n"))
		w.Create(pod())
		m, stop := collect(w, a)
		defer stop()
		time.Sleep(time.Minute)
		w.Settle()
		if asked := a.asked.Load(); asked < 4 || asked > 10 {
			t.Errorf("a node that does not answer was asked %d times in a minute", asked)
		}
		for want, get := range map[string]func() error{
			`nodemetrics.metrics.k8s.io "n" not found`: func() error { _, err := (Nodes{m}).Get("", "n"); return err },
			`nodes "x" not found`:                      func() error { _, err := (Nodes{m}).Get("", "x"); return err },
			`pods "p" not found`:                       func() error { _, err := (Pods{m}).Get("default", "p"); return err }, // it does not run
		} {
			if err := get(); !apierrors.IsNotFound(err) || err.Error() != want {
				t.Errorf("%v, want %s", err, want)
			}
		}
		controllertest.ChangeStatus(w, "p", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
		w.Settle()
		if _, err := (Pods{m}).Get("default", "p"); err == nil || err.Error() != `podmetrics.metrics.k8s.io "default/p" not found` {
			t.Error(err)
		}
		a.down.Store(false)
		time.Sleep(time.Minute)
		w.Settle()
		if len(Nodes{m}.List("")) != 1 {
			t.Error("a node that answers again is not measured")
		}
		controllertest.Delete[*corev1.Node](w, "n")
		w.Settle()
		asked := a.asked.Load()
		time.Sleep(time.Minute)
		w.Settle()
		if len(Nodes{m}.List("")) != 0 || a.asked.Load() != asked {
			t.Errorf("a node that is gone is asked: %d, %d", asked, a.asked.Load())
		}
	})
}
