package core

import (
	corev1 "k8s.io/api/core/v1"

	"proa/internal/apis"
)

// PersistentVolumeClaims is the core/v1 persistentvolumeclaims resource.
var PersistentVolumeClaims = apis.Resource{
	Version: "v1", Kind: "PersistentVolumeClaim", Plural: "persistentvolumeclaims", Short: []string{"pvc"},
	ChecksNameOnUpdate: true,
	New:                apis.New[corev1.PersistentVolumeClaim], NewList: apis.NewList[corev1.PersistentVolumeClaimList],
	NoGeneration: true,
	Subresources: []apis.Subresource{apis.Writable("status", prepareClaimStatus, validateClaimStatusUpdate)},
	Default: apis.On(func(c *corev1.PersistentVolumeClaim) {
		if c.Status.Phase == "" {
			c.Status.Phase = corev1.ClaimPending
		}
		DefaultClaimSpec(&c.Spec)
		roundResources(c.Status.Capacity)
	}),
	PrepareCreate: apis.On(func(c *corev1.PersistentVolumeClaim) {
		c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
		dropForeignSource(&c.Spec, &corev1.PersistentVolumeClaimSpec{})
		normalizeDataSources(&c.Spec)
	}),
	PrepareUpdate: apis.OnUpdate(func(c, old *corev1.PersistentVolumeClaim) {
		c.Status = old.Status
		dropForeignSource(&c.Spec, &old.Spec)
		normalizeDataSources(&c.Spec)
	}),
	Validate:       apis.Check(validateClaim),
	ValidateUpdate: apis.CheckUpdate(validateClaimUpdate),
	Columns:        claimColumns,
	Row:            apis.Cells(claimRow),
}

func prepareClaimStatus(c, old *corev1.PersistentVolumeClaim) {
	c.Spec = old.Spec
}

// DefaultClaimSpec fills a claim's spec, also in templates of claims.
func DefaultClaimSpec(s *corev1.PersistentVolumeClaimSpec) {
	if s.VolumeMode == nil {
		s.VolumeMode = new(corev1.PersistentVolumeFilesystem)
	}
	roundResources(s.Resources.Limits)
	roundResources(s.Resources.Requests)
}

// dropForeignSource forgets a dataSource that is neither a claim nor a snapshot,
// which were once the only ones: others are said in dataSourceRef.
func dropForeignSource(s, old *corev1.PersistentVolumeClaimSpec) {
	if s.DataSource == nil || s.DataSourceRef != nil || old.DataSource != nil || old.DataSourceRef != nil {
		return
	}
	group := ""
	if g := s.DataSource.APIGroup; g != nil {
		group = *g
	}
	claim := group == "" && s.DataSource.Kind == "PersistentVolumeClaim"
	if !claim && (group != "snapshot.storage.k8s.io" || s.DataSource.Kind != "VolumeSnapshot") {
		s.DataSource = nil
	}
}

// normalizeDataSources makes dataSource and dataSourceRef say the same where
// one can stand for the other.
func normalizeDataSources(s *corev1.PersistentVolumeClaimSpec) {
	switch {
	case s.DataSource != nil && s.DataSourceRef == nil:
		s.DataSourceRef = &corev1.TypedObjectReference{APIGroup: s.DataSource.APIGroup, Kind: s.DataSource.Kind, Name: s.DataSource.Name}
	case s.DataSource == nil && s.DataSourceRef != nil && (s.DataSourceRef.Namespace == nil || *s.DataSourceRef.Namespace == ""):
		s.DataSource = &corev1.TypedLocalObjectReference{APIGroup: s.DataSourceRef.APIGroup, Kind: s.DataSourceRef.Kind, Name: s.DataSourceRef.Name}
	}
}
