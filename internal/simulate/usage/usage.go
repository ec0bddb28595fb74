// Package usage says what the containers of simulated pods use: what a
// ResourceUsage or ClusterResourceUsage document says, else the annotations
// kwok.x-k8s.io/usage-cpu and usage-memory of the pod, else what they request.
package usage

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/simulate/expr"
	"proa/internal/simulate/kwok"
	"proa/internal/simulate/lifecycle"
)

// The annotations of a pod that say what each of its containers uses.
const annotation = "kwok.x-k8s.io/usage-"

// What a container uses that nobody says anything about.
const (
	leastCPU    = 0.001
	leastMemory = 1 << 20
)

// Meter measures. It is safe for concurrent use.
type Meter struct {
	now     func() time.Time
	pods    map[types.NamespacedName][]rule
	cluster []clusterRule

	mu   sync.Mutex // guards sums
	sums map[types.UID]map[series]sum
}

type clusterRule struct {
	selector *kwok.ObjectSelector
	rules    []rule
}

// rule is what some containers use of some resources.
type rule struct {
	containers kwok.Containers
	values     map[string]func(pod, container map[string]any) (float64, error)
}

type series struct{ container, resource string }

// sum is a use added up over time: that between two readings counts as the later
// reading has it.
type sum struct {
	total float64
	until time.Time
}

// New compiles the documents about usage.
func New(d *kwok.Documents, now func() time.Time) (*Meter, error) {
	m := &Meter{now: now, pods: map[types.NamespacedName][]rule{}, sums: map[types.UID]map[series]sum{}}
	env, err := expr.New(expr.Config{Now: now, Variables: []string{"pod", "container"}})
	if err != nil {
		return nil, err
	}
	for _, doc := range d.Usages {
		rules, err := compile(env, doc.Spec.Usages)
		if err != nil {
			return nil, fmt.Errorf("ResourceUsage %s/%s: %w", doc.Namespace, doc.Name, err)
		}
		m.pods[types.NamespacedName{Namespace: doc.Namespace, Name: doc.Name}] = rules
	}
	for _, doc := range d.ClusterUsages {
		rules, err := compile(env, doc.Spec.Usages)
		if err != nil {
			return nil, fmt.Errorf("ClusterResourceUsage %s: %w", doc.Name, err)
		}
		m.cluster = append(m.cluster, clusterRule{doc.Spec.Selector, rules})
	}
	return m, nil
}

func compile(env *expr.Env, usages []kwok.Usage) ([]rule, error) {
	var rules []rule
	for _, u := range usages {
		r := rule{containers: u.Containers, values: map[string]func(pod, container map[string]any) (float64, error){}}
		for name, v := range u.Usage {
			switch {
			case v.Expression != nil:
				program, err := env.Compile(*v.Expression)
				if err != nil {
					return nil, err
				}
				r.values[name] = func(pod, container map[string]any) (float64, error) {
					return program.Number(map[string]any{"pod": pod, "container": container})
				}
			case v.Value != nil:
				fixed := v.Value.AsApproximateFloat64()
				r.values[name] = func(_, _ map[string]any) (float64, error) { return fixed, nil }
			default:
				return nil, fmt.Errorf("usage of %s has neither value nor expression", name)
			}
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// Container is what one container uses now: cores of cpu, bytes of memory. One
// that does not run uses nothing.
func (m *Meter) Container(pod *corev1.Pod, container, resourceName string) float64 {
	if pod.Status.Phase != corev1.PodRunning {
		return 0
	}
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name == container {
			return m.use(pod, c, resourceName)
		}
	}
	return 0
}

func (m *Meter) use(pod *corev1.Pod, c *corev1.Container, name string) float64 {
	if found, ok := m.told(pod, c, name); ok {
		return found
	}
	if text, ok := pod.Annotations[annotation+name]; ok {
		if q, err := resource.ParseQuantity(text); err == nil {
			return q.AsApproximateFloat64()
		}
	}
	if q, ok := c.Resources.Requests[corev1.ResourceName(name)]; ok {
		return q.AsApproximateFloat64()
	}
	switch corev1.ResourceName(name) {
	case corev1.ResourceCPU:
		return leastCPU
	case corev1.ResourceMemory:
		return leastMemory
	}
	return 0
}

// told is what a document says.
func (m *Meter) told(pod *corev1.Pod, c *corev1.Container, name string) (float64, bool) {
	rules := m.pods[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}]
	for _, cluster := range m.cluster {
		if cluster.selector.Matches(pod.Namespace, pod.Name) {
			rules = append(rules[:len(rules):len(rules)], cluster.rules...)
		}
	}
	for _, r := range rules {
		value, ok := r.values[name]
		if !ok || !r.containers.Take(c.Name) {
			continue
		}
		used, err := value(tree(pod), tree(c))
		if err != nil {
			slog.Debug("simulated usage", "pod", pod.Namespace+"/"+pod.Name, "resource", name, "err", err)
			return 0, true
		}
		return used, true
	}
	return 0, false
}

func tree(obj any) map[string]any {
	t, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return map[string]any{} // no API type fails here
	}
	return lifecycle.WithMetadata(t)
}

// Cumulative is what a container has used since it started: core-seconds of cpu.
func (m *Meter) Cumulative(pod *corev1.Pod, container, resourceName string) float64 {
	return m.CumulativeAt(m.now(), pod, container, resourceName)
}

// CumulativeAt is Cumulative at a time, not before the one asked about last.
func (m *Meter) CumulativeAt(now time.Time, pod *corev1.Pod, container, resourceName string) float64 {
	rate := m.Container(pod, container, resourceName)
	key := series{container, resourceName}
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.sums[pod.UID]
	if of == nil {
		of = map[series]sum{}
		m.sums[pod.UID] = of
	}
	s, began := of[key]
	if !began {
		s.until = Started(pod, container)
		if s.until.IsZero() {
			s.until = now
		}
	}
	s.total += rate * max(now.Sub(s.until).Seconds(), 0)
	if now.After(s.until) {
		s.until = now
	}
	of[key] = s
	return s.total
}

// Forget drops what was added up for a pod that is gone.
func (m *Meter) Forget(pod types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sums, pod)
}

// Started is when a container began to run, zero when it does not.
func Started(pod *corev1.Pod, container string) time.Time {
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name == container && c.State.Running != nil {
			return c.State.Running.StartedAt.Time
		}
	}
	return time.Time{}
}
