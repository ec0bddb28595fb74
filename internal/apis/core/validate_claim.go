package core

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

var (
	accessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOncePod}
	volumeModes = []corev1.PersistentVolumeMode{corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem}

	resizeStatuses = []corev1.ClaimResourceStatus{
		corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimControllerResizeInfeasible,
		corev1.PersistentVolumeClaimNodeResizeInProgress, corev1.PersistentVolumeClaimNodeResizeInfeasible, corev1.PersistentVolumeClaimNodeResizePending,
	}
)

func validateClaim(c *corev1.PersistentVolumeClaim) field.ErrorList {
	return validateClaimSpec(&c.Spec, field.NewPath("spec"))
}

// ValidateClaimTemplate checks the claims that a StatefulSet makes.
func ValidateClaimTemplate(c *corev1.PersistentVolumeClaim, path *field.Path) field.ErrorList {
	return validateClaimSpec(&c.Spec, path.Child("spec"))
}

func validateAccessModes(modes []corev1.PersistentVolumeAccessMode, missing string, path *field.Path) field.ErrorList {
	if len(modes) == 0 {
		return field.ErrorList{field.Required(path, missing)}
	}
	var errs field.ErrorList
	for _, m := range modes {
		errs = append(errs, validate.OneOf(path, m, accessModes...)...)
	}
	if slices.Contains(modes, corev1.ReadWriteOncePod) && slices.ContainsFunc(modes, func(m corev1.PersistentVolumeAccessMode) bool { return m != corev1.ReadWriteOncePod }) {
		errs = append(errs, field.Forbidden(path, "may not use ReadWriteOncePod with other access modes"))
	}
	return errs
}

func validateClaimSpec(s *corev1.PersistentVolumeClaimSpec, path *field.Path) field.ErrorList {
	errs := validateAccessModes(s.AccessModes, "at least 1 access mode is required", path.Child("accessModes"))
	errs = append(errs, validate.Selector(path.Child("selector"), s.Selector)...)
	storage := path.Child("resources").Key(string(corev1.ResourceStorage))
	if q, ok := s.Resources.Requests[corev1.ResourceStorage]; !ok {
		errs = append(errs, field.Required(storage, ""))
	} else {
		errs = append(errs, validate.PositiveQuantity(storage, q)...)
	}
	if s.StorageClassName != nil && *s.StorageClassName != "" {
		errs = append(errs, validate.Subdomain(path.Child("storageClassName"), *s.StorageClassName)...)
	}
	if s.VolumeMode != nil {
		errs = append(errs, validate.OneOf(path.Child("volumeMode"), *s.VolumeMode, volumeModes...)...)
	}
	errs = append(errs, validateDataSources(s, path)...)
	if v := s.VolumeAttributesClassName; v != nil && *v != "" {
		errs = append(errs, validate.Subdomain(path.Child("volumeAttributesClassName"), *v)...)
	}
	return errs
}

func validateDataSources(s *corev1.PersistentVolumeClaimSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	check := func(at *field.Path, group *string, kind, name string) {
		errs = append(errs, required(at.Child("name"), name)...)
		errs = append(errs, required(at.Child("kind"), kind)...)
		if (group == nil || *group == "") && kind != "PersistentVolumeClaim" {
			errs = append(errs, field.Invalid(at, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup"))
		}
		if group != nil && *group != "" {
			errs = append(errs, validate.Subdomain(at.Child("apiGroup"), *group)...)
		}
	}
	if d := s.DataSource; d != nil {
		check(path.Child("dataSource"), d.APIGroup, d.Kind, d.Name)
	}
	if d := s.DataSourceRef; d != nil {
		check(path.Child("dataSourceRef"), d.APIGroup, d.Kind, d.Name)
		if o := s.DataSource; o != nil && d.Namespace == nil && (o.Kind != d.Kind || o.Name != d.Name || !equalPtr(o.APIGroup, d.APIGroup)) {
			errs = append(errs, field.Invalid(path, s.DataSource, "must match dataSourceRef"))
		}
	}
	return errs
}

func hasSourceGroup(s *corev1.PersistentVolumeClaimSpec) bool {
	return s.DataSource != nil && s.DataSource.APIGroup != nil || s.DataSourceRef != nil && s.DataSourceRef.APIGroup != nil
}

// validateClaimUpdate: a claim stays what it was; a bound one may ask for more.
func validateClaimUpdate(c, old *corev1.PersistentVolumeClaim) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateClaim(c)
	if hasSourceGroup(&old.Spec) { // that was not looked at once
		errs = slices.DeleteFunc(errs, func(e *field.Error) bool {
			return e.Field == "spec.dataSource.apiGroup" || e.Field == "spec.dataSourceRef.apiGroup"
		})
	}
	is, was := c.Spec.DeepCopy(), old.Spec.DeepCopy()
	if was.VolumeName == "" && is.VolumeName != "" {
		was.VolumeName = is.VolumeName
	}
	if old.Status.Phase == corev1.ClaimBound && is.Resources.Requests != nil {
		if q, ok := was.Resources.Requests[corev1.ResourceStorage]; ok {
			is.Resources.Requests[corev1.ResourceStorage] = q
		} else {
			delete(is.Resources.Requests, corev1.ResourceStorage)
		}
	}
	if old.Status.Phase == corev1.ClaimBound {
		is.VolumeAttributesClassName = was.VolumeAttributesClassName
	}
	if is.StorageClassName != nil && was.StorageClassName == nil && old.Spec.VolumeName == "" {
		was.StorageClassName = is.StorageClassName // the default class, found late (KEP-3333)
	}
	if !apiequality.Semantic.DeepEqual(is, was) {
		errs = append(errs, field.Forbidden(path, "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n"+diff.Diff(validate.Hub(was), validate.Hub(is))))
	}
	asked, had := c.Spec.Resources.Requests[corev1.ResourceStorage], old.Spec.Resources.Requests[corev1.ResourceStorage]
	if asked.Cmp(had) < 0 {
		// A failed expansion may be asked for again, with less, above what there is.
		have := old.Status.Capacity[corev1.ResourceStorage]
		if asked.Cmp(have) <= 0 {
			errs = append(errs, field.Forbidden(path.Child("resources", "requests", "storage"), "field can not be less than status.capacity"))
		}
	}
	errs = append(errs, validate.Immutable(field.NewPath("volumeMode"), c.Spec.VolumeMode, old.Spec.VolumeMode)...) // upstream's path
	if old.Status.CurrentVolumeAttributesClassName == nil || apiequality.Semantic.DeepEqual(c.Spec.VolumeAttributesClassName, old.Spec.VolumeAttributesClassName) {
		return errs
	}
	switch v := c.Spec.VolumeAttributesClassName; {
	case v == nil:
		errs = append(errs, field.Forbidden(path.Child("volumeAttributesClassName"), "update to nil is forbidden when status.currentVolumeAttributesClassName is not nil"))
	case *v == "":
		errs = append(errs, field.Forbidden(path.Child("volumeAttributesClassName"), "update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil"))
	}
	return errs
}

func validateClaimStatusUpdate(c, _ *corev1.PersistentVolumeClaim) field.ErrorList {
	var errs field.ErrorList
	status := field.NewPath("status")
	for _, name := range validate.SortedKeys(c.Status.Capacity) {
		errs = append(errs, validateSize(c.Status.Capacity[name], status.Child("capacity").Key(string(name)))...)
	}
	for name, s := range validate.Sorted(c.Status.AllocatedResourceStatuses) {
		at := status.Child("allocatedResourceStatuses")
		errs = append(errs, validateClaimResource(name, at)...)
		if !slices.Contains(resizeStatuses, s) {
			errs = append(errs, field.NotSupported(at, name, resizeStatuses))
		}
	}
	for _, name := range validate.SortedKeys(c.Status.AllocatedResources) {
		if wrong := validateClaimResource(name, status.Child("allocatedResources")); len(wrong) > 0 {
			errs = append(errs, wrong...)
			continue
		}
		errs = append(errs, validateSize(c.Status.AllocatedResources[name], status.Child("allocatedResources").Key(string(name)))...)
	}
	return errs
}

func validateSize(q resource.Quantity, path *field.Path) field.ErrorList {
	if n := q.Value(); n < 0 {
		return field.ErrorList{field.Invalid(path, n, "must be a valid resource quantity")}
	}
	return nil
}

// validateClaimResource wants storage, or a resource of somebody's own.
func validateClaimResource(name corev1.ResourceName, path *field.Path) field.ErrorList {
	if errs := validate.QualifiedName(path, string(name)); len(errs) > 0 {
		return errs
	}
	native := !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
	if native && name != corev1.ResourceStorage {
		return field.ErrorList{field.NotSupported(path, name, []corev1.ResourceName{corev1.ResourceStorage})}
	}
	return nil
}

func validatePersistentVolume(pv *corev1.PersistentVolume) field.ErrorList {
	errs := validateVolumeSpec(&pv.Spec, false, field.NewPath("spec"))
	if i := pv.Spec.ISCSI; i != nil && i.InitiatorName != nil && len(pv.Name+":"+i.TargetPortal) > maxInitiatorPath {
		errs = append(errs, field.Invalid(field.NewPath("spec", "iscsi", "targetportal"), i.TargetPortal, initiatorTooLong))
	}
	return errs
}

// ValidateInlineVolumeSpec checks the volume that an attachment carries itself:
// one of CSI.
func ValidateInlineVolumeSpec(s *corev1.PersistentVolumeSpec, path *field.Path) field.ErrorList {
	return validateVolumeSpec(s, true, path)
}

func validateVolumeSpec(s *corev1.PersistentVolumeSpec, inline bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	forbid := func(set bool, child, why string) {
		if set {
			errs = append(errs, field.Forbidden(path.Child(child), why+" in the context of inline volumes"))
		}
	}
	const notSpecified = "may not be specified"
	if inline {
		forbid(s.ClaimRef != nil, "claimRef", notSpecified)
		forbid(len(s.Capacity) > 0, "capacity", notSpecified)
		if s.CSI == nil {
			errs = append(errs, field.Required(path.Child("csi"), "has to be specified in the context of inline volumes"))
		}
	}
	errs = append(errs, validateAccessModes(s.AccessModes, "", path.Child("accessModes"))...)
	if !inline {
		errs = append(errs, validateVolumeCapacity(s.Capacity, path.Child("capacity"))...)
	}
	if p := s.PersistentVolumeReclaimPolicy; inline {
		forbid(p != "" && p != corev1.PersistentVolumeReclaimRetain, "persistentVolumeReclaimPolicy", "may only be Retain")
	} else if p != "" {
		errs = append(errs, validate.OneOf(path.Child("persistentVolumeReclaimPolicy"), p,
			corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimRetain)...)
	}
	if a := s.NodeAffinity; inline {
		forbid(a != nil, "nodeAffinity", notSpecified)
	} else if a != nil {
		at := path.Child("nodeAffinity")
		if a.Required == nil {
			errs = append(errs, field.Required(at.Child("required"), "must specify required node constraints"))
		} else {
			errs = append(errs, validateNodeSelector(a.Required, at.Child("required"))...)
		}
	}
	errs = append(errs, validateVolumeOrigin(s, path)...)
	if s.HostPath != nil && s.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle && s.HostPath.Path == "/" {
		errs = append(errs, field.Forbidden(path.Child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'"))
	}
	if inline {
		forbid(s.StorageClassName != "", "storageClassName", notSpecified)
		forbid(s.VolumeMode != nil && *s.VolumeMode != corev1.PersistentVolumeFilesystem, "volumeMode", "may not specify volumeMode other than Filesystem")
		return errs // attributes are the volume's own
	}
	if s.StorageClassName != "" {
		errs = append(errs, validate.Subdomain(path.Child("storageClassName"), s.StorageClassName)...)
	}
	if s.VolumeMode != nil {
		errs = append(errs, validate.OneOf(path.Child("volumeMode"), *s.VolumeMode, volumeModes...)...)
	}
	if name := s.VolumeAttributesClassName; name != nil {
		at := path.Child("volumeAttributesClassName")
		if *name == "" {
			errs = append(errs, field.Required(at, "an empty string is disallowed"))
		} else {
			errs = append(errs, validate.Subdomain(at, *name)...)
		}
		if s.CSI == nil {
			errs = append(errs, field.Required(path.Child("csi"), "has to be specified when using volumeAttributesClassName"))
		}
	}
	return errs
}

func validateVolumeCapacity(list corev1.ResourceList, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(list) == 0 {
		errs = append(errs, field.Required(path, ""))
	}
	if _, ok := list[corev1.ResourceStorage]; !ok || len(list) > 1 {
		errs = append(errs, field.NotSupported(path, list, []string{string(corev1.ResourceStorage)}))
	}
	for _, name := range validate.SortedKeys(list) {
		q, at := list[name], path.Key(string(name))
		if q.Sign() < 0 {
			errs = append(errs, field.Invalid(at, q.Value(), "must be a valid resource quantity"))
		}
		errs = append(errs, validate.PositiveQuantity(at, q)...)
	}
	return errs
}

// validateVolumeOrigin wants one source.
func validateVolumeOrigin(s *corev1.PersistentVolumeSpec, path *field.Path) field.ErrorList {
	u := sources{at: path}
	u.offer(s.HostPath != nil, "hostPath", func(at *field.Path) field.ErrorList { return validateHostPath(s.HostPath, at) })
	u.offer(s.Local != nil, "local", func(at *field.Path) field.ErrorList {
		if s.Local.Path == "" {
			return field.ErrorList{field.Required(at.Child("path"), "")}
		}
		errs := validateNoBacksteps(s.Local.Path, at.Child("path"))
		if s.NodeAffinity == nil || s.NodeAffinity.Required == nil {
			errs = append(errs, field.Required(path.Child("nodeAffinity"), "Local volume requires node affinity"))
		}
		return errs
	})
	u.offer(s.CSI != nil, "csi", func(at *field.Path) field.ErrorList { return validatePersistentCSI(s.CSI, at) })
	u.offer(s.NFS != nil, "nfs", func(at *field.Path) field.ErrorList { return validateNFS(s.NFS, at) })
	u.offer(s.ISCSI != nil, "iscsi", func(at *field.Path) field.ErrorList {
		v := s.ISCSI
		i := iscsi{v.TargetPortal, v.IQN, v.InitiatorName, v.Lun, v.DiscoveryCHAPAuth || v.SessionCHAPAuth, v.SecretRef != nil}
		errs := i.validate("must be valid format", at)
		if v.SecretRef != nil {
			errs = append(errs, required(at.Child("secretRef", "name"), v.SecretRef.Name)...)
		}
		return errs
	})
	u.offer(s.FC != nil, "fc", func(at *field.Path) field.ErrorList { return validateFC(s.FC, at) })
	u.offer(s.Glusterfs != nil, "glusterfs", func(at *field.Path) field.ErrorList {
		errs := append(required(at.Child("endpoints"), s.Glusterfs.EndpointsName), required(at.Child("path"), s.Glusterfs.Path)...)
		if namespace, at := s.Glusterfs.EndpointsNamespace, at.Child("endpointsNamespace"); namespace != nil {
			if *namespace == "" {
				return append(errs, field.Invalid(at, *namespace, "if the endpointnamespace is set, it must be a valid namespace name"))
			}
			errs = append(errs, validate.Label(at, *namespace)...)
		}
		return errs
	})
	u.offer(s.RBD != nil, "rbd", func(at *field.Path) field.ErrorList {
		return validateCeph(len(s.RBD.CephMonitors), at, required(at.Child("image"), s.RBD.RBDImage))
	})
	u.offer(s.CephFS != nil, "cephfs", func(at *field.Path) field.ErrorList { return validateCeph(len(s.CephFS.Monitors), at, nil) })
	u.offer(s.Cinder != nil, "cinder", func(at *field.Path) field.ErrorList { return required(at.Child("volumeID"), s.Cinder.VolumeID) })
	u.offer(s.FlexVolume != nil, "flexVolume", func(at *field.Path) field.ErrorList { return required(at.Child("driver"), s.FlexVolume.Driver) })
	u.offer(s.AzureFile != nil, "azureFile", func(at *field.Path) field.ErrorList {
		errs := append(required(at.Child("secretName"), s.AzureFile.SecretName), required(at.Child("shareName"), s.AzureFile.ShareName)...)
		if s.AzureFile.SecretNamespace != nil {
			errs = append(errs, required(at.Child("secretNamespace"), *s.AzureFile.SecretNamespace)...)
		}
		return errs
	})
	offerCloudSources(&u, &s.PersistentVolumeSource)
	u.offer(s.StorageOS != nil, "storageos", func(at *field.Path) field.ErrorList {
		v := s.StorageOS
		if v.SecretRef == nil {
			return validateStorageOS(v.VolumeName, v.VolumeNamespace, nil, at)
		}
		errs := validateStorageOS(v.VolumeName, v.VolumeNamespace, &v.SecretRef.Name, at)
		return append(errs, required(at.Child("secretRef", "namespace"), v.SecretRef.Namespace)...)
	})
	u.offer(s.ScaleIO != nil, "scaleIO", func(at *field.Path) field.ErrorList {
		return validateScaleIO(s.ScaleIO.Gateway, s.ScaleIO.System, s.ScaleIO.VolumeName, at)
	})
	if u.found == 0 {
		u.errs = append(u.errs, field.Required(path, "must specify a volume type"))
	}
	return u.errs
}

func validatePersistentCSI(c *corev1.CSIPersistentVolumeSource, at *field.Path) field.ErrorList {
	errs := validate.CSIDriverName(at.Child("driver"), c.Driver)
	errs = append(errs, required(at.Child("volumeHandle"), c.VolumeHandle)...)
	for child, ref := range validate.Sorted(map[string]*corev1.SecretReference{
		"controllerPublishSecretRef": c.ControllerPublishSecretRef,
		"nodePublishSecretRef":       c.NodePublishSecretRef, "controllerExpandSecretRef": c.ControllerExpandSecretRef, "nodeExpandSecretRef": c.NodeExpandSecretRef,
	}) {
		if ref == nil {
			continue
		}
		if ref.Name == "" {
			errs = append(errs, field.Required(at.Child(child, "name"), ""))
		} else {
			errs = append(errs, validate.Subdomain(at.Child(child, "name"), ref.Name)...)
		}
		if ref.Namespace == "" {
			errs = append(errs, field.Required(at.Child(child, "namespace"), ""))
		} else {
			errs = append(errs, validate.Invalid(at.Child(child, "namespace"), ref.Namespace, validation.IsDNS1123Label(ref.Namespace))...)
		}
	}
	return errs
}

func validatePersistentVolumeUpdate(pv, old *corev1.PersistentVolume) field.ErrorList {
	path := field.NewPath("spec")
	errs := validatePersistentVolume(pv)
	is, was := pv.Spec.PersistentVolumeSource.DeepCopy(), old.Spec.PersistentVolumeSource.DeepCopy()
	if is.CSI != nil && was.CSI != nil {
		if was.CSI.ControllerExpandSecretRef == nil {
			is.CSI.ControllerExpandSecretRef = nil
		}
		if was.CSI.NodeExpandSecretRef == nil {
			is.CSI.NodeExpandSecretRef = nil
		}
	}
	if !apiequality.Semantic.DeepEqual(is, was) {
		errs = append(errs, field.Forbidden(path.Child("persistentvolumesource"), fmt.Sprintf("spec.persistentvolumesource is immutable after creation\n%v", diff.Diff(validate.Hub(was), validate.Hub(is)))))
	}
	errs = append(errs, validate.Immutable(field.NewPath("volumeMode"), pv.Spec.VolumeMode, old.Spec.VolumeMode)...)
	if old.Spec.NodeAffinity != nil && !sameAffinity().DeepEqual(pv.Spec.NodeAffinity, old.Spec.NodeAffinity) {
		errs = append(errs, field.Invalid(field.NewPath("nodeAffinity"), pv.Spec.NodeAffinity, "field is immutable, except for updating from beta label to GA"))
	}
	if old.Spec.VolumeAttributesClassName != nil && pv.Spec.VolumeAttributesClassName == nil {
		errs = append(errs, field.Forbidden(path.Child("volumeAttributesClassName"), "update from non-nil value to nil is forbidden"))
	}
	return errs
}

// sameAffinity compares node affinities and allows keys to be replaced: those of
// the beta stage by their successors and, as upstream has it, others by none.
var sameAffinity = sync.OnceValue(func() conversion.Equalities {
	successors := map[string]string{
		corev1.LabelFailureDomainBetaZone:   corev1.LabelTopologyZone,
		corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
		corev1.LabelInstanceType:            corev1.LabelInstanceTypeStable,
		"beta.kubernetes.io/os":             corev1.LabelOSStable,
		"beta.kubernetes.io/arch":           corev1.LabelArchStable,
	}
	equalities := apiequality.Semantic.Copy()
	err := equalities.AddFunc(func(is, was corev1.NodeSelectorRequirement) bool {
		if successors[was.Key] == is.Key {
			was.Key = is.Key
		}
		return apiequality.Semantic.DeepEqual(is, was)
	})
	if err != nil {
		panic(err) // the function's form is wrong
	}
	return equalities
})
