package core

import corev1 "k8s.io/api/core/v1"

// defaultVolume fills a pod's volume; one without a source is an empty directory.
func defaultVolume(v *corev1.Volume) {
	s := &v.VolumeSource
	if *s == (corev1.VolumeSource{}) {
		s.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	switch {
	case s.Secret != nil:
		defaultMode(&s.Secret.DefaultMode)
	case s.ConfigMap != nil:
		defaultMode(&s.ConfigMap.DefaultMode)
	case s.DownwardAPI != nil:
		defaultMode(&s.DownwardAPI.DefaultMode)
		defaultDownward(s.DownwardAPI.Items)
	case s.Projected != nil:
		defaultMode(&s.Projected.DefaultMode)
		defaultProjections(s.Projected.Sources)
	case s.HostPath != nil:
		defaultHostPath(s.HostPath)
	case s.Ephemeral != nil:
		if t := s.Ephemeral.VolumeClaimTemplate; t != nil {
			DefaultClaimSpec(&t.Spec)
		}
	case s.Image != nil:
		if s.Image.PullPolicy == "" {
			s.Image.PullPolicy = pullPolicy(s.Image.Reference)
		}
	case s.ISCSI != nil:
		setIfEmpty(&s.ISCSI.ISCSIInterface, "default")
	case s.RBD != nil:
		setIfEmpty(&s.RBD.RBDPool, "rbd")
		setIfEmpty(&s.RBD.RadosUser, "admin")
		setIfEmpty(&s.RBD.Keyring, "/etc/ceph/keyring")
	case s.AzureDisk != nil:
		defaultAzureDisk(s.AzureDisk)
	case s.ScaleIO != nil:
		setIfEmpty(&s.ScaleIO.StorageMode, "ThinProvisioned")
		setIfEmpty(&s.ScaleIO.FSType, "xfs")
	}
}

func defaultProjections(sources []corev1.VolumeProjection) {
	for i := range sources {
		if d := sources[i].DownwardAPI; d != nil {
			defaultDownward(d.Items)
		}
		if t := sources[i].ServiceAccountToken; t != nil && t.ExpirationSeconds == nil {
			t.ExpirationSeconds = new(tokenExpirationSeconds)
		}
	}
}

func defaultDownward(items []corev1.DownwardAPIVolumeFile) {
	for i := range items {
		defaultFieldRef(items[i].FieldRef)
	}
}

func defaultMode(mode **int32) {
	if *mode == nil {
		*mode = new(volumeFileMode)
	}
}

// defaultHostPath makes "no check" explicit.
func defaultHostPath(h *corev1.HostPathVolumeSource) {
	if h.Type == nil {
		h.Type = new(corev1.HostPathUnset)
	}
}

func defaultAzureDisk(d *corev1.AzureDiskVolumeSource) {
	if d.CachingMode == nil {
		d.CachingMode = new(corev1.AzureDataDiskCachingReadWrite)
	}
	if d.Kind == nil {
		d.Kind = new(corev1.AzureSharedBlobDisk)
	}
	if d.FSType == nil {
		d.FSType = new("ext4")
	}
	if d.ReadOnly == nil {
		d.ReadOnly = new(false)
	}
}
