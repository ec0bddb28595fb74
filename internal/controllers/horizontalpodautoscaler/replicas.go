package horizontalpodautoscaler

import (
	"errors"
	"fmt"
	"math"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	podresource "k8s.io/component-helpers/resource"

	"proa/internal/controllers/podcontrol"
)

const (
	// cpuInitialization is how long after its start a pod's CPU counts only while
	// it is ready.
	cpuInitialization = 5 * time.Minute
	// initialReadiness is how long after its start a pod may first become ready
	// and an unready one still counts as never having been so.
	initialReadiness = 30 * time.Second
	defaultTolerance = 0.1
)

var (
	errNoPods    = errors.New("no pods returned by selector while calculating replica count")
	errNoMetrics = errors.New("did not receive metrics for targeted pods (pods might be unready)")
	errNoMatch   = errors.New("no metrics returned matched known pods")
)

// tolerance is how far usage may be off target, as a part of it, before replicas change.
type tolerance struct{ down, up float64 }

func tolerances(b *autoscalingv2.HorizontalPodAutoscalerBehavior) tolerance {
	t := tolerance{defaultTolerance, defaultTolerance}
	if b == nil {
		return t
	}
	if r := b.ScaleDown; r != nil && r.Tolerance != nil {
		t.down = r.Tolerance.AsApproximateFloat64()
	}
	if r := b.ScaleUp; r != nil && r.Tolerance != nil {
		t.up = r.Tolerance.AsApproximateFloat64()
	}
	return t
}

func (t tolerance) allows(ratio float64) bool { return 1-t.down <= ratio && ratio <= 1+t.up }

// podMetric is what one pod uses, in thousandths.
type podMetric struct {
	value  int64
	at     time.Time
	window time.Duration
}

type podMetrics map[string]podMetric // by pod name

// sample is what replicas are computed from: pods and what they use.
type sample struct {
	current   int32
	pods      []*corev1.Pod
	metrics   podMetrics // changed by the computation
	resource  corev1.ResourceName
	container string // only it counts; empty: all
	target    int64  // per cent of requests, or thousandths of a pod's value
	tolerance tolerance
	now       time.Time
}

// usage is the result of a computation: replicas, and what the metric was.
type usage struct {
	replicas    int32
	utilization int32 // per cent of requests
	average     int64 // thousandths
}

// byUtilization wants pods to use target per cent of what they request.
func (s sample) byUtilization() (usage, error) {
	requests := map[string]int64{}
	ratio := func() (float64, usage, error) {
		var used, requested, n int64
		for pod, m := range s.metrics {
			request, known := requests[pod]
			if !known {
				continue
			}
			used, requested, n = used+m.value, requested+request, n+1
		}
		if requested == 0 {
			return 0, usage{}, errNoMatch
		}
		u := usage{utilization: int32(used * 100 / requested), average: used / n}
		return float64(u.utilization) / float64(s.target), u, nil
	}
	prepare := func() (err error) {
		requests, err = s.requests()
		return err
	}
	return s.replicas(prepare, ratio, func(pod string) int64 { return requests[pod] * max(100, s.target) / 100 })
}

// byValue wants pods to use target on average.
func (s sample) byValue() (usage, error) {
	ratio := func() (float64, usage, error) {
		total := int64(0)
		for _, m := range s.metrics {
			total += m.value
		}
		u := usage{average: total / int64(len(s.metrics))}
		return float64(u.average) / float64(s.target), u, nil
	}
	return s.replicas(func() error { return nil }, ratio, func(string) int64 { return s.target })
}

// replicas computes how many pods bring the ratio of usage to target to one.
// Pods without metrics and pods not yet ready are counted in the direction that
// changes less: as full when scaling down, as idle when scaling up. A change
// that this would turn around is not made.
func (s sample) replicas(prepare func() error, ratio func() (float64, usage, error), full func(pod string) int64) (usage, error) {
	if len(s.pods) == 0 {
		return usage{}, errNoPods
	}
	g := s.group()
	for _, names := range [][]string{g.ignored, g.unready} {
		for _, name := range names {
			delete(s.metrics, name)
		}
	}
	if len(s.metrics) == 0 {
		return usage{}, errNoMetrics
	}
	if err := prepare(); err != nil {
		return usage{}, err
	}
	was, u, err := ratio()
	if err != nil {
		return usage{}, err
	}
	u.replicas = s.current
	unreadyCount := len(g.unready) > 0 && was > 1
	if !unreadyCount && len(g.missing) == 0 {
		if !s.tolerance.allows(was) {
			u.replicas = saturated(math.Ceil(was * float64(g.ready)))
		}
		return u, nil
	}
	for _, name := range g.missing {
		switch {
		case was < 1:
			s.metrics[name] = podMetric{value: full(name)}
		case was > 1:
			s.metrics[name] = podMetric{}
		}
	}
	if unreadyCount {
		for _, name := range g.unready {
			s.metrics[name] = podMetric{}
		}
	}
	is, _, err := ratio()
	if err != nil {
		return usage{}, err
	}
	if s.tolerance.allows(is) || was < 1 && is > 1 || was > 1 && is < 1 {
		return u, nil
	}
	n := saturated(math.Ceil(is * float64(len(s.metrics))))
	if is < 1 && n > s.current || is > 1 && n < s.current {
		return u, nil
	}
	u.replicas = n
	return u, nil
}

// groups are pods by how they count.
type groups struct {
	ready                     int
	unready, missing, ignored []string
}

func (s sample) group() groups {
	var g groups
	for _, pod := range s.pods {
		m, measured := s.metrics[pod.Name]
		switch {
		case pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed:
			g.ignored = append(g.ignored, pod.Name)
		case pod.Status.Phase == corev1.PodPending:
			g.unready = append(g.unready, pod.Name)
		case !measured:
			g.missing = append(g.missing, pod.Name)
		case s.resource == corev1.ResourceCPU && s.starting(pod, m):
			g.unready = append(g.unready, pod.Name)
		default:
			g.ready++
		}
	}
	return g
}

// starting tells whether a pod's CPU usage is that of its start, not of its work.
func (s sample) starting(pod *corev1.Pod, m podMetric) bool {
	ready, started := podcontrol.Condition(pod, corev1.PodReady), pod.Status.StartTime
	if ready == nil || started == nil {
		return true
	}
	not := ready.Status == corev1.ConditionFalse
	if started.Add(cpuInitialization).After(s.now) {
		return not || m.at.Before(ready.LastTransitionTime.Add(m.window))
	}
	return not && started.Add(initialReadiness).After(ready.LastTransitionTime.Time)
}

// requests are what the pods request, in thousandths.
func (s sample) requests() (map[string]int64, error) {
	all := make(map[string]int64, len(s.pods))
	for _, pod := range s.pods {
		n, err := requestOf(pod, s.container, s.resource)
		if err != nil {
			return nil, err
		}
		all[pod.Name] = n
	}
	return all, nil
}

// requestOf sums what the containers that run along request. A pod that has requests
// as a whole is asked as the scheduler asks it.
func requestOf(pod *corev1.Pod, container string, resource corev1.ResourceName) (int64, error) {
	if container == "" && podresource.IsPodLevelRequestsSet(pod) {
		q, ok := podresource.PodRequests(pod, podresource.PodResourcesOptions{})[resource]
		if !ok {
			return 0, fmt.Errorf("missing pod-level request for %s in Pod %s", resource, pod.Name)
		}
		return q.MilliValue(), nil
	}
	total, found := int64(0), false
	add := func(c *corev1.Container) error {
		if container != "" && c.Name != container {
			return nil
		}
		q, ok := c.Resources.Requests[resource]
		if !ok {
			return fmt.Errorf("missing request for %s in container %s of Pod %s", resource, c.Name, pod.Name)
		}
		found, total = true, total+q.MilliValue()
		return nil
	}
	for i := range pod.Spec.Containers {
		if err := add(&pod.Spec.Containers[i]); err != nil {
			return 0, err
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			continue
		}
		if err := add(c); err != nil {
			return 0, err
		}
	}
	if container != "" && !found {
		return 0, fmt.Errorf("container %s not found in Pod %s", container, pod.Name)
	}
	return total, nil
}

// byTotal scales the ready pods with a value that is of all of them together.
// From zero, one pod is as much as one target.
func (s sample) byTotal(value int64) (int32, error) {
	ratio := float64(value) / float64(s.target)
	if s.current == 0 {
		return saturated(math.Ceil(ratio)), nil
	}
	if s.tolerance.allows(ratio) {
		return s.current, nil
	}
	if len(s.pods) == 0 {
		return 0, fmt.Errorf("unable to calculate ready pods: %w", errNoPods)
	}
	ready := 0
	for _, pod := range s.pods {
		if pod.Status.Phase == corev1.PodRunning && podcontrol.Ready(pod) {
			ready++
		}
	}
	return saturated(math.Ceil(ratio * float64(ready))), nil
}

// byShare gives every pod a target's share of a value. s.current is the replicas
// that there are; average is what each has now.
func (s sample) byShare(value int64) (replicas int32, average int64) {
	replicas = s.current
	if !s.tolerance.allows(float64(value) / (float64(s.target) * float64(s.current))) {
		replicas = saturated(math.Ceil(float64(value) / float64(s.target)))
	}
	if s.current > 0 {
		average = int64(math.Ceil(float64(value) / float64(s.current)))
	}
	return replicas, average
}
