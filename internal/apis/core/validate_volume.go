package core

import (
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

const (
	fileModeMessage  = "must be a number between 0 and 0777 (octal), both inclusive"
	oneVolumeType    = "may not specify more than 1 volume type"
	maxTokenSeconds  = 1 << 32
	minTokenSeconds  = 10 * 60
	minCertSeconds   = 60 * 60
	maxCertSeconds   = 91 * 24 * 60 * 60
	templateMetaOnly = "cannot be set for an ephemeral volume"
)

var hostPathTypes = []corev1.HostPathType{
	corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory, corev1.HostPathFileOrCreate,
	corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev,
}

// validateVolumes also returns the valid volumes by name, for mounts to find.
func validateVolumes(volumes []corev1.Volume, podName string, isPod bool, at *field.Path) (map[string]corev1.VolumeSource, field.ErrorList) {
	var errs field.ErrorList
	valid := map[string]corev1.VolumeSource{}
	for i := range volumes {
		v, at := &volumes[i], at.Index(i)
		bad := validateVolumeSource(&v.VolumeSource, v.Name, podName, isPod, at)
		if v.Name == "" {
			bad = append(bad, field.Required(at.Child("name"), ""))
		} else {
			bad = append(bad, validate.Label(at.Child("name"), v.Name)...)
		}
		if _, taken := valid[v.Name]; taken {
			bad = append(bad, field.Duplicate(at.Child("name"), v.Name))
		}
		if len(bad) == 0 {
			valid[v.Name] = v.VolumeSource
		}
		errs = append(errs, bad...)
	}
	return valid, errs
}

// sources checks that one of a union of sources is set, in the order they are offered.
type sources struct {
	at    *field.Path
	found int
	errs  field.ErrorList
}

func (s *sources) offer(set bool, name string, check func(*field.Path) field.ErrorList) {
	switch {
	case !set:
	case s.found > 0:
		s.errs = append(s.errs, field.Forbidden(s.at.Child(name), oneVolumeType))
	default:
		s.found++
		s.errs = append(s.errs, check(s.at.Child(name))...)
	}
}

func validateVolumeSource(s *corev1.VolumeSource, name, podName string, isPod bool, at *field.Path) field.ErrorList {
	u := sources{at: at}
	u.offer(s.EmptyDir != nil, "emptyDir", func(at *field.Path) field.ErrorList {
		if limit := s.EmptyDir.SizeLimit; limit != nil && limit.Sign() < 0 {
			return field.ErrorList{field.Forbidden(at.Child("sizeLimit"), "SizeLimit field must be a valid resource quantity")}
		}
		return nil
	})
	u.offer(s.HostPath != nil, "hostPath", func(at *field.Path) field.ErrorList { return validateHostPath(s.HostPath, at) })
	u.offer(s.GitRepo != nil, "gitRepo", func(at *field.Path) field.ErrorList {
		return append(required(at.Child("repository"), s.GitRepo.Repository), validateDescendingPath(s.GitRepo.Directory, at.Child("directory"))...)
	})
	u.offer(s.Secret != nil, "secret", func(at *field.Path) field.ErrorList {
		errs := append(required(at.Child("secretName"), s.Secret.SecretName), validateFileMode(s.Secret.DefaultMode, at.Child("defaultMode"))...)
		return append(errs, validateKeys(s.Secret.Items, at.Child("items"))...)
	})
	u.offer(s.ConfigMap != nil, "configMap", func(at *field.Path) field.ErrorList {
		errs := append(required(at.Child("name"), s.ConfigMap.Name), validateFileMode(s.ConfigMap.DefaultMode, at.Child("defaultMode"))...)
		return append(errs, validateKeys(s.ConfigMap.Items, at.Child("items"))...)
	})
	u.offer(s.DownwardAPI != nil, "downwardAPI", func(at *field.Path) field.ErrorList {
		errs := validateFileMode(s.DownwardAPI.DefaultMode, at.Child("defaultMode"))
		for _, item := range s.DownwardAPI.Items {
			errs = append(errs, validateDownwardFile(&item, at)...)
		}
		return errs
	})
	u.offer(s.PersistentVolumeClaim != nil, "persistentVolumeClaim", func(at *field.Path) field.ErrorList {
		return required(at.Child("claimName"), s.PersistentVolumeClaim.ClaimName)
	})
	u.offer(s.Projected != nil, "projected", func(at *field.Path) field.ErrorList { return validateProjected(s.Projected, at) })
	u.offer(s.CSI != nil, "csi", func(at *field.Path) field.ErrorList {
		errs := validate.CSIDriverName(at.Child("driver"), s.CSI.Driver)
		if ref := s.CSI.NodePublishSecretRef; ref != nil {
			if ref.Name == "" {
				return append(errs, field.Required(at.Child("nodePublishSecretRef", "name"), ""))
			}
			errs = append(errs, validate.Subdomain(at.Child("name"), ref.Name)...)
		}
		return errs
	})
	u.offer(s.Ephemeral != nil, "ephemeral", func(at *field.Path) field.ErrorList {
		return validateEphemeralVolume(s.Ephemeral, name, podName, at)
	})
	u.offer(s.Image != nil, "image", func(at *field.Path) field.ErrorList {
		var errs field.ErrorList
		if isPod {
			errs = required(at.Child("reference"), s.Image.Reference)
		}
		return append(errs, validate.RequiredOneOf(at.Child("pullPolicy"), s.Image.PullPolicy, pullPolicies...)...)
	})
	offerNetworkSources(&u, s, name)
	if u.found == 0 {
		u.errs = append(u.errs, field.Required(at, "must specify a volume type"))
	}
	return u.errs
}

// offerNetworkSources: the sources of a pod that name a volume of a storage system.
func offerNetworkSources(u *sources, s *corev1.VolumeSource, volume string) {
	u.offer(s.NFS != nil, "nfs", func(at *field.Path) field.ErrorList { return validateNFS(s.NFS, at) })
	u.offer(s.ISCSI != nil, "iscsi", func(at *field.Path) field.ErrorList {
		var errs field.ErrorList
		if s.ISCSI.InitiatorName != nil && len(volume+":"+s.ISCSI.TargetPortal) > maxInitiatorPath {
			errs = append(errs, field.Invalid(u.at.Child("name"), volume, initiatorTooLong))
		}
		i := iscsi{s.ISCSI.TargetPortal, s.ISCSI.IQN, s.ISCSI.InitiatorName, s.ISCSI.Lun, s.ISCSI.DiscoveryCHAPAuth || s.ISCSI.SessionCHAPAuth, s.ISCSI.SecretRef != nil}
		return append(errs, i.validate("must be valid format starting with iqn, eui, or naa", at)...)
	})
	u.offer(s.FC != nil, "fc", func(at *field.Path) field.ErrorList { return validateFC(s.FC, at) })
	u.offer(s.Glusterfs != nil, "glusterfs", func(at *field.Path) field.ErrorList {
		return append(required(at.Child("endpoints"), s.Glusterfs.EndpointsName), required(at.Child("path"), s.Glusterfs.Path)...)
	})
	u.offer(s.RBD != nil, "rbd", func(at *field.Path) field.ErrorList {
		return validateCeph(len(s.RBD.CephMonitors), at, required(at.Child("image"), s.RBD.RBDImage))
	})
	u.offer(s.CephFS != nil, "cephfs", func(at *field.Path) field.ErrorList { return validateCeph(len(s.CephFS.Monitors), at, nil) })
	u.offer(s.Cinder != nil, "cinder", func(at *field.Path) field.ErrorList { return required(at.Child("volumeID"), s.Cinder.VolumeID) })
	u.offer(s.FlexVolume != nil, "flexVolume", func(at *field.Path) field.ErrorList { return required(at.Child("driver"), s.FlexVolume.Driver) })
	u.offer(s.AzureFile != nil, "azureFile", func(at *field.Path) field.ErrorList {
		return append(required(at.Child("secretName"), s.AzureFile.SecretName), required(at.Child("shareName"), s.AzureFile.ShareName)...)
	})
	offerCloudSources(u, &corev1.PersistentVolumeSource{
		GCEPersistentDisk: s.GCEPersistentDisk, AWSElasticBlockStore: s.AWSElasticBlockStore, Flocker: s.Flocker, Quobyte: s.Quobyte,
		VsphereVolume: s.VsphereVolume, AzureDisk: s.AzureDisk, PhotonPersistentDisk: s.PhotonPersistentDisk, PortworxVolume: s.PortworxVolume,
	})
	u.offer(s.StorageOS != nil, "storageos", func(at *field.Path) field.ErrorList {
		var secret *string
		if s.StorageOS.SecretRef != nil {
			secret = &s.StorageOS.SecretRef.Name
		}
		return validateStorageOS(s.StorageOS.VolumeName, s.StorageOS.VolumeNamespace, secret, at)
	})
	u.offer(s.ScaleIO != nil, "scaleIO", func(at *field.Path) field.ErrorList {
		return validateScaleIO(s.ScaleIO.Gateway, s.ScaleIO.System, s.ScaleIO.VolumeName, at)
	})
}

// offerCloudSources: the sources that pods and persistent volumes share.
func offerCloudSources(u *sources, s *corev1.PersistentVolumeSource) {
	u.offer(s.GCEPersistentDisk != nil, "gcePersistentDisk", func(at *field.Path) field.ErrorList {
		at = u.at.Child("persistentDisk") // upstream's name for it
		return append(required(at.Child("pdName"), s.GCEPersistentDisk.PDName), validatePartition(s.GCEPersistentDisk.Partition, at)...)
	})
	u.offer(s.AWSElasticBlockStore != nil, "awsElasticBlockStore", func(at *field.Path) field.ErrorList {
		return append(required(at.Child("volumeID"), s.AWSElasticBlockStore.VolumeID), validatePartition(s.AWSElasticBlockStore.Partition, at)...)
	})
	u.offer(s.Flocker != nil, "flocker", func(at *field.Path) field.ErrorList {
		return validateFlocker(s.Flocker, at)
	})
	u.offer(s.Quobyte != nil, "quobyte", func(at *field.Path) field.ErrorList {
		return validateQuobyte(s.Quobyte, at)
	})
	u.offer(s.VsphereVolume != nil, "vsphereVolume", func(at *field.Path) field.ErrorList {
		return required(at.Child("volumePath"), s.VsphereVolume.VolumePath)
	})
	u.offer(s.AzureDisk != nil, "azureDisk", func(at *field.Path) field.ErrorList {
		return validateAzureDisk(s.AzureDisk, at)
	})
	u.offer(s.PhotonPersistentDisk != nil, "photonPersistentDisk", func(at *field.Path) field.ErrorList {
		return required(at.Child("pdID"), s.PhotonPersistentDisk.PdID)
	})
	u.offer(s.PortworxVolume != nil, "portworxVolume", func(at *field.Path) field.ErrorList {
		return required(at.Child("volumeID"), s.PortworxVolume.VolumeID)
	})
}

func required(at *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	return nil
}

func validatePartition(n int32, at *field.Path) field.ErrorList {
	if n < 0 || n > 255 {
		return field.ErrorList{field.Invalid(at.Child("partition"), n, validation.InclusiveRangeError(1, 255))}
	}
	return nil
}

func validateCeph(monitors int, at *field.Path, errs field.ErrorList) field.ErrorList {
	if monitors == 0 {
		errs = append(field.ErrorList{field.Required(at.Child("monitors"), "")}, errs...)
	}
	return errs
}

func validateScaleIO(gateway, system, volume string, at *field.Path) field.ErrorList {
	errs := append(required(at.Child("gateway"), gateway), required(at.Child("system"), system)...)
	return append(errs, required(at.Child("volumeName"), volume)...)
}

func validateNFS(n *corev1.NFSVolumeSource, at *field.Path) field.ErrorList {
	errs := append(required(at.Child("server"), n.Server), required(at.Child("path"), n.Path)...)
	if !path.IsAbs(n.Path) {
		errs = append(errs, field.Invalid(at.Child("path"), n.Path, "must be an absolute path"))
	}
	return errs
}

func validateFC(fc *corev1.FCVolumeSource, at *field.Path) field.ErrorList {
	switch {
	case len(fc.TargetWWNs) == 0 && len(fc.WWIDs) == 0:
		return field.ErrorList{field.Required(at.Child("targetWWNs"), "must specify either targetWWNs or wwids, but not both")}
	case len(fc.TargetWWNs) > 0 && len(fc.WWIDs) > 0:
		return field.ErrorList{field.Invalid(at.Child("targetWWNs"), fc.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously")}
	case len(fc.TargetWWNs) > 0 && fc.Lun == nil:
		return field.ErrorList{field.Required(at.Child("lun"), "lun is required if targetWWNs is specified")}
	case len(fc.TargetWWNs) > 0:
		return validate.Invalid(at.Child("lun"), *fc.Lun, validation.IsInRange(int(*fc.Lun), 0, 255))
	}
	return nil
}

func validateHostPath(h *corev1.HostPathVolumeSource, at *field.Path) field.ErrorList {
	if h.Path == "" {
		return field.ErrorList{field.Required(at.Child("path"), "")}
	}
	errs := validateNoBacksteps(h.Path, at.Child("path"))
	if h.Type != nil {
		errs = append(errs, validate.OneOf(at.Child("type"), *h.Type, hostPathTypes...)...)
	}
	return errs
}

func validateFileMode(mode *int32, at *field.Path) field.ErrorList {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		return field.ErrorList{field.Invalid(at, *mode, fileModeMessage)}
	}
	return nil
}

func validateKeys(items []corev1.KeyToPath, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, item := range items {
		errs = append(errs, validateKey(item, at.Index(i))...)
	}
	return errs
}

func validateKey(item corev1.KeyToPath, at *field.Path) field.ErrorList {
	errs := append(required(at.Child("key"), item.Key), required(at.Child("path"), item.Path)...)
	errs = append(errs, validateNonReservedPath(item.Path, at.Child("path"))...)
	return append(errs, validateFileMode(item.Mode, at.Child("mode"))...)
}

func validateDownwardFile(f *corev1.DownwardAPIVolumeFile, at *field.Path) field.ErrorList {
	errs := append(required(at.Child("path"), f.Path), validateNonReservedPath(f.Path, at.Child("path"))...)
	switch {
	case f.FieldRef != nil:
		errs = append(errs, validateFieldRef(f.FieldRef, volumeFields, at.Child("fieldRef"))...)
		if f.ResourceFieldRef != nil {
			errs = append(errs, field.Invalid(at, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously"))
		}
	case f.ResourceFieldRef != nil:
		errs = append(errs, validateResourceFieldRef(f.ResourceFieldRef, true, at.Child("resourceFieldRef"))...)
	default:
		errs = append(errs, field.Required(at, "one of fieldRef and resourceFieldRef is required"))
	}
	return append(errs, validateFileMode(f.Mode, at.Child("mode"))...)
}

func validateProjected(p *corev1.ProjectedVolumeSource, at *field.Path) field.ErrorList {
	errs := validateFileMode(p.DefaultMode, at.Child("defaultMode"))
	projected, paths := at, sets.New[string]()
	claim := func(path string, who any) {
		if path == "" {
			return
		}
		if paths.Has(path) {
			errs = append(errs, field.Invalid(at, who, "conflicting duplicate paths"))
		}
		paths.Insert(path)
	}
	for i := range p.Sources {
		s := &p.Sources[i]
		at, found := at.Child("sources").Index(i), 0
		offer := func(set bool, name string, check func(*field.Path) field.ErrorList) {
			if set {
				found++
				bad := check(at.Child(name)) // may add to errs itself
				errs = append(errs, bad...)
			}
		}
		offer(s.Secret != nil, "secret", func(at *field.Path) field.ErrorList {
			for _, item := range s.Secret.Items {
				claim(item.Path, s.Secret.Name)
			}
			return append(required(at.Child("name"), s.Secret.Name), validateKeys(s.Secret.Items, at.Child("items"))...)
		})
		offer(s.ConfigMap != nil, "configMap", func(at *field.Path) field.ErrorList {
			for _, item := range s.ConfigMap.Items {
				claim(item.Path, s.ConfigMap.Name)
			}
			return append(required(at.Child("name"), s.ConfigMap.Name), validateKeys(s.ConfigMap.Items, at.Child("items"))...)
		})
		offer(s.DownwardAPI != nil, "downwardAPI", func(at *field.Path) field.ErrorList {
			var errs field.ErrorList
			for _, item := range s.DownwardAPI.Items {
				errs = append(errs, validateDownwardFile(&item, at)...)
				claim(item.Path, item.Path)
			}
			return errs
		})
		offer(s.ServiceAccountToken != nil, "serviceAccountToken", func(at *field.Path) field.ErrorList {
			claim(s.ServiceAccountToken.Path, s.ServiceAccountToken.Path)
			return validateTokenProjection(s.ServiceAccountToken, at, projected)
		})
		offer(s.ClusterTrustBundle != nil, "clusterTrustBundle", func(at *field.Path) field.ErrorList {
			claim(s.ClusterTrustBundle.Path, s.ClusterTrustBundle.Path)
			return validateTrustBundle(s.ClusterTrustBundle, at)
		})
		offer(s.PodCertificate != nil, "podCertificate", func(at *field.Path) field.ErrorList {
			c := s.PodCertificate
			for _, path := range []string{c.CredentialBundlePath, c.KeyPath, c.CertificateChainPath} {
				claim(path, path)
			}
			return validatePodCertificate(c, at)
		})
		if found > 1 {
			errs = append(errs, field.Forbidden(at, "may not specify more than 1 volume type per source"))
		}
	}
	return errs
}

func validateTokenProjection(t *corev1.ServiceAccountTokenProjection, at, volume *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s := t.ExpirationSeconds; s != nil {
		if *s < minTokenSeconds {
			errs = append(errs, field.Invalid(at.Child("expirationSeconds"), *s, "may not specify a duration less than 10 minutes"))
		}
		if *s > maxTokenSeconds {
			errs = append(errs, field.Invalid(at.Child("expirationSeconds"), *s, "may not specify a duration larger than 2^32 seconds"))
		}
	}
	if t.Path == "" {
		return append(errs, field.Required(volume.Child("path"), ""))
	}
	return append(errs, validateNonReservedPath(t.Path, volume.Child("path"))...)
}

func validateTrustBundle(b *corev1.ClusterTrustBundleProjection, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case b.Name != nil && b.SignerName != nil:
		errs = append(errs, field.Invalid(at, b, "only one of name and signerName may be used"))
	case b.Name != nil:
		if *b.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), "must be a valid object name"))
		}
		errs = append(errs, validateBundleName(at.Child("name"), *b.Name)...)
		if b.LabelSelector != nil {
			errs = append(errs, field.Invalid(at.Child("labelSelector"), b.LabelSelector, "labelSelector must be unset if name is specified"))
		}
	case b.SignerName != nil:
		if *b.SignerName == "" {
			errs = append(errs, field.Required(at.Child("signerName"), "must be a valid signer name"))
		}
		errs = append(errs, validate.SignerName(at.Child("signerName"), *b.SignerName)...)
		errs = append(errs, validate.Selector(at.Child("labelSelector"), b.LabelSelector)...)
	default:
		errs = append(errs, field.Required(at, "either name or signerName must be specified"))
	}
	errs = append(errs, required(at.Child("path"), b.Path)...)
	return append(errs, validateNonReservedPath(b.Path, at.Child("path"))...)
}

func validatePodCertificate(c *corev1.PodCertificateProjection, at *field.Path) field.ErrorList {
	errs := validate.SignerName(at.Child("signerName"), c.SignerName)
	errs = append(errs, validate.Listed(at.Child("keyType"), c.KeyType, "RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519")...)
	if s := c.MaxExpirationSeconds; s != nil && *s < minCertSeconds {
		errs = append(errs, field.Invalid(at.Child("maxExpirationSeconds"), *s, fmt.Sprintf("if provided, maxExpirationSeconds must be >= %d", minCertSeconds)))
	} else if s != nil && *s > maxCertSeconds {
		errs = append(errs, field.Invalid(at.Child("maxExpirationSeconds"), *s, fmt.Sprintf("if provided, maxExpirationSeconds must be <= %d", maxCertSeconds)))
	}
	if c.CredentialBundlePath == "" && c.KeyPath == "" && c.CertificateChainPath == "" {
		errs = append(errs, field.Required(at, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath"))
	}
	for name, path := range validate.Sorted(map[string]string{"credentialBundlePath": c.CredentialBundlePath, "keyPath": c.KeyPath, "certificateChainPath": c.CertificateChainPath}) {
		errs = append(errs, validateNonReservedPath(path, at.Child(name))...)
	}
	return errs
}

func validateEphemeralVolume(e *corev1.EphemeralVolumeSource, name, podName string, at *field.Path) field.ErrorList {
	t := e.VolumeClaimTemplate
	if t == nil {
		return field.ErrorList{field.Required(at.Child("volumeClaimTemplate"), "")}
	}
	at = at.Child("volumeClaimTemplate")
	meta := at.Child("metadata")
	errs := validate.Labels(meta.Child("labels"), t.Labels)
	errs = append(errs, apivalidation.ValidateAnnotations(t.Annotations, meta.Child("annotations"))...)
	rest := t.ObjectMeta
	rest.Labels, rest.Annotations = nil, nil
	if !isEmptyMeta(rest) {
		errs = append(errs, field.Forbidden(meta, templateMetaOnly))
	}
	errs = append(errs, validateClaimSpec(&t.Spec, at.Child("spec"))...)
	if podName != "" {
		claim := podName + "-" + name
		for _, m := range apivalidation.NameIsDNSSubdomain(claim, false) {
			errs = append(errs, field.Invalid(at.Child("name"), name, "PVC name \""+claim+"\": "+m))
		}
	}
	return errs
}

func isEmptyMeta(m metav1.ObjectMeta) bool {
	return m.Name == "" && m.GenerateName == "" && m.Namespace == "" && m.UID == "" && len(m.Finalizers) == 0 && len(m.OwnerReferences) == 0
}
