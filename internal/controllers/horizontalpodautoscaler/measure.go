package horizontalpodautoscaler

import (
	"context"
	"errors"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// measurement asks metrics what they want a target to have.
type measurement struct {
	*run
	scale    *autoscalingv1.Scale
	selector labels.Selector
	pods     []*corev1.Pod
}

// sample is what all computations start from.
func (m *measurement) sample(replicas int32, target int64) sample {
	return sample{current: replicas, pods: m.pods, target: target, tolerance: tolerances(m.hpa.Spec.Behavior), now: m.now}
}

func (m *measurement) of(ctx context.Context, spec *autoscalingv2.MetricSpec) (*proposal, *failure) {
	var p *proposal
	var err error
	f := &failure{}
	switch {
	case spec.Type == autoscalingv2.ObjectMetricSourceType && spec.Object != nil:
		f.reason, f.within = "FailedGetObjectMetric", "failed to get object metric value"
		p, err = m.object(ctx, spec.Object)
	case spec.Type == autoscalingv2.PodsMetricSourceType && spec.Pods != nil:
		f.reason, f.within = "FailedGetPodsMetric", "failed to get pods metric value"
		p, err = m.podsMetric(ctx, spec.Pods)
	case spec.Type == autoscalingv2.ResourceMetricSourceType && spec.Resource != nil:
		f.reason, f.within = "FailedGetResourceMetric", fmt.Sprintf("failed to get %s resource metric value", spec.Resource.Name)
		p, err = m.resource(ctx, spec.Resource.Name, "", spec.Resource.Target)
	case spec.Type == autoscalingv2.ContainerResourceMetricSourceType && spec.ContainerResource != nil:
		c := spec.ContainerResource
		f.reason, f.within = "FailedGetContainerResourceMetric", fmt.Sprintf("failed to get %s container metric value", c.Container)
		p, err = m.resource(ctx, c.Name, c.Container, c.Target)
	case spec.Type == autoscalingv2.ExternalMetricSourceType && spec.External != nil:
		f.reason, f.within = "FailedGetExternalMetric", fmt.Sprintf("failed to get %s external metric value", spec.External.Metric.Name)
		p, err = m.external(ctx, spec.External)
	default:
		f.reason, f.within = "InvalidMetricSourceType", "invalid metric"
		err = &specFault{text: fmt.Sprintf("unknown metric source type %q", spec.Type)}
	}
	if err != nil {
		f.cause = err
		return nil, f
	}
	return p, nil
}

// resource is a metric of what pods, or one container of each, use.
func (m *measurement) resource(ctx context.Context, name corev1.ResourceName, container string, target autoscalingv2.MetricTarget) (*proposal, error) {
	if target.AverageValue == nil && target.AverageUtilization == nil {
		return nil, errors.New("invalid resource metric source: neither an average utilization target nor an average value (usage) target was set")
	}
	metrics, fetchErr := m.sources.resource(ctx, m.hpa.Namespace, m.selector, name, container)
	if fetchErr != nil {
		fetchErr = fmt.Errorf("unable to get metrics for resource %s: %w", name, fetchErr)
	}
	s := m.sample(m.scale.Spec.Replicas, 0)
	s.metrics, s.resource, s.container = metrics, name, container
	if target.AverageValue != nil {
		s.target = target.AverageValue.MilliValue()
		u, err := compute(s.byValue, fetchErr)
		if err != nil {
			return nil, fmt.Errorf("failed to get %s usage: %w", name, err)
		}
		return resourceProposal(name, container, u.replicas, fmt.Sprintf("%s resource", name), autoscalingv2.MetricValueStatus{AverageValue: amount(name, u.average)}), nil
	}
	s.target = int64(*target.AverageUtilization)
	u, err := compute(s.byUtilization, fetchErr)
	if err != nil {
		return nil, fmt.Errorf("failed to get %s utilization: %w", name, err)
	}
	what := "resource"
	if container != "" {
		what = "container resource"
	}
	return resourceProposal(name, container, u.replicas, fmt.Sprintf("%s %s utilization (percentage of request)", name, what),
		autoscalingv2.MetricValueStatus{AverageUtilization: &u.utilization, AverageValue: amount(name, u.average)}), nil
}

func compute(by func() (usage, error), fetchErr error) (usage, error) {
	if fetchErr != nil {
		return usage{}, fetchErr
	}
	return by()
}

func resourceProposal(name corev1.ResourceName, container string, replicas int32, metric string, current autoscalingv2.MetricValueStatus) *proposal {
	p := &proposal{replicas: replicas, metric: metric}
	if container == "" {
		p.status = autoscalingv2.MetricStatus{Type: autoscalingv2.ResourceMetricSourceType,
			Resource: &autoscalingv2.ResourceMetricStatus{Name: name, Current: current}}
		return p
	}
	p.status = autoscalingv2.MetricStatus{Type: autoscalingv2.ContainerResourceMetricSourceType,
		ContainerResource: &autoscalingv2.ContainerResourceMetricStatus{Name: name, Container: container, Current: current}}
	return p
}

func milli(n int64) *resource.Quantity { return resource.NewMilliQuantity(n, resource.DecimalSI) }

// amount is how much of a resource pods use: memory in Mi, as metrics say it.
func amount(name corev1.ResourceName, n int64) *resource.Quantity {
	if name == corev1.ResourceMemory {
		return resource.NewMilliQuantity(n, resource.BinarySI)
	}
	return milli(n)
}

// podsMetric is a custom metric of each pod.
func (m *measurement) podsMetric(ctx context.Context, spec *autoscalingv2.PodsMetricSource) (*proposal, error) {
	selector, err := metav1.LabelSelectorAsSelector(spec.Metric.Selector)
	if err != nil {
		return nil, err
	}
	if spec.Target.AverageValue == nil {
		return nil, errors.New("invalid pods metric source: no average value target was set")
	}
	s := m.sample(m.scale.Spec.Replicas, spec.Target.AverageValue.MilliValue())
	if s.metrics, err = m.sources.ofPods(ctx, m.hpa.Namespace, m.selector, spec.Metric.Name, selector); err != nil {
		return nil, fmt.Errorf("unable to get metric %s: %w", spec.Metric.Name, err)
	}
	u, err := s.byValue()
	if err != nil {
		return nil, err
	}
	return &proposal{replicas: u.replicas, metric: "pods metric " + spec.Metric.Name, status: autoscalingv2.MetricStatus{
		Type: autoscalingv2.PodsMetricSourceType,
		Pods: &autoscalingv2.PodsMetricStatus{Metric: spec.Metric, Current: autoscalingv2.MetricValueStatus{AverageValue: milli(u.average)}},
	}}, nil
}

// object is a custom metric of one object.
func (m *measurement) object(ctx context.Context, spec *autoscalingv2.ObjectMetricSource) (*proposal, error) {
	selector, err := metav1.LabelSelectorAsSelector(spec.Metric.Selector)
	if err != nil {
		return nil, err
	}
	of := spec.DescribedObject
	read := func() (int64, error) {
		value, err := m.sources.ofObject(ctx, m.hpa.Namespace, of, spec.Metric.Name, selector)
		if err != nil {
			return 0, fmt.Errorf("unable to get metric %s on %s %s/%s: %w", spec.Metric.Name, of.Kind, m.hpa.Namespace, of.Name, err)
		}
		return value, nil
	}
	a, err := m.whole(spec.Target, read)
	switch {
	case errors.Is(err, errNoTarget):
		return nil, errors.New("invalid object metric source: neither a value target nor an average value target was set")
	case err != nil && a.perPod:
		return nil, fmt.Errorf("failed to get %s object metric: %w", spec.Metric.Name, err)
	case err != nil:
		return nil, err
	}
	name := fmt.Sprintf("%s metric %s", of.Kind, spec.Metric.Name)
	if a.perPod {
		name = fmt.Sprintf("external metric %s(%+v)", spec.Metric.Name, spec.Metric.Selector)
	}
	return &proposal{replicas: a.replicas, metric: name, status: autoscalingv2.MetricStatus{
		Type:   autoscalingv2.ObjectMetricSourceType,
		Object: &autoscalingv2.ObjectMetricStatus{DescribedObject: of, Metric: spec.Metric, Current: a.current},
	}}, nil
}

// external is a metric of something outside the cluster.
func (m *measurement) external(ctx context.Context, spec *autoscalingv2.ExternalMetricSource) (*proposal, error) {
	name := spec.Metric.Name
	read := func() (int64, error) {
		selector, err := metav1.LabelSelectorAsSelector(spec.Metric.Selector)
		if err != nil {
			return 0, err
		}
		value, err := m.sources.external(ctx, m.hpa.Namespace, name, selector)
		if err != nil {
			return 0, fmt.Errorf("unable to get external metric %s/%s/%+v: %w", m.hpa.Namespace, name, spec.Metric.Selector, err)
		}
		return value, nil
	}
	a, err := m.whole(spec.Target, read)
	switch {
	case errors.Is(err, errNoTarget):
		return nil, errors.New("invalid external metric source: neither a value target nor an average value target was set")
	case err != nil && a.perPod:
		return nil, fmt.Errorf("failed to get %s external metric: %w", name, err)
	case err != nil:
		return nil, fmt.Errorf("failed to get external metric %s: %w", name, err)
	}
	return &proposal{replicas: a.replicas, metric: fmt.Sprintf("external metric %s(%+v)", name, spec.Metric.Selector), status: autoscalingv2.MetricStatus{
		Type:     autoscalingv2.ExternalMetricSourceType,
		External: &autoscalingv2.ExternalMetricStatus{Metric: spec.Metric, Current: a.current},
	}}, nil
}

var errNoTarget = errors.New("neither a value target nor an average value target was set")

// answer is what a value that is of all pods together asks for.
type answer struct {
	replicas int32
	perPod   bool // the target is a share for each
	current  autoscalingv2.MetricValueStatus
}

func (m *measurement) whole(target autoscalingv2.MetricTarget, read func() (int64, error)) (answer, error) {
	switch {
	case target.AverageValue != nil:
		value, err := read()
		if err != nil {
			return answer{perPod: true}, err
		}
		replicas, average := m.sample(m.scale.Status.Replicas, target.AverageValue.MilliValue()).byShare(value)
		return answer{replicas, true, autoscalingv2.MetricValueStatus{AverageValue: milli(average)}}, nil
	case target.Value != nil:
		value, err := read()
		if err != nil {
			return answer{}, err
		}
		replicas, err := m.sample(m.scale.Spec.Replicas, target.Value.MilliValue()).byTotal(value)
		return answer{replicas, false, autoscalingv2.MetricValueStatus{Value: milli(value)}}, err
	}
	return answer{}, errNoTarget
}
