package apiserver

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"proa/internal/apis"
	metricsapi "proa/internal/apis/metrics"
)

// measured is a source of two nodes' metrics.
type measured struct{}

func (measured) Get(_, name string) (apis.Object, error) {
	for _, obj := range (measured{}).List("") {
		if obj.GetName() == name {
			return obj, nil
		}
	}
	return nil, apierrors.NewNotFound(v1beta1.Resource("nodemetrics"), name)
}

func (measured) List(string) []apis.Object {
	var all []apis.Object
	for _, name := range []string{"b", "a"} {
		all = append(all, &v1beta1.NodeMetrics{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}},
			Usage:      corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m"), corev1.ResourceMemory: resource.MustParse("1Gi")},
		})
	}
	return all
}

func TestComputedKinds(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		if err := c.Registry.Serve(&metricsapi.NodeMetrics, measured{}); err != nil {
			t.Fatal(err)
		}
	})
	const path = "/apis/metrics.k8s.io/v1beta1/nodes"
	get := func(query, accept string, into any) int {
		t.Helper()
		resp, body := w.do("GET", path+query, "", "Accept", accept)
		if err := json.Unmarshal([]byte(body), into); err != nil {
			t.Fatalf("%v in %s", err, body)
		}
		return resp.StatusCode
	}
	t.Run("are listed in order, without a version", func(t *testing.T) {
		var list v1beta1.NodeMetricsList
		if code := get("", "application/json", &list); code != 200 || list.Kind != "NodeMetricsList" || list.ResourceVersion != "" ||
			len(list.Items) != 2 || list.Items[0].Name != "a" || list.Items[0].Usage.Cpu().String() != "250m" {
			t.Errorf("%d %+v", code, list)
		}
	})
	t.Run("are selected", func(t *testing.T) {
		var list v1beta1.NodeMetricsList
		if get("?labelSelector=name%3Db", "application/json", &list); len(list.Items) != 1 || list.Items[0].Name != "b" {
			t.Errorf("%+v", list)
		}
		if get("?fieldSelector=metadata.name%3Da", "application/json", &list); len(list.Items) != 1 || list.Items[0].Name != "a" {
			t.Errorf("%+v", list)
		}
	})
	t.Run("are tables", func(t *testing.T) {
		var table metav1.Table
		get("", "application/json;as=Table;v=v1;g=meta.k8s.io", &table)
		if len(table.Rows) != 2 || table.Rows[0].Cells[1] != "250m" || table.Rows[0].Cells[2] != "1Gi" {
			t.Errorf("%+v", table)
		}
	})
	t.Run("are read one at a time", func(t *testing.T) {
		var one v1beta1.NodeMetrics
		if code := get("/a", "application/json", &one); code != 200 || one.Kind != "NodeMetrics" || one.Name != "a" {
			t.Errorf("%d %+v", code, one)
		}
		var s metav1.Status
		if code := get("/c", "application/json", &s); code != 404 || s.Message != `nodemetrics.metrics.k8s.io "c" not found` {
			t.Errorf("%d %+v", code, s)
		}
	})
	t.Run("are neither watched nor written", func(t *testing.T) {
		var s metav1.Status
		if code := get("?watch=1", "application/json", &s); code != 405 || s.Reason != metav1.StatusReasonMethodNotAllowed {
			t.Errorf("%d %+v", code, s)
		}
		if resp, body := w.do("POST", path, "{}"); resp.StatusCode != 405 {
			t.Errorf("%s", body)
		}
	})
}

func TestScalesAreTables(t *testing.T) {
	w := newWorld(t)
	w.namespace("default")
	const path = "/apis/apps/v1/namespaces/default/deployments"
	resp, body := w.do("POST", path, `{"metadata":{"name":"d"},"spec":{"replicas":3,"selector":{"matchLabels":{"a":"b"}},
		"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`)
	if resp.StatusCode != 201 {
		t.Fatal(body)
	}
	_, body = w.do("GET", path+"/d/scale", "", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	var table metav1.Table
	if err := json.Unmarshal([]byte(body), &table); err != nil {
		t.Fatal(err)
	}
	if len(table.Rows) != 1 || table.ColumnDefinitions[1].Name != "Desired" || table.Rows[0].Cells[1] != int64(3) && table.Rows[0].Cells[1] != float64(3) {
		t.Errorf("%s", body)
	}
}
