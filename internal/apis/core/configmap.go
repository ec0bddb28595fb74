package core

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
)

// ConfigMaps is the core/v1 configmaps resource.
var ConfigMaps = apis.Resource{
	Version: "v1", Kind: "ConfigMap", Plural: "configmaps", Short: []string{"cm"},
	ChecksNameOnUpdate: true,
	New:                apis.New[corev1.ConfigMap], NewList: apis.NewList[corev1.ConfigMapList],
	NoGeneration:   true,
	Validate:       apis.Check(validateConfigMap),
	ValidateUpdate: apis.CheckUpdate(validateConfigMapUpdate),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Data", "string", corev1.ConfigMap{}.SwaggerDoc()["data"]),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(c *corev1.ConfigMap, now time.Time) []any {
		return []any{c.Name, int64(len(c.Data) + len(c.BinaryData)), apis.AgeOf(c, now)}
	}),
}
