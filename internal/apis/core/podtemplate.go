package core

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
)

// PodTemplates is the core/v1 podtemplates resource.
var PodTemplates = apis.Resource{
	Version: "v1", Kind: "PodTemplate", Plural: "podtemplates",
	New: apis.New[corev1.PodTemplate], NewList: apis.NewList[corev1.PodTemplateList],
	Default: apis.On(func(t *corev1.PodTemplate) { DefaultTemplate(&t.Template) }),
	Validate: apis.Check(func(t *corev1.PodTemplate) field.ErrorList {
		return ValidateTemplate(&t.Template, field.NewPath("template"))
	}),
	Warnings: apis.Warn(func(t, old *corev1.PodTemplate) []string {
		var before *corev1.PodTemplateSpec
		if old != nil {
			before = &old.Template
		}
		return TemplateWarnings(&t.Template, before, field.NewPath("template"))
	}),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Containers", "string", "Names of each container in the template."),
		apis.Column("Images", "string", "Images referenced by each container in the template."),
		apis.Column("Pod Labels", "string", "The labels for the pod template."),
	},
	Row: apis.Cells(func(t *corev1.PodTemplate, _ time.Time) []any {
		names, images := ContainersAndImages(&t.Template)
		return []any{t.Name, names, images, metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: t.Template.Labels})}
	}),
}
