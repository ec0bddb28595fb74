package storage

import (
	"math"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/core"
	"proa/internal/apis/validate"
)

const maxVolumeError = 1024

// VolumeAttachments is the storage.k8s.io/v1 volumeattachments resource.
var VolumeAttachments = apis.Resource{
	Group: "storage.k8s.io", Version: "v1", Kind: "VolumeAttachment", Plural: "volumeattachments", Scope: apis.Cluster,
	ChecksNameOnUpdate: true,
	New:                apis.New[storagev1.VolumeAttachment], NewList: apis.NewList[storagev1.VolumeAttachmentList],
	NoGeneration:      true,
	ConditionalUpdate: true,
	Subresources: []apis.Subresource{
		apis.Status(func(a, old *storagev1.VolumeAttachment) {
			a.Spec = old.Spec
		}, func(a, _ *storagev1.VolumeAttachment) field.ErrorList { return validateAttachment(a) }),
	},
	PrepareCreate: apis.On(func(a *storagev1.VolumeAttachment) { a.Status = storagev1.VolumeAttachmentStatus{} }),
	PrepareUpdate: apis.OnUpdate(func(a, old *storagev1.VolumeAttachment) { a.Status = old.Status }),
	Validate:      apis.Check(validateAttachment),
	ValidateUpdate: apis.CheckUpdate(func(a, old *storagev1.VolumeAttachment) field.ErrorList {
		return append(validateAttachment(a), validate.Immutable(field.NewPath("spec"), a.Spec, old.Spec)...)
	}),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		{Name: "Attacher", Type: "string", Format: "name", Description: storagev1.VolumeAttachmentSpec{}.SwaggerDoc()["attacher"]},
		apis.Column("PV", "string", storagev1.VolumeAttachmentSource{}.SwaggerDoc()["persistentVolumeName"]),
		apis.Column("Node", "string", storagev1.VolumeAttachmentSpec{}.SwaggerDoc()["nodeName"]),
		apis.Column("Attached", "boolean", storagev1.VolumeAttachmentStatus{}.SwaggerDoc()["attached"]),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(a *storagev1.VolumeAttachment, now time.Time) []any {
		pv := ""
		if a.Spec.Source.PersistentVolumeName != nil {
			pv = *a.Spec.Source.PersistentVolumeName
		}
		return []any{a.Name, a.Spec.Attacher, pv, a.Spec.NodeName, a.Status.Attached, apis.AgeOf(a, now)}
	}),
}

func validateAttachment(a *storagev1.VolumeAttachment) field.ErrorList {
	path := field.NewPath("spec")
	errs := validate.CSIDriverName(path.Child("attacher"), a.Spec.Attacher)
	errs = append(errs, validateSource(&a.Spec.Source, path.Child("source"))...)
	errs = append(errs, validate.NodeName(path.Child("nodeName"), a.Spec.NodeName)...)
	status := field.NewPath("status")
	errs = append(errs, validateParameters(a.Status.AttachmentMetadata, status.Child("attachmentMetadata"))...)
	errs = append(errs, validateVolumeError(a.Status.AttachError, status.Child("attachError"))...)
	return append(errs, validateVolumeError(a.Status.DetachError, status.Child("detachError"))...)
}

func validateSource(s *storagev1.VolumeAttachmentSource, path *field.Path) field.ErrorList {
	const exactlyOne = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
	switch {
	case s.InlineVolumeSpec == nil && s.PersistentVolumeName == nil:
		return field.ErrorList{field.Required(path, exactlyOne)}
	case s.InlineVolumeSpec != nil && s.PersistentVolumeName != nil:
		return field.ErrorList{field.Forbidden(path, exactlyOne)}
	case s.PersistentVolumeName != nil:
		var errs field.ErrorList
		if *s.PersistentVolumeName == "" {
			errs = append(errs, field.Required(path.Child("persistentVolumeName"), "must specify non empty persistentVolumeName"))
		}
		return append(errs, validate.Subdomain(path.Child("persistentVolumeName"), *s.PersistentVolumeName)...)
	case s.InlineVolumeSpec != nil:
		return core.ValidateInlineVolumeSpec(s.InlineVolumeSpec, path.Child("inlineVolumeSpec"))
	}
	return nil
}

func validateVolumeError(e *storagev1.VolumeError, path *field.Path) field.ErrorList {
	if e == nil {
		return nil
	}
	var errs field.ErrorList
	if len(e.Message) > maxVolumeError {
		errs = append(errs, field.TooLong(path.Child("message"), "", maxVolumeError))
	}
	if code := e.ErrorCode; code != nil && *code < 0 {
		errs = append(errs, field.Invalid(path.Child("errorCode"), *code, validation.InclusiveRangeError(0, math.MaxInt32)))
	}
	return errs
}
