package core

import (
	"net"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

const (
	maxInitiatorPath = 64
	initiatorTooLong = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified."
	maxTenant        = 64
	hostPortPairs    = "must be a host:port pair or multiple pairs separated by commas"
)

// Names of iSCSI targets and initiators, by their first three letters (RFC 3720).
var iscsiNames = map[string]*regexp.Regexp{
	"iqn": regexp.MustCompile(`iqn\.\d{4}-\d{2}\.[[:alnum:]-.]+:[^,;*&$|\s]+$`),
	"eui": regexp.MustCompile(`^eui.[[:alnum:]]{16}$`),
	"naa": regexp.MustCompile(`^naa.[[:alnum:]]{32}$`),
}

// iscsi is what the volumes of pods and persistent ones have in common.
type iscsi struct {
	portal, iqn string
	initiator   *string
	lun         int32
	chap        bool // wants a secret
	secret      bool // has one
}

// validate says of a name of another kind what the volume's kind says of it.
func (i iscsi) validate(unknown string, at *field.Path) field.ErrorList {
	errs := append(required(at.Child("targetPortal"), i.portal), required(at.Child("iqn"), i.iqn)...)
	if i.iqn != "" {
		errs = append(errs, validateISCSIName(i.iqn, unknown, at.Child("iqn"))...)
	}
	if i.lun < 0 || i.lun > 255 {
		errs = append(errs, field.Invalid(at.Child("lun"), i.lun, validation.InclusiveRangeError(0, 255)))
	}
	if i.chap && !i.secret {
		errs = append(errs, field.Required(at.Child("secretRef"), ""))
	}
	if i.initiator != nil {
		errs = append(errs, validateISCSIName(*i.initiator, unknown, at.Child("initiatorname"))...)
	}
	return errs
}

func validateISCSIName(name, unknown string, at *field.Path) field.ErrorList {
	form, known := iscsiNames[name[:min(3, len(name))]]
	switch {
	case !known:
		return field.ErrorList{field.Invalid(at, name, unknown)}
	case !form.MatchString(name):
		return field.ErrorList{field.Invalid(at, name, "must be valid format")}
	}
	return nil
}

func validateFlocker(f *corev1.FlockerVolumeSource, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case f.DatasetName == "" && f.DatasetUUID == "":
		errs = append(errs, field.Required(at, "one of datasetName and datasetUUID is required"))
	case f.DatasetName != "" && f.DatasetUUID != "":
		errs = append(errs, field.Invalid(at, "resource", "datasetName and datasetUUID can not be specified simultaneously"))
	}
	if strings.Contains(f.DatasetName, "/") {
		errs = append(errs, field.Invalid(at.Child("datasetName"), f.DatasetName, "must not contain '/'"))
	}
	return errs
}

func validateQuobyte(q *corev1.QuobyteVolumeSource, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	registry := at.Child("registry")
	switch {
	case q.Registry == "":
		errs = append(errs, field.Required(registry, hostPortPairs))
	case len(q.Tenant) > maxTenant:
		errs = append(errs, field.Required(at.Child("tenant"), "must be a UUID and may not exceed a length of 64 characters"))
	default:
		for _, pair := range strings.Split(q.Registry, ",") {
			if _, _, err := net.SplitHostPort(pair); err != nil {
				errs = append(errs, field.Invalid(registry, q.Registry, hostPortPairs))
			}
		}
	}
	return append(errs, required(at.Child("volume"), q.Volume)...)
}

func validateAzureDisk(d *corev1.AzureDiskVolumeSource, at *field.Path) field.ErrorList {
	errs := append(required(at.Child("diskName"), d.DiskName), required(at.Child("diskURI"), d.DataDiskURI)...)
	if d.CachingMode != nil {
		errs = append(errs, validate.OneOf(at.Child("cachingMode"), *d.CachingMode,
			corev1.AzureDataDiskCachingNone, corev1.AzureDataDiskCachingReadOnly, corev1.AzureDataDiskCachingReadWrite)...)
	}
	if d.Kind == nil {
		return errs
	}
	errs = append(errs, validate.OneOf(at.Child("kind"), *d.Kind, corev1.AzureDedicatedBlobDisk, corev1.AzureManagedDisk, corev1.AzureSharedBlobDisk)...)
	prefix, form := "https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"
	if *d.Kind == corev1.AzureManagedDisk {
		prefix, form = "/subscriptions/", "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"
	}
	if !strings.HasPrefix(d.DataDiskURI, prefix) {
		errs = append(errs, field.NotSupported(at.Child("diskURI"), d.DataDiskURI, []string{form}))
	}
	return errs
}

// validateStorageOS takes the name of the secret where one is referred to.
func validateStorageOS(volume, namespace string, secret *string, at *field.Path) field.ErrorList {
	errs := required(at.Child("volumeName"), volume)
	if volume != "" {
		errs = validate.Label(at.Child("volumeName"), volume)
	}
	if namespace != "" {
		errs = append(errs, validate.Label(at.Child("volumeNamespace"), namespace)...)
	}
	if secret != nil {
		errs = append(errs, required(at.Child("secretRef", "name"), *secret)...)
	}
	return errs
}

// validateBundleName: the bundle of a signer is named for it.
func validateBundleName(at *field.Path, name string) field.ErrorList {
	rest := name
	if parts := strings.Split(name, ":"); len(parts) == 3 {
		rest = parts[2]
	} else if len(parts) > 1 {
		return field.ErrorList{field.Invalid(at, name, `not a valid clustertrustbundlename: ClusterTrustBundle without signer name must not have ":" in its name`)}
	}
	var errs field.ErrorList
	for _, why := range apivalidation.NameIsDNSSubdomain(rest, false) {
		errs = append(errs, field.Invalid(at, name, "not a valid clustertrustbundlename: "+why))
	}
	return errs
}

// overlappingPaths returns the pairs of paths of which one is, or is below, the
// other, sorted.
func overlappingPaths(paths []string) []string {
	seen, pairs := sets.New[string](), sets.New[string]()
	for _, p := range paths {
		p = strings.TrimRight(p, "/")
		for _, q := range sets.List(seen) {
			if p == q || strings.HasPrefix(p, q+"/") || strings.HasPrefix(q, p+"/") {
				pairs.Insert(strings.Join([]string{quoted(max(p, q)), quoted(min(p, q))}, " with "))
			}
		}
		seen.Insert(p)
	}
	return sets.List(pairs)
}

func quoted(s string) string { return `"` + s + `"` }
