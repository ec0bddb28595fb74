package core

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
)

// ComponentStatuses is the core/v1 componentstatuses resource: how the parts of
// the control plane are when asked. It is computed, so it is not among the kinds of
// Resources; deprecated since v1.19, it is what `kubectl get cs` shows.
var ComponentStatuses = apis.Resource{
	Version: "v1", Kind: "ComponentStatus", Plural: "componentstatuses", Short: []string{"cs"}, Scope: apis.Cluster,
	New: apis.New[corev1.ComponentStatus], NewList: apis.NewList[corev1.ComponentStatusList],
	Verbs: []string{"get", "list"}, NoGeneration: true,
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Status", "string", "Status of the component conditions"),
		apis.Column("Message", "string", "Message of the component conditions"),
		apis.Column("Error", "string", "Error of the component conditions"),
	},
	Row: apis.Cells(func(c *corev1.ComponentStatus, _ time.Time) []any {
		for _, condition := range c.Conditions {
			if condition.Type != corev1.ComponentHealthy {
				continue
			}
			status := "Unhealthy"
			if condition.Status == corev1.ConditionTrue {
				status = "Healthy"
			}
			return []any{c.Name, status, condition.Message, condition.Error}
		}
		return []any{c.Name, "Unknown", "", ""}
	}),
}
