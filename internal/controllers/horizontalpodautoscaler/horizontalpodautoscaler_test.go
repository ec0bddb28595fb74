package horizontalpodautoscaler_test

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"proa/internal/apis"
	metricsapi "proa/internal/apis/metrics"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
	"proa/internal/controllers/horizontalpodautoscaler"
	"proa/internal/controllers/replicaset"
)

var app = map[string]string{"app": "web"}

// meter answers metrics.k8s.io: every pod's containers use what it says.
type meter struct {
	w    *controllertest.World
	used map[string]string // CPU by container

	memory string // of each container; empty: not measured
}

func (m *meter) Get(string, string) (apis.Object, error) {
	return nil, apierrors.NewNotFound(v1beta1.Resource("pods"), "")
}

func (m *meter) List(string) []apis.Object {
	var all []apis.Object
	for _, pod := range m.w.Pods("app=web") {
		p := &v1beta1.PodMetrics{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, Labels: pod.Labels},
			Timestamp: metav1.Now(), Window: metav1.Duration{Duration: 15 * time.Second}}
		for name, cpu := range m.used {
			usage := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
			if m.memory != "" {
				usage[corev1.ResourceMemory] = resource.MustParse(m.memory)
			}
			p.Containers = append(p.Containers, v1beta1.ContainerMetrics{Name: name, Usage: usage})
		}
		all = append(all, p)
	}
	return all
}

// bed is a world with a ReplicaSet of ready pods, metrics and the controller.
type bed struct {
	*controllertest.World
	meter *meter

	mu  sync.Mutex        // guards raw
	raw map[string]string // answers of extension servers by path and query
}

// answer says what an extension server answers.
func (b *bed) answer(path, text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.raw[path] = text
}

func (b *bed) read(_ context.Context, path string, query url.Values) ([]byte, error) {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if text, ok := b.raw[path]; ok {
		return []byte(text), nil
	}
	return nil, apierrors.NewGenericServerResponse(404, "get", v1beta1.Resource(""), "", "404 page not found", 0, true)
}

func run(t *testing.T, replicas int32, test func(b *bed)) {
	t.Helper()
	controllertest.Run(t, func(w *controllertest.World) {
		b := &bed{World: w, meter: &meter{w: w, used: map[string]string{"c": "500m"}}, raw: map[string]string{}}
		w.Serve(&metricsapi.PodMetrics, b.meter)
		requests := corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}
		w.Create(&appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec: appsv1.ReplicaSetSpec{
				Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: app},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: app},
					Spec: corev1.PodSpec{Containers: []corev1.Container{
						{Name: "c", Image: "one", Resources: requests}, {Name: "side", Image: "two", Resources: requests},
					}},
				},
			},
		})
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			c.Metrics = w.Registry()
			return []controllertest.Runner{horizontalpodautoscaler.New(c, w.Catalogue, b.read), replicaset.New(c)}
		})()
		b.meter.used["side"] = "0"
		b.grow()
		test(b)
	})
}

// grow runs what pods there are, for longer than CPU usage of a start is ignored.
func (b *bed) grow() {
	b.T.Helper()
	b.Converge()
	for _, pod := range b.Pods("app=web") {
		controllertest.ChangeStatus(b.World, pod.Name, func(p *corev1.Pod) { p.Status.StartTime = new(metav1.Now()) })
	}
	time.Sleep(10 * time.Minute)
	b.Settle()
}

// pass lets the controller look again, n times.
func (b *bed) pass(n int) {
	for range n {
		time.Sleep(15 * time.Second)
		b.Settle()
	}
}

func (b *bed) replicas() int32 {
	b.T.Helper()
	return *controllertest.Get[*appsv1.ReplicaSet](b.World, "web").Spec.Replicas
}

func (b *bed) autoscale(change func(*autoscalingv2.HorizontalPodAutoscalerSpec), metrics ...autoscalingv2.MetricSpec) {
	b.T.Helper()
	h := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web"},
			MinReplicas:    new(int32(1)), MaxReplicas: 10, Metrics: metrics,
		},
	}
	if change != nil {
		change(&h.Spec)
	}
	b.Create(h)
	b.Settle()
}

func (b *bed) status() autoscalingv2.HorizontalPodAutoscalerStatus {
	b.T.Helper()
	return controllertest.Get[*autoscalingv2.HorizontalPodAutoscaler](b.World, "web").Status
}

// conditions are "Type Status Reason: message", in order of type.
func (b *bed) conditions() string {
	b.T.Helper()
	var lines []string
	for _, c := range b.status().Conditions {
		lines = append(lines, fmt.Sprintf("%s %s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (b *bed) expect(replicas int32, conditions ...string) {
	b.T.Helper()
	if got := b.replicas(); got != replicas {
		b.T.Errorf("%d replicas, want %d", got, replicas)
	}
	if got, want := b.conditions(), strings.Join(conditions, "\n"); got != want {
		b.T.Errorf("conditions:\n%s\nwant:\n%s", got, want)
	}
}

func (b *bed) expectEvent(want string) {
	b.T.Helper()
	if !slices.Contains(b.Events(), want) {
		b.T.Errorf("no event %q in:\n%s", want, strings.Join(b.Events(), "\n"))
	}
}

func cpu(percent int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
		Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &percent},
	}}
}

const (
	rescaledTo  = "AbleToScale True SucceededRescale: the HPA controller was able to update the target scale to %d"
	ready       = "AbleToScale True ReadyForNewScale: recommended size matches current size"
	cpuFound    = "ScalingActive True ValidMetricFound: the HPA was able to successfully calculate a replica count from cpu resource utilization (percentage of request)"
	withinRange = "ScalingLimited False DesiredWithinRange: the desired count is within the acceptable range"
	notZero     = "ScaledToZero False NotScaledToZero: the HPA controller did not scale the workload to zero"
)

func TestUsageOfTwiceTheTargetDoublesReplicas(t *testing.T) {
	run(t, 2, func(b *bed) {
		b.meter.used["c"] = "1"
		b.autoscale(nil, cpu(50))
		b.pass(1)
		b.expect(2, ready, cpuFound, withinRange)
	})
	run(t, 2, func(b *bed) {
		b.meter.used["c"] = "2"
		b.autoscale(nil, cpu(50))
		b.expect(4, fmt.Sprintf(rescaledTo, 4), notZero, cpuFound, withinRange)
		b.expectEvent("Normal SuccessfulRescale New size: 4; reason: cpu resource utilization (percentage of request) above target")
		s := b.status()
		if s.CurrentReplicas != 2 || s.DesiredReplicas != 4 || s.LastScaleTime == nil {
			t.Errorf("status %+v", s)
		}
		b.Measured(`horizontal_pod_autoscaler_controller_reconciliations_total{action="scale_up",error="none"} 1`,
			`horizontal_pod_autoscaler_controller_metric_computation_total{action="scale_up",error="none",metric_type="Resource"} 1`,
			`horizontal_pod_autoscaler_controller_desired_replicas{hpa_name="web",namespace="default"} 4`,
			`horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers 1`)
		r := s.CurrentMetrics[0].Resource
		if *r.Current.AverageUtilization != 100 || r.Current.AverageValue.String() != "2" {
			t.Errorf("current metrics %+v", r)
		}
	})
}

func TestScalingDownWaitsFiveMinutes(t *testing.T) {
	run(t, 4, func(b *bed) {
		b.meter.used["c"] = "100m"
		b.autoscale(nil, cpu(50))
		b.expect(4, "AbleToScale True ScaleDownStabilized: recent recommendations were higher than current one, applying the highest recent recommendation", cpuFound, withinRange)
		b.pass(20)
		b.expect(1, fmt.Sprintf(rescaledTo, 1), notZero, cpuFound, withinRange)
		b.expectEvent("Normal SuccessfulRescale New size: 1; reason: All metrics below target")
	})
}

func TestReplicasOutOfRangeAreCorrectedAtOnce(t *testing.T) {
	run(t, 4, func(b *bed) {
		b.autoscale(func(s *autoscalingv2.HorizontalPodAutoscalerSpec) { s.MaxReplicas = 3 }, cpu(50))
		b.expectEvent("Normal SuccessfulRescale New size: 3; reason: Current number of replicas above Spec.MaxReplicas")
	})
	run(t, 1, func(b *bed) {
		b.autoscale(func(s *autoscalingv2.HorizontalPodAutoscalerSpec) { s.MinReplicas = new(int32(2)) }, cpu(50))
		b.expectEvent("Normal SuccessfulRescale New size: 2; reason: Current number of replicas below Spec.MinReplicas")
	})
	run(t, 0, func(b *bed) {
		b.autoscale(nil, cpu(50))
		b.expect(0, "AbleToScale True SucceededGetScale: the HPA controller was able to get the target's current scale",
			"ScalingActive False ScalingDisabled: scaling is disabled since the replica count of the target is zero")
	})
}

func TestABusySidecarCountsOnlyForMetricsOfThePod(t *testing.T) {
	container := func(name string) autoscalingv2.MetricSpec {
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ContainerResourceMetricSourceType, ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
			Name: corev1.ResourceCPU, Container: name, Target: cpu(50).Resource.Target,
		}}
	}
	run(t, 2, func(b *bed) {
		b.meter.used = map[string]string{"c": "500m", "side": "1500m"}
		b.autoscale(nil, container("c"))
		b.expect(2, ready, strings.Replace(cpuFound, "cpu resource", "cpu container resource", 1), withinRange)
		if m := b.status().CurrentMetrics[0].ContainerResource; m == nil || m.Container != "c" || *m.Current.AverageUtilization != 50 {
			t.Errorf("current metrics %+v", m)
		}
	})
	run(t, 2, func(b *bed) {
		b.meter.used = map[string]string{"c": "500m", "side": "1500m"}
		b.autoscale(nil, cpu(50))
		if got := b.replicas(); got != 4 {
			t.Errorf("%d replicas", got)
		}
	})
	run(t, 2, func(b *bed) {
		b.autoscale(nil, container("none"))
		pod := controllertest.List[*corev1.Pod](b.World)[0].Name
		want := "failed to get cpu utilization: unable to get metrics for resource cpu: container none not present in metrics for pod default/" + pod
		b.expect(2, "AbleToScale True SucceededGetScale: the HPA controller was able to get the target's current scale",
			"ScalingActive False FailedGetContainerResourceMetric: the HPA was unable to compute the replica count: "+want)
		b.expectEvent("Warning FailedGetContainerResourceMetric " + want)
		b.expectEvent("Warning FailedComputeMetricsReplicas invalid metrics (1 invalid out of 1), first error is: failed to get none container metric value: " + want)
	})
}

func TestATargetThatCannotBeScaled(t *testing.T) {
	tests := []struct {
		name   string
		target autoscalingv2.CrossVersionObjectReference
		want   string
	}{
		{"is missing", autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "none"}, `replicasets.apps "none" not found`},
		{"is of no kind", autoscalingv2.CrossVersionObjectReference{APIVersion: "example.com/v1", Kind: "Web", Name: "web"}, `no matches for kind "Web" in group "example.com"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			run(t, 1, func(b *bed) {
				b.autoscale(func(s *autoscalingv2.HorizontalPodAutoscalerSpec) { s.ScaleTargetRef = tt.target }, cpu(50))
				b.expect(1, "AbleToScale False FailedGetScale: the HPA controller was unable to get the target's current scale: "+tt.want)
				b.expectEvent("Warning FailedGetScale " + tt.want)
			})
		})
	}
}

func TestPodsOfTwoAutoscalersAreScaledByNeither(t *testing.T) {
	run(t, 2, func(b *bed) {
		b.autoscale(nil, cpu(50))
		other := controllertest.Get[*autoscalingv2.HorizontalPodAutoscaler](b.World, "web").DeepCopy()
		other.ObjectMeta = metav1.ObjectMeta{Name: "other"}
		b.Create(other)
		b.pass(1)
		b.expectEvent("Warning AmbiguousSelector pods by selector app=web are controlled by more than one HPA (e.g. [{other default} {web default}])")
		if c := b.conditions(); !strings.Contains(c, "ScalingActive False AmbiguousSelector") {
			t.Error(c)
		}
		b.Measured(`horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers 2`,
			`horizontal_pod_autoscaler_controller_reconciliations_total{action="none",error="internal"} 3`)
	})
}

func TestMetricsThatNothingServes(t *testing.T) {
	tests := []struct {
		name, reason, want string
		metric             autoscalingv2.MetricSpec
	}{
		{"of pods", "FailedGetPodsMetric", "unable to get metric qps: unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered", podsMetric()},
		{"of an object", "FailedGetObjectMetric", "unable to get metric hits on Service default/web: unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered", objectMetric()},
		{"external", "FailedGetExternalMetric", "failed to get external metric queue: unable to get external metric default/queue/nil: unable to fetch metrics from external metrics API: the server could not find the requested resource (get queue.external.metrics.k8s.io)", externalMetric("2")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			run(t, 1, func(b *bed) {
				b.autoscale(nil, tt.metric)
				if c := b.conditions(); !strings.Contains(c, "ScalingActive False "+tt.reason+": the HPA was unable to compute the replica count: ") {
					t.Error(c)
				}
				b.expectEvent("Warning " + tt.reason + " " + tt.want)
			})
		})
	}
}

func podsMetric() autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "qps"},
		Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: new(resource.MustParse("10"))},
	}}
}

func objectMetric() autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
		DescribedObject: autoscalingv2.CrossVersionObjectReference{APIVersion: "v1", Kind: "Service", Name: "web"},
		Metric:          autoscalingv2.MetricIdentifier{Name: "hits", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"verb": "GET"}}},
		Target:          autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: new(resource.MustParse("100"))},
	}}
}

func externalMetric(share string) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "queue"},
		Target: autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: new(resource.MustParse(share))},
	}}
}

const customGroup = `{"kind":"APIGroup","preferredVersion":{"groupVersion":"custom.metrics.k8s.io/v1beta2","version":"v1beta2"}}`

func TestCustomMetricsScale(t *testing.T) {
	run(t, 2, func(b *bed) {
		var items []string
		for _, pod := range controllertest.List[*corev1.Pod](b.World) {
			items = append(items, fmt.Sprintf(`{"describedObject":{"kind":"Pod","name":%q},"value":"20"}`, pod.Name))
		}
		b.answer("/apis/custom.metrics.k8s.io", customGroup)
		b.answer("/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*/qps?labelSelector=app%3Dweb", `{"items":[`+strings.Join(items, ",")+`]}`)
		b.autoscale(nil, podsMetric())
		b.expect(4, fmt.Sprintf(rescaledTo, 4), notZero, "ScalingActive True ValidMetricFound: the HPA was able to successfully calculate a replica count from pods metric qps", withinRange)
	})
	run(t, 2, func(b *bed) {
		b.answer("/apis/custom.metrics.k8s.io", customGroup)
		b.answer("/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/services/web/hits?metricLabelSelector=verb%3DGET", `{"items":[{"value":"150"}]}`)
		b.autoscale(nil, objectMetric())
		b.expect(3, fmt.Sprintf(rescaledTo, 3), notZero, "ScalingActive True ValidMetricFound: the HPA was able to successfully calculate a replica count from Service metric hits", withinRange)
	})
}

func TestExternalMetricsScaleToZeroAndBack(t *testing.T) {
	const path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/queue"
	run(t, 2, func(b *bed) {
		b.answer(path, `{"items":[{"value":"0"},{"value":"0"}]}`)
		b.autoscale(func(s *autoscalingv2.HorizontalPodAutoscalerSpec) { s.MinReplicas = new(int32(0)) }, externalMetric("2"))
		b.pass(20)
		found := "ScalingActive True ValidMetricFound: the HPA was able to successfully calculate a replica count from external metric queue(nil)"
		b.expect(0, fmt.Sprintf(rescaledTo, 0), "ScaledToZero True ScaledToZero: the HPA controller scaled the workload to zero", found, withinRange)
		b.grow()
		b.answer(path, `{"items":[{"value":"1"},{"value":"2"}]}`)
		b.pass(1)
		b.expect(2, fmt.Sprintf(rescaledTo, 2), notZero, found, withinRange)
	})
}

// A target that was scaled to zero is measured even when its minimum has been raised:
// it gets what metrics ask for, at least the minimum, and nothing while they fail.
func TestFromZeroToAMinimumThatWasRaised(t *testing.T) {
	const path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/queue"
	for _, tt := range []struct {
		name, items string
		want        int32
		event       string
	}{
		{"metrics ask for more", `{"items":[{"value":"7"}]}`, 4, "Normal SuccessfulRescale New size: 4; reason: external metric queue(nil) above target"},
		{"metrics ask for less", `{"items":[{"value":"0"}]}`, 2, "Normal SuccessfulRescale New size: 2; reason: "},
		{"metrics fail", `no JSON`, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run(t, 2, func(b *bed) {
				b.answer(path, `{"items":[{"value":"0"}]}`)
				b.autoscale(func(s *autoscalingv2.HorizontalPodAutoscalerSpec) { s.MinReplicas = new(int32(0)) }, externalMetric("2"))
				b.pass(21)
				b.grow()
				b.answer(path, tt.items)
				controllertest.Change(b.World, "web", func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Spec.MinReplicas = new(int32(2)) })
				b.pass(1)
				if got := b.replicas(); got != tt.want {
					t.Errorf("%d replicas, want %d", got, tt.want)
				}
				if tt.event != "" {
					b.expectEvent(tt.event)
				}
			})
		})
	}
}

func TestContainersAndMemoryAreNamedAsUpstreamDoes(t *testing.T) {
	run(t, 2, func(b *bed) {
		b.meter.memory = "64Mi"
		b.autoscale(nil, autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
			Name: corev1.ResourceMemory, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: new(resource.MustParse("128Mi"))},
		}}, autoscalingv2.MetricSpec{Type: autoscalingv2.ContainerResourceMetricSourceType, ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
			Name: corev1.ResourceCPU, Container: "c", Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(int32(25))},
		}})
		b.expectEvent("Normal SuccessfulRescale New size: 4; reason: cpu container resource utilization (percentage of request) above target")
		if got := b.status().CurrentMetrics[0].Resource.Current.AverageValue.String(); got != "128Mi" {
			t.Errorf("memory %s", got)
		}
	})
}

func TestAFailingMetricHoldsBackOnlyScalingDown(t *testing.T) {
	run(t, 2, func(b *bed) {
		b.meter.used["c"] = "2"
		b.autoscale(nil, externalMetric("2"), cpu(50))
		if got := b.replicas(); got != 4 {
			t.Errorf("%d replicas", got)
		}
	})
	run(t, 4, func(b *bed) {
		b.meter.used["c"] = "100m"
		b.autoscale(nil, externalMetric("2"), cpu(50))
		b.pass(30)
		if got := b.replicas(); got != 4 {
			t.Errorf("%d replicas", got)
		}
	})
}
