package core

import (
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/labels"

	"proa/internal/apis"
	"proa/internal/apis/validate"
)

// ReplicationControllers is the core/v1 replicationcontrollers resource.
var ReplicationControllers = apis.Resource{
	Version: "v1", Kind: "ReplicationController", Plural: "replicationcontrollers", Short: []string{"rc"}, Categories: []string{"all"},
	New: apis.New[corev1.ReplicationController], NewList: apis.NewList[corev1.ReplicationControllerList],
	Subresources: []apis.Subresource{
		apis.Scalable(
			func(rc *corev1.ReplicationController) **int32 { return &rc.Spec.Replicas },
			func(rc *corev1.ReplicationController) int32 { return rc.Status.Replicas },
			func(rc *corev1.ReplicationController) string {
				return labels.Set(rc.Spec.Selector).AsSelector().String()
			},
		),
		apis.Writable("status", func(rc, old *corev1.ReplicationController) { rc.Spec = old.Spec }, validateReplicationControllerStatusUpdate),
	},
	Default: apis.On(defaultReplicationController),
	PrepareCreate: apis.On(func(rc *corev1.ReplicationController) {
		rc.Status = corev1.ReplicationControllerStatus{}
	}),
	PrepareUpdate: apis.OnUpdate(func(rc, old *corev1.ReplicationController) {
		rc.Status = old.Status
	}),
	ValidateName:   validate.NameAlone(apivalidation.NameIsDNSSubdomain),
	Validate:       apis.Check(validateReplicationController),
	ValidateUpdate: apis.CheckUpdate(validateReplicationControllerUpdate),
	Warnings: apis.Warn(func(rc, old *corev1.ReplicationController) []string {
		if old == nil {
			return WorkloadWarnings(rc, true, "spec.template", rc.Spec.Template, nil)
		}
		// As upstream has it: an update is warned of what it does away with.
		return WorkloadWarnings(rc, false, "spec.template", old.Spec.Template, rc.Spec.Template)
	}),
	Fields: apis.Selectable(map[string]func(*corev1.ReplicationController) string{
		"status.replicas": func(rc *corev1.ReplicationController) string { return strconv.Itoa(int(rc.Status.Replicas)) },
	}),
	Dependents: apis.DependentsOrphaned,
	Columns:    replicationControllerColumns,
	Row:        apis.Cells(replicationControllerRow),
}

func defaultReplicationController(rc *corev1.ReplicationController) {
	if t := rc.Spec.Template; t != nil {
		DefaultTemplate(t)
		if len(rc.Spec.Selector) == 0 {
			rc.Spec.Selector = maps.Clone(t.Labels)
		}
		if len(rc.Labels) == 0 {
			rc.Labels = maps.Clone(t.Labels)
		}
	}
	if rc.Spec.Replicas == nil {
		rc.Spec.Replicas = new(int32(1))
	}
}
