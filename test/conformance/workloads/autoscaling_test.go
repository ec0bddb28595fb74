package workloads

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// adapter is an extension server for custom and external metrics, such as those
// that stand before a monitoring system. Every pod of a Deployment has 20
// requests, and there are 70 messages in the queue.
type adapter struct {
	pods func(selector string) []string
}

func (a *adapter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch path := r.URL.Path; {
	case path == "/apis/custom.metrics.k8s.io/v1beta2" || path == "/apis/external.metrics.k8s.io/v1beta1":
		fmt.Fprintf(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":%q,"resources":[]}`, strings.TrimPrefix(path, "/apis/"))
	case path == "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*/requests":
		var items []string
		for _, pod := range a.pods(r.URL.Query().Get("labelSelector")) {
			items = append(items, fmt.Sprintf(`{"describedObject":{"kind":"Pod","namespace":"default","name":%q,"apiVersion":"/v1"},"metric":{"name":"requests"},"timestamp":"2026-01-01T00:00:00Z","value":"20"}`, pod))
		}
		fmt.Fprintf(w, `{"kind":"MetricValueList","apiVersion":"custom.metrics.k8s.io/v1beta2","metadata":{},"items":[%s]}`, strings.Join(items, ","))
	case path == "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/messages" && r.URL.Query().Get("labelSelector") == "queue=work":
		fmt.Fprint(w, `{"kind":"ExternalMetricValueList","apiVersion":"external.metrics.k8s.io/v1beta1","metadata":{},"items":[{"metricName":"messages","metricLabels":{"queue":"work"},"timestamp":"2026-01-01T00:00:00Z","value":"70"}]}`)
	default:
		http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`, http.StatusNotFound)
	}
}

// serveMetrics makes the adapter answer for both groups.
func (c *cluster) serveMetrics() {
	c.t.Helper()
	server := httptest.NewTLSServer(&adapter{pods: func(selector string) (names []string) {
		list, err := c.CoreV1().Pods(ns).List(c.ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return nil
		}
		for _, pod := range list.Items {
			names = append(names, pod.Name)
		}
		return names
	}})
	c.t.Cleanup(server.Close)
	address := must(url.Parse(server.URL))(c)
	port := int64(must(strconv.Atoi(address.Port()))(c))
	must(c.CoreV1().Services(ns).Create(c.ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "adapter"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{}))(c)
	services := c.dynamic.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	for group, version := range map[string]string{"custom.metrics.k8s.io": "v1beta2", "external.metrics.k8s.io": "v1beta1"} {
		name := version + "." + group
		must(services.Create(c.ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": name},
			"spec": map[string]any{
				"group": group, "version": version, "groupPriorityMinimum": int64(100), "versionPriority": int64(100), "insecureSkipTLSVerify": true,
				"service": map[string]any{"namespace": ns, "name": "adapter", "port": port},
			},
		}}, metav1.CreateOptions{}))(c)
		until(c, services, named(name), func(l *unstructured.UnstructuredList) error {
			if len(l.Items) == 1 && available(l.Items[0].Object) {
				return nil
			}
			return fmt.Errorf("%s is not available", name)
		})
	}
}

func available(service map[string]any) bool {
	conditions, _, _ := unstructured.NestedSlice(service, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Available" {
			return c["status"] == "True"
		}
	}
	return false
}

func (c *cluster) createAutoscaler(name string, target autoscalingv2.CrossVersionObjectReference, metric autoscalingv2.MetricSpec) {
	c.t.Helper()
	must(c.AutoscalingV2().HorizontalPodAutoscalers(ns).Create(c.ctx, &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       autoscalingv2.HorizontalPodAutoscalerSpec{ScaleTargetRef: target, MaxReplicas: 9, Metrics: []autoscalingv2.MetricSpec{metric}},
	}, metav1.CreateOptions{}))(c)
}

// A Deployment follows a metric of its pods, and a custom resource one that is
// of nothing in the cluster; both come from an extension server.
func TestAutoscalersReadMetricsOfExtensionServers(t *testing.T) {
	c := start(t, 1)
	c.serveMetrics()
	ten := resource.MustParse("10")

	c.createDeployment(deployment("web", 2))
	until(c, c.AppsV1().Deployments(ns), named("web"), func(l *appsv1.DeploymentList) error {
		return want("ready pods", l.Items[0].Status.ReadyReplicas, 2)
	})
	c.createAutoscaler("web", autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, autoscalingv2.MetricSpec{
		Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: "requests"},
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &ten},
		},
	})
	until(c, c.AppsV1().Deployments(ns), named("web"), func(l *appsv1.DeploymentList) error {
		if got := *l.Items[0].Spec.Replicas; got < 4 { // twice the target; a later round doubles again
			return fmt.Errorf("%d replicas", got)
		}
		return nil
	})

	workers := c.createWorkers()
	c.createAutoscaler("workers", autoscalingv2.CrossVersionObjectReference{APIVersion: "example.com/v1", Kind: "Worker", Name: "w"}, autoscalingv2.MetricSpec{
		Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: "messages", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"queue": "work"}}},
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &ten},
		},
	})
	until(c, workers, named("w"), func(l *unstructured.UnstructuredList) error {
		replicas, _, _ := unstructured.NestedInt64(l.Items[0].Object, "spec", "replicas")
		return want("workers", replicas, 7)
	})
}

// createWorkers defines a kind that can be scaled, and one object of it.
func (c *cluster) createWorkers() dynamic.ResourceInterface {
	c.t.Helper()
	number := map[string]any{"type": "object", "properties": map[string]any{"replicas": map[string]any{"type": "integer"}, "selector": map[string]any{"type": "string"}}}
	definitions := c.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	must(definitions.Create(c.ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "workers.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": "workers", "kind": "Worker"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{"spec": number, "status": number}}},
				"subresources": map[string]any{"status": map[string]any{}, "scale": map[string]any{
					"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector",
				}},
			}},
		},
	}}, metav1.CreateOptions{}))(c)
	until(c, definitions, named("workers.example.com"), func(l *unstructured.UnstructuredList) error {
		conditions, _, _ := unstructured.NestedSlice(l.Items[0].Object, "status", "conditions")
		for _, condition := range conditions {
			if condition, ok := condition.(map[string]any); ok && condition["type"] == "Established" && condition["status"] == "True" {
				return nil
			}
		}
		return fmt.Errorf("not established")
	})
	workers := c.dynamic.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "workers"}).Namespace(ns)
	w := must(workers.Create(c.ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Worker", "metadata": map[string]any{"name": "w"}, "spec": map[string]any{"replicas": int64(1)},
	}}, metav1.CreateOptions{}))(c)
	w.Object["status"] = map[string]any{"replicas": int64(1), "selector": "app=worker"}
	must(workers.UpdateStatus(c.ctx, w, metav1.UpdateOptions{}))(c)
	return workers
}
