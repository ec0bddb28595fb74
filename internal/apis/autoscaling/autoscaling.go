// Package autoscaling declares the kinds of the autoscaling group: v2, which is
// stored, and v1, which keeps in annotations what it has no fields for.
package autoscaling

import (
	"fmt"
	"strings"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
)

// Resources returns every kind of the group.
func Resources() []*apis.Resource { return []*apis.Resource{&HorizontalPodAutoscalers} }

// HorizontalPodAutoscalers is the autoscaling/v2 horizontalpodautoscalers
// resource, also served as v1.
var HorizontalPodAutoscalers = apis.Resource{
	Group: "autoscaling", Version: "v2", Kind: "HorizontalPodAutoscaler", Plural: "horizontalpodautoscalers", Short: []string{"hpa"}, Categories: []string{"all"},
	New: apis.New[autoscalingv2.HorizontalPodAutoscaler], NewList: apis.NewList[autoscalingv2.HorizontalPodAutoscalerList],
	Also: []apis.Served{{
		Group: "autoscaling", Version: "v1", Kind: "HorizontalPodAutoscaler",
		New: apis.New[autoscalingv1.HorizontalPodAutoscaler], NewList: apis.NewList[autoscalingv1.HorizontalPodAutoscalerList],
		ToHub: func(obj apis.Object) (apis.Object, error) {
			return fromV1(obj.(*autoscalingv1.HorizontalPodAutoscaler))
		},
		FromHub: func(obj apis.Object) (apis.Object, error) { return toV1(obj.(*autoscalingv2.HorizontalPodAutoscaler)) },
	}},
	Default: apis.On(setDefaults),
	Subresources: []apis.Subresource{
		apis.Writable("status", func(h, old *autoscalingv2.HorizontalPodAutoscaler) { h.Spec = old.Spec }, validateStatus),
	},
	PrepareCreate: apis.On(func(h *autoscalingv2.HorizontalPodAutoscaler) {
		h.Status = autoscalingv2.HorizontalPodAutoscalerStatus{}
	}),
	PrepareUpdate:  apis.OnUpdate(func(h, old *autoscalingv2.HorizontalPodAutoscaler) { h.Status = old.Status }),
	Validate:       apis.Check(validateCreate),
	ValidateUpdate: apis.CheckUpdate(validateUpdate),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Reference", "string", autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["scaleTargetRef"]),
		apis.Column("Targets", "string", autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["metrics"]),
		apis.Column("MinPods", "string", autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["minReplicas"]),
		apis.Column("MaxPods", "string", autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["maxReplicas"]),
		apis.Column("Replicas", "string", autoscalingv2.HorizontalPodAutoscalerStatus{}.SwaggerDoc()["currentReplicas"]),
		apis.AgeColumn,
	},
	Row: apis.Cells(row),
}

func row(h *autoscalingv2.HorizontalPodAutoscaler, now time.Time) []any {
	least := "<unset>"
	if h.Spec.MinReplicas != nil {
		least = fmt.Sprint(*h.Spec.MinReplicas)
	}
	ref := h.Spec.ScaleTargetRef
	return []any{h.Name, ref.Kind + "/" + ref.Name, printMetrics(h.Spec.Metrics, h.Status.CurrentMetrics), least, int64(h.Spec.MaxReplicas), int64(h.Status.CurrentReplicas), apis.AgeOf(h, now)}
}

// shownMetrics is how many metrics a table shows before it counts the rest.
const shownMetrics = 2

func printMetrics(specs []autoscalingv2.MetricSpec, current []autoscalingv2.MetricStatus) string {
	if len(specs) == 0 {
		return "<none>"
	}
	var list []string
	for i, spec := range specs {
		var status autoscalingv2.MetricStatus
		if i < len(current) {
			status = current[i]
		}
		list = append(list, printMetric(spec, status))
	}
	if more := len(list) - shownMetrics; more > 0 {
		return fmt.Sprintf("%s + %d more...", strings.Join(list[:shownMetrics], ", "), more)
	}
	return strings.Join(list, ", ")
}

func printMetric(spec autoscalingv2.MetricSpec, status autoscalingv2.MetricStatus) string {
	switch {
	case spec.External != nil:
		var now *autoscalingv2.MetricValueStatus
		if status.External != nil {
			now = &status.External.Current
		}
		return printQuantity(spec.External.Target, now)
	case spec.Object != nil:
		var now *autoscalingv2.MetricValueStatus
		if status.Object != nil {
			now = &status.Object.Current
		}
		return printQuantity(spec.Object.Target, now)
	case spec.Pods != nil:
		now := unknown
		if status.Pods != nil {
			now = status.Pods.Current.AverageValue.String()
		}
		return now + "/" + spec.Pods.Target.AverageValue.String()
	case spec.Resource != nil:
		var now *autoscalingv2.MetricValueStatus
		if status.Resource != nil {
			now = &status.Resource.Current
		}
		return spec.Resource.Name.String() + ": " + printResource(spec.Resource.Target, now)
	case spec.ContainerResource != nil:
		var now *autoscalingv2.MetricValueStatus
		if status.ContainerResource != nil {
			now = &status.ContainerResource.Current
		}
		return spec.ContainerResource.Name.String() + ": " + printResource(spec.ContainerResource.Target, now)
	}
	return "<unknown type>"
}

const unknown = "<unknown>"

func printQuantity(target autoscalingv2.MetricTarget, status *autoscalingv2.MetricValueStatus) string {
	now := unknown
	if target.AverageValue != nil {
		if status != nil && status.AverageValue != nil {
			now = status.AverageValue.String()
		}
		return fmt.Sprintf("%s/%s (avg)", now, target.AverageValue.String())
	}
	if status != nil && status.Value != nil {
		now = status.Value.String()
	}
	return fmt.Sprintf("%s/%s", now, target.Value.String())
}

func printResource(target autoscalingv2.MetricTarget, status *autoscalingv2.MetricValueStatus) string {
	now, want := unknown, "<auto>"
	if target.AverageValue != nil {
		if status != nil && status.AverageValue != nil {
			now = status.AverageValue.String()
		}
		return now + "/" + target.AverageValue.String()
	}
	if status != nil && status.AverageUtilization != nil {
		now = fmt.Sprintf("%d%%", *status.AverageUtilization)
	}
	if target.AverageUtilization != nil {
		want = fmt.Sprintf("%d%%", *target.AverageUtilization)
	}
	return now + "/" + want
}

// setDefaults fills in one replica, a CPU target, and how fast to scale where
// the user says anything about it.
func setDefaults(h *autoscalingv2.HorizontalPodAutoscaler) {
	if h.Spec.MinReplicas == nil {
		h.Spec.MinReplicas = new(int32(1))
	}
	if len(h.Spec.Metrics) == 0 {
		h.Spec.Metrics = []autoscalingv2.MetricSpec{cpuMetric(defaultUtilization)}
	}
	b := h.Spec.Behavior
	if b == nil {
		return
	}
	b.ScaleUp = defaultRules(b.ScaleUp, new(int32(0)), []autoscalingv2.HPAScalingPolicy{
		{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15},
		{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15},
	})
	b.ScaleDown = defaultRules(b.ScaleDown, nil, []autoscalingv2.HPAScalingPolicy{
		{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15},
	})
}

const defaultUtilization = int32(80)

func cpuMetric(percent int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
		Name:   corev1.ResourceCPU,
		Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &percent},
	}}
}

func defaultRules(rules *autoscalingv2.HPAScalingRules, window *int32, policies []autoscalingv2.HPAScalingPolicy) *autoscalingv2.HPAScalingRules {
	if rules == nil {
		rules = &autoscalingv2.HPAScalingRules{}
	}
	if rules.StabilizationWindowSeconds == nil {
		rules.StabilizationWindowSeconds = window
	}
	if rules.SelectPolicy == nil {
		rules.SelectPolicy = new(autoscalingv2.MaxChangePolicySelect)
	}
	if rules.Policies == nil {
		rules.Policies = policies
	}
	return rules
}
