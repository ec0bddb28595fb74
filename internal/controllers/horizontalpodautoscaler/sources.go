package horizontalpodautoscaler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"k8s.io/metrics/pkg/apis/external_metrics"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"proa/internal/apis"
	"proa/internal/client"
)

// sources are the three APIs that serve metrics.
type sources struct {
	api       client.API
	catalogue *apis.Catalogue
	raw       Raw
}

// defaultWindow is what a metric was measured over that does not say.
const defaultWindow = time.Minute

var podMetricsResource = v1beta1.SchemeGroupVersion.WithResource("pods")

// resource reads what pods use of a resource; a pod is left out while one of its
// containers has not been measured. container: only that one counts.
func (s sources) resource(ctx context.Context, namespace string, selector labels.Selector, name corev1.ResourceName, container string) (podMetrics, error) {
	list, err := s.api.List(ctx, client.Ref{Resource: podMetricsResource, Namespace: namespace}, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from resource metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from resource metrics API")
	}
	all := podMetrics{}
	for _, obj := range list.Items {
		pod, ok := obj.(*v1beta1.PodMetrics)
		if !ok {
			return nil, fmt.Errorf("unable to fetch metrics from resource metrics API: got %T", obj)
		}
		value, measured, err := used(pod, name, container)
		if err != nil {
			return nil, err
		}
		if measured {
			all[pod.Name] = podMetric{value: value, at: pod.Timestamp.Time, window: pod.Window.Duration}
		}
	}
	return all, nil
}

// used is what the containers of a pod that count use together, in thousandths.
func used(pod *v1beta1.PodMetrics, name corev1.ResourceName, container string) (value int64, measured bool, err error) {
	for _, c := range pod.Containers {
		if container != "" && c.Name != container {
			continue
		}
		q, ok := c.Usage[name]
		if !ok {
			return 0, false, nil
		}
		value, measured = value+q.MilliValue(), true
	}
	if container != "" && !measured {
		return 0, false, fmt.Errorf("container %s not present in metrics for pod %s/%s", container, pod.Namespace, pod.Name)
	}
	return value, measured, nil
}

// customValues is a list of custom metrics, of any version.
type customValues struct {
	Items []struct {
		DescribedObject corev1.ObjectReference `json:"describedObject"`
		Timestamp       metav1.Time            `json:"timestamp"`
		WindowSeconds   *int64                 `json:"windowSeconds"`
		Value           resource.Quantity      `json:"value"`
	} `json:"items"`
}

// custom reads below the preferred version of the custom metrics API. path is
// relative to it.
func (s sources) custom(ctx context.Context, path, metric string, query url.Values, metricSelector labels.Selector) (*customValues, error) {
	values, err := func() (*customValues, error) {
		version, err := s.preferred(ctx, custom_metrics.GroupName)
		if err != nil {
			return nil, err
		}
		if text := metricSelector.String(); text != "" {
			query.Set("metricLabelSelector", text)
		}
		return decoded[customValues](s.get(ctx, "/apis/"+version+path+"/"+url.PathEscape(metric), custom_metrics.GroupName, metric, query))
	}()
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	}
	if len(values.Items) == 0 {
		return nil, errors.New("no metrics returned from custom metrics API")
	}
	return values, nil
}

// preferred asks which version of a group to use.
func (s sources) preferred(ctx context.Context, group string) (string, error) {
	g, err := decoded[metav1.APIGroup](s.get(ctx, "/apis/"+group, group, "", nil))
	if apierrors.IsNotFound(err) || err == nil && g.PreferredVersion.GroupVersion == "" {
		return "", fmt.Errorf("no custom metrics API (%s) registered", group)
	}
	if err != nil {
		return "", err
	}
	return g.PreferredVersion.GroupVersion, nil
}

// get reads a path. That nothing serves it reads the same whoever says so.
func (s sources) get(ctx context.Context, path, group, metric string, query url.Values) ([]byte, error) {
	err := error(apierrors.NewNotFound(schema.GroupResource{}, ""))
	var data []byte
	if s.raw != nil {
		data, err = s.raw(ctx, path, query)
	}
	if apierrors.IsNotFound(err) && !named(err) {
		return nil, apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{Group: group, Resource: metric}, "", "", 0, true)
	}
	return data, err
}

// named tells that a status names what was not found, so that it comes from who serves the path.
func named(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Name != ""
}

func decoded[T any](data []byte, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	into := new(T)
	if err := json.Unmarshal(data, into); err != nil {
		return nil, err
	}
	return into, nil
}

func inNamespace(namespace string) string { return "/namespaces/" + url.PathEscape(namespace) }

// ofPods reads a custom metric of every selected pod.
func (s sources) ofPods(ctx context.Context, namespace string, selector labels.Selector, metric string, metricSelector labels.Selector) (podMetrics, error) {
	values, err := s.custom(ctx, inNamespace(namespace)+"/pods/*", metric, url.Values{"labelSelector": {selector.String()}}, metricSelector)
	if err != nil {
		return nil, err
	}
	all := podMetrics{}
	for _, v := range values.Items {
		m := podMetric{value: v.Value.MilliValue(), at: v.Timestamp.Time, window: defaultWindow}
		if v.WindowSeconds != nil {
			m.window = time.Duration(*v.WindowSeconds) * time.Second
		}
		all[v.DescribedObject.Name] = m
	}
	return all, nil
}

// ofObject reads a custom metric of one object.
func (s sources) ofObject(ctx context.Context, namespace string, of autoscalingv2.CrossVersionObjectReference, metric string, metricSelector labels.Selector) (int64, error) {
	path := inNamespace(namespace) + "/metrics"
	if of.Kind != "Namespace" || of.APIVersion != "v1" {
		gv, err := schema.ParseGroupVersion(of.APIVersion)
		if err != nil {
			return 0, err
		}
		gvr, err := resourceOf(s.catalogue, gv.WithKind(of.Kind))
		if err != nil {
			return 0, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
		}
		path = inNamespace(namespace) + "/" + gvr.GroupResource().String() + "/" + url.PathEscape(of.Name)
	}
	values, err := s.custom(ctx, path, metric, url.Values{}, metricSelector)
	if err != nil {
		return 0, err
	}
	return values.Items[0].Value.MilliValue(), nil
}

// externalValues is a list of external metrics.
type externalValues struct {
	Items []struct {
		Value resource.Quantity `json:"value"`
	} `json:"items"`
}

// external reads an external metric and adds up its series.
func (s sources) external(ctx context.Context, namespace, metric string, selector labels.Selector) (int64, error) {
	query := url.Values{}
	if text := selector.String(); text != "" {
		query.Set("labelSelector", text)
	}
	path := "/apis/" + external_metrics.GroupName + "/v1beta1" + inNamespace(namespace) + "/" + url.PathEscape(metric)
	values, err := decoded[externalValues](s.get(ctx, path, external_metrics.GroupName, metric, query))
	if err != nil {
		return 0, fmt.Errorf("unable to fetch metrics from external metrics API: %w", err)
	}
	if len(values.Items) == 0 {
		return 0, errors.New("no metrics returned from external metrics API")
	}
	total := int64(0)
	for _, v := range values.Items {
		total += v.Value.MilliValue()
	}
	return total, nil
}
