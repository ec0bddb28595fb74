package storage

import (
	"maps"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
)

// VolumeAttributesClasses is the storage.k8s.io/v1 volumeattributesclasses
// resource (KEP-3751).
var VolumeAttributesClasses = apis.Resource{
	Group: "storage.k8s.io", Version: "v1", Kind: "VolumeAttributesClass", Plural: "volumeattributesclasses", Short: []string{"vac"}, Scope: apis.Cluster,
	ChecksNameOnUpdate: true,
	New:                apis.New[storagev1.VolumeAttributesClass], NewList: apis.NewList[storagev1.VolumeAttributesClassList],
	NoGeneration: true,
	Validate:     apis.Check(validateAttributes),
	ValidateUpdate: apis.CheckUpdate(func(c, old *storagev1.VolumeAttributesClass) field.ErrorList {
		var errs field.ErrorList
		if c.DriverName != old.DriverName {
			errs = append(errs, field.Forbidden(field.NewPath("driverName"), "updates to driverName are forbidden."))
		}
		if !maps.Equal(c.Parameters, old.Parameters) {
			errs = append(errs, field.Forbidden(field.NewPath("parameters"), "updates to parameters are forbidden."))
		}
		return append(errs, validateAttributes(c)...)
	}),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("DriverName", "string", storagev1.VolumeAttributesClass{}.SwaggerDoc()["driverName"]),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(c *storagev1.VolumeAttributesClass, now time.Time) []any {
		name := c.Name
		if c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
			name += " (default)"
		}
		return []any{name, c.DriverName, apis.AgeOf(c, now)}
	}),
}

func validateAttributes(c *storagev1.VolumeAttributesClass) field.ErrorList {
	errs := validateProvisioner(c.DriverName, field.NewPath("driverName"))
	if len(c.Parameters) == 0 {
		return append(errs, field.Required(field.NewPath("parameters"), "must contain at least one key/value pair"))
	}
	return append(errs, validateParameters(c.Parameters, field.NewPath("parameters"))...)
}
