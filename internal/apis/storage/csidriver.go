package storage

import (
	"strings"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/validate"
)

const (
	minTokenSeconds = 10 * 60
	maxTokenSeconds = 1 << 32
)

// CSIDrivers is the storage.k8s.io/v1 csidrivers resource.
var CSIDrivers = apis.Resource{
	Group: "storage.k8s.io", Version: "v1", Kind: "CSIDriver", Plural: "csidrivers", Scope: apis.Cluster,
	New: apis.New[storagev1.CSIDriver], NewList: apis.NewList[storagev1.CSIDriverList],
	GenerationFromZero: true,
	ConditionalUpdate:  true,
	Default:            apis.On(defaultDriver),
	Warnings:           apis.Warn(driverWarnings),
	Validate:           apis.Check(validateDriver),
	ValidateUpdate: apis.CheckUpdate(func(d, old *storagev1.CSIDriver) field.ErrorList {
		path := field.NewPath("spec")
		errs := validateDriver(d)
		errs = append(errs, validate.Immutable(path.Child("attachedRequired"), d.Spec.AttachRequired, old.Spec.AttachRequired)...)
		return append(errs, validate.Immutable(path.Child("volumeLifecycleModes"), d.Spec.VolumeLifecycleModes, old.Spec.VolumeLifecycleModes)...)
	}),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("AttachRequired", "boolean", storagev1.CSIDriverSpec{}.SwaggerDoc()["attachRequired"]),
		apis.Column("PodInfoOnMount", "boolean", storagev1.CSIDriverSpec{}.SwaggerDoc()["podInfoOnMount"]),
		apis.Column("StorageCapacity", "boolean", storagev1.CSIDriverSpec{}.SwaggerDoc()["storageCapacity"]),
		apis.Column("TokenRequests", "string", storagev1.CSIDriverSpec{}.SwaggerDoc()["tokenRequests"]),
		apis.Column("RequiresRepublish", "boolean", storagev1.CSIDriverSpec{}.SwaggerDoc()["requiresRepublish"]),
		apis.Column("Modes", "string", storagev1.CSIDriverSpec{}.SwaggerDoc()["volumeLifecycleModes"]),
		apis.AgeColumn,
	},
	Row: apis.Cells(driverRow),
}

func defaultDriver(d *storagev1.CSIDriver) {
	s := &d.Spec
	for field, value := range map[**bool]bool{
		&s.AttachRequired: true, &s.PodInfoOnMount: false, &s.StorageCapacity: false,
		&s.RequiresRepublish: false, &s.SELinuxMount: false, &s.PreventPodSchedulingIfMissing: false,
	} {
		if *field == nil {
			*field = new(value)
		}
	}
	if s.FSGroupPolicy == nil {
		s.FSGroupPolicy = new(storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	}
	if len(s.VolumeLifecycleModes) == 0 {
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
}

// driverWarnings: tokens are asked for where they may be logged (KEP-5538).
func driverWarnings(d, old *storagev1.CSIDriver) []string {
	requests := d.Spec.TokenRequests
	known := old != nil && apiequality.Semantic.DeepEqual(old.Spec.TokenRequests, requests)
	if known || len(requests) == 0 || d.Spec.ServiceAccountTokenInSecrets != nil {
		return nil
	}
	return []string{"spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes"}
}

func driverRow(d *storagev1.CSIDriver, now time.Time) []any {
	isTrue := func(b *bool, absent bool) bool {
		if b == nil {
			return absent
		}
		return *b
	}
	var modes, audiences []string
	for _, m := range d.Spec.VolumeLifecycleModes {
		modes = append(modes, string(m))
	}
	for _, t := range d.Spec.TokenRequests {
		audiences = append(audiences, t.Audience)
	}
	tokens := "<unset>"
	if len(audiences) > 0 {
		tokens = strings.Join(audiences, ",")
	}
	shownModes := strings.Join(modes, ",")
	if shownModes == "" {
		shownModes = "<none>"
	}
	return []any{
		d.Name, isTrue(d.Spec.AttachRequired, true), isTrue(d.Spec.PodInfoOnMount, false), isTrue(d.Spec.StorageCapacity, false),
		tokens, isTrue(d.Spec.RequiresRepublish, false), shownModes, apis.AgeOf(d, now),
	}
}

func validateDriver(d *storagev1.CSIDriver) field.ErrorList {
	path, s := field.NewPath("spec"), &d.Spec
	var errs field.ErrorList
	required := func(name string, set bool) {
		if !set {
			errs = append(errs, field.Required(path.Child(name), ""))
		}
	}
	required("attachedRequired", s.AttachRequired != nil)
	required("podInfoOnMount", s.PodInfoOnMount != nil)
	required("storageCapacity", s.StorageCapacity != nil)
	if s.FSGroupPolicy == nil {
		required("fsGroupPolicy", false)
	} else {
		errs = append(errs, validate.OneOf(path.Child("fsGroupPolicy"), *s.FSGroupPolicy,
			storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy)...)
	}
	errs = append(errs, validateTokenRequests(s.TokenRequests, path.Child("tokenRequests"))...)
	for _, m := range s.VolumeLifecycleModes {
		errs = append(errs, validate.Listed(path.Child("volumeLifecycleModes"), m, storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral)...)
	}
	required("seLinuxMount", s.SELinuxMount != nil)
	if n := s.NodeAllocatableUpdatePeriodSeconds; n != nil && *n < 10 {
		errs = append(errs, field.Invalid(path.Child("nodeAllocatableUpdatePeriodSeconds"), *n, "must be greater than or equal to 10 seconds"))
	}
	if s.ServiceAccountTokenInSecrets != nil && len(s.TokenRequests) == 0 {
		errs = append(errs, field.Invalid(path.Child("serviceAccountTokenInSecrets"), *s.ServiceAccountTokenInSecrets, "serviceAccountTokenInSecrets is set but no tokenRequests are specified"))
	}
	return errs
}

func validateTokenRequests(requests []storagev1.TokenRequest, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	audiences := map[string]bool{}
	for i, r := range requests {
		at := path.Index(i)
		if audiences[r.Audience] {
			errs = append(errs, field.Duplicate(at.Child("audience"), r.Audience))
			continue
		}
		audiences[r.Audience] = true
		if r.ExpirationSeconds == nil {
			continue
		}
		if *r.ExpirationSeconds < minTokenSeconds {
			errs = append(errs, field.Invalid(at.Child("expirationSeconds"), *r.ExpirationSeconds, "may not specify a duration less than 10 minutes"))
		}
		if *r.ExpirationSeconds > maxTokenSeconds {
			errs = append(errs, field.Invalid(at.Child("expirationSeconds"), *r.ExpirationSeconds, "may not specify a duration larger than 2^32 seconds"))
		}
	}
	return errs
}
