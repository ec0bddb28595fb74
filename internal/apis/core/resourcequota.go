package core

import (
	"fmt"

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
	Warnings:       apis.Warn(quotaWarnings),
	Columns:        quotaColumns,
	Row:            apis.Cells(quotaRow),
}

// quotaWarnings: a new quota that lets pods ask for more than it lets them use.
func quotaWarnings(q, old *corev1.ResourceQuota) []string {
	if old != nil {
		return nil
	}
	var warnings []string
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceStorage, corev1.ResourceEphemeralStorage} {
		request := "requests." + name
		asked, asks := q.Spec.Hard[request]
		if !asks && (name == corev1.ResourceCPU || name == corev1.ResourceMemory) {
			request = name
			asked, asks = q.Spec.Hard[request]
		}
		limit, limits := q.Spec.Hard["limits."+name]
		if asks && limits && asked.Cmp(limit) > 0 {
			warnings = append(warnings, fmt.Sprintf("ResourceQuota %s (%s) should be less than limits.%s (%s)", request, asked.String(), name, limit.String()))
		}
	}
	return warnings
}
