package core

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
)

// PersistentVolumes is the core/v1 persistentvolumes resource.
var PersistentVolumes = apis.Resource{
	Version: "v1", Kind: "PersistentVolume", Plural: "persistentvolumes", Short: []string{"pv"}, Scope: apis.Cluster,
	ChecksNameOnUpdate: true,
	New:                apis.New[corev1.PersistentVolume], NewList: apis.NewList[corev1.PersistentVolumeList],
	NoGeneration: true,
	Subresources: []apis.Subresource{apis.Writable("status", preparePersistentVolumeStatus, nil)},
	Default:      apis.On(defaultPersistentVolume),
	PrepareCreate: apis.On(func(pv *corev1.PersistentVolume) {
		pv.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumePending}
	}),
	PrepareUpdate: apis.OnUpdate(func(pv, old *corev1.PersistentVolume) {
		pv.Status = old.Status
	}),
	Stamp:          apis.Stamped(stampPhase),
	Validate:       apis.Check(validatePersistentVolume),
	ValidateUpdate: apis.CheckUpdate(validatePersistentVolumeUpdate),
	Warnings:       apis.Warn(persistentVolumeWarnings),
	Columns:        persistentVolumeColumns,
	Row:            apis.Cells(persistentVolumeRow),
}

func preparePersistentVolumeStatus(pv, old *corev1.PersistentVolume) {
	pv.Spec = old.Spec
	if pv.Status.Phase == old.Status.Phase && pv.Status.LastPhaseTransitionTime == nil {
		pv.Status.LastPhaseTransitionTime = old.Status.LastPhaseTransitionTime
	}
}

// stampPhase notes when the phase changed, unless the writer did.
func stampPhase(pv, old *corev1.PersistentVolume, now metav1.Time) {
	switch s := &pv.Status; {
	case old == nil:
		s.LastPhaseTransitionTime = &now
	case s.Phase != old.Status.Phase && (s.LastPhaseTransitionTime == nil || s.LastPhaseTransitionTime.Equal(old.Status.LastPhaseTransitionTime)):
		s.LastPhaseTransitionTime = &now
	}
}

func defaultPersistentVolume(pv *corev1.PersistentVolume) {
	s := &pv.Spec
	if pv.Status.Phase == "" {
		pv.Status.Phase = corev1.VolumePending
	}
	if s.PersistentVolumeReclaimPolicy == "" {
		s.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	}
	if s.VolumeMode == nil {
		s.VolumeMode = new(corev1.PersistentVolumeFilesystem)
	}
	roundResources(s.Capacity)
	defaultPersistentVolumeSource(&s.PersistentVolumeSource)
}

func defaultPersistentVolumeSource(s *corev1.PersistentVolumeSource) {
	if s.HostPath != nil {
		defaultHostPath(s.HostPath)
	}
	if r := s.RBD; r != nil {
		setIfEmpty(&r.RBDPool, "rbd")
		setIfEmpty(&r.RadosUser, "admin")
		setIfEmpty(&r.Keyring, "/etc/ceph/keyring")
	}
	if s.ISCSI != nil {
		setIfEmpty(&s.ISCSI.ISCSIInterface, "default")
	}
	if s.AzureDisk != nil {
		defaultAzureDisk(s.AzureDisk)
	}
	if s.ScaleIO != nil {
		setIfEmpty(&s.ScaleIO.StorageMode, "ThinProvisioned")
		setIfEmpty(&s.ScaleIO.FSType, "xfs")
	}
}
