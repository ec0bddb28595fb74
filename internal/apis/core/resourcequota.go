package core

import (
	corev1 "k8s.io/api/core/v1"

	"proa/internal/apis"
)

// ResourceQuotas is the core/v1 resourcequotas resource.
var ResourceQuotas = apis.Resource{
	Version: "v1", Kind: "ResourceQuota", Plural: "resourcequotas", Short: []string{"quota"},
	New: apis.New[corev1.ResourceQuota], NewList: apis.NewList[corev1.ResourceQuotaList],
	NoGeneration: true,
	Subresources: []apis.Subresource{apis.Writable("status", func(q, old *corev1.ResourceQuota) {
		q.Spec = old.Spec
	}, validateQuotaStatusUpdate)},
	Default: apis.On(func(q *corev1.ResourceQuota) {
		roundResources(q.Spec.Hard)
		roundResources(q.Status.Hard)
		roundResources(q.Status.Used)
	}),
	PrepareCreate:  apis.On(func(q *corev1.ResourceQuota) { q.Status = corev1.ResourceQuotaStatus{} }),
	PrepareUpdate:  apis.OnUpdate(func(q, old *corev1.ResourceQuota) { q.Status = old.Status }),
	Validate:       apis.Check(validateQuota),
	ValidateUpdate: apis.CheckUpdate(validateQuotaUpdate),
	Columns:        quotaColumns,
	Row:            apis.Cells(quotaRow),
}
