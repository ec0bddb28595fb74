package apps

import (
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"proa/internal/apis"
	"proa/internal/apis/core"
)

// ReplicaSets is the apps/v1 replicasets resource.
var ReplicaSets = apis.Resource{
	Group: "apps", Version: "v1", Kind: "ReplicaSet", Plural: "replicasets", Short: []string{"rs"}, Categories: []string{"all"},
	New: apis.New[appsv1.ReplicaSet], NewList: apis.NewList[appsv1.ReplicaSetList],
	Subresources: []apis.Subresource{
		apis.Scalable(
			func(rs *appsv1.ReplicaSet) **int32 { return &rs.Spec.Replicas },
			func(rs *appsv1.ReplicaSet) int32 { return rs.Status.Replicas },
			func(rs *appsv1.ReplicaSet) string { return selectorString(rs.Spec.Selector) },
		),
		apis.Writable("status", func(rs, old *appsv1.ReplicaSet) { rs.Spec = old.Spec }, validateReplicaSetStatusUpdate),
	},
	Default: apis.On(defaultReplicaSet),
	PrepareCreate: apis.On(func(rs *appsv1.ReplicaSet) {
		rs.Status = appsv1.ReplicaSetStatus{}
	}),
	PrepareUpdate: apis.OnUpdate(func(rs, old *appsv1.ReplicaSet) {
		rs.Status = old.Status
	}),
	Validate:       apis.Check(validateReplicaSet),
	ValidateUpdate: apis.CheckUpdate(validateReplicaSetUpdate),
	Warnings:       warnings(func(rs *appsv1.ReplicaSet) *corev1.PodTemplateSpec { return &rs.Spec.Template }, true),
	Fields: apis.Selectable(map[string]func(*appsv1.ReplicaSet) string{
		"status.replicas": func(rs *appsv1.ReplicaSet) string { return strconv.Itoa(int(rs.Status.Replicas)) },
	}),
	Columns: replicaSetColumns,
	Row:     apis.Cells(replicaSetRow),
}

func defaultReplicaSet(rs *appsv1.ReplicaSet) {
	core.DefaultTemplate(&rs.Spec.Template)
	if rs.Spec.Replicas == nil {
		rs.Spec.Replicas = new(int32(1))
	}
}
