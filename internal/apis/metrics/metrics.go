// Package metrics declares the kinds of the metrics.k8s.io group, v1beta1: what
// nodes and pods use now. They are measured, never stored, and served where
// something measures them; so they are not among the built-in kinds.
package metrics

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"proa/internal/apis"
)

var readOnly = []string{"get", "list"}

// NodeMetrics is the metrics.k8s.io/v1beta1 nodes resource.
var NodeMetrics = apis.Resource{
	Group: v1beta1.GroupName, Version: "v1beta1", Kind: "NodeMetrics", Plural: "nodes", Scope: apis.Cluster,
	New: apis.New[v1beta1.NodeMetrics], NewList: apis.NewList[v1beta1.NodeMetricsList],
	Verbs: readOnly, NoGeneration: true,
	Columns: columns,
	Row: apis.Cells(func(m *v1beta1.NodeMetrics, _ time.Time) []any {
		return row(m.Name, m.Usage, m.Window)
	}),
}

// PodMetrics is the metrics.k8s.io/v1beta1 pods resource.
var PodMetrics = apis.Resource{
	Group: v1beta1.GroupName, Version: "v1beta1", Kind: "PodMetrics", Plural: "pods",
	New: apis.New[v1beta1.PodMetrics], NewList: apis.NewList[v1beta1.PodMetricsList],
	Verbs: readOnly, NoGeneration: true,
	Columns: columns,
	Row: apis.Cells(func(m *v1beta1.PodMetrics, _ time.Time) []any {
		return row(m.Name, sum(m.Containers), m.Window)
	}),
}

var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "Name of the resource"},
	{Name: "cpu", Type: "string", Format: "quantity"},
	{Name: "memory", Type: "string", Format: "quantity"},
	{Name: "Window", Type: "string", Format: "duration"},
}

func row(name string, usage corev1.ResourceList, window metav1.Duration) []any {
	return []any{name, usage.Cpu().String(), usage.Memory().String(), window.Duration.String()}
}

func sum(containers []v1beta1.ContainerMetrics) corev1.ResourceList {
	total := corev1.ResourceList{}
	for _, c := range containers {
		for name, used := range c.Usage {
			q := total[name]
			q.Add(used)
			total[name] = q
		}
	}
	return total
}
