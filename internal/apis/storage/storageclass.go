package storage

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/core"
	"proa/internal/apis/validate"
)

const (
	maxParameters     = 512
	maxParametersSize = 256 << 10
	defaultAnnotation = "storageclass.kubernetes.io/is-default-class"
	betaAnnotation    = "storageclass.beta.kubernetes.io/is-default-class"
)

// StorageClasses is the storage.k8s.io/v1 storageclasses resource.
var StorageClasses = apis.Resource{
	Group: "storage.k8s.io", Version: "v1", Kind: "StorageClass", Plural: "storageclasses", Short: []string{"sc"}, Scope: apis.Cluster,
	ChecksNameOnUpdate: true,
	New:                apis.New[storagev1.StorageClass], NewList: apis.NewList[storagev1.StorageClassList],
	NoGeneration: true,
	Default: apis.On(func(c *storagev1.StorageClass) {
		if c.ReclaimPolicy == nil {
			c.ReclaimPolicy = new(corev1.PersistentVolumeReclaimDelete)
		}
		if c.VolumeBindingMode == nil {
			c.VolumeBindingMode = new(storagev1.VolumeBindingImmediate)
		}
	}),
	Validate:       apis.Check(validateClass),
	ValidateUpdate: apis.CheckUpdate(validateClassUpdate),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Provisioner", "string", storagev1.StorageClass{}.SwaggerDoc()["provisioner"]),
		apis.Column("ReclaimPolicy", "string", storagev1.StorageClass{}.SwaggerDoc()["reclaimPolicy"]),
		apis.Column("VolumeBindingMode", "string", storagev1.StorageClass{}.SwaggerDoc()["volumeBindingMode"]),
		apis.Column("AllowVolumeExpansion", "string", storagev1.StorageClass{}.SwaggerDoc()["allowVolumeExpansion"]),
		apis.AgeColumn,
	},
	Row: apis.Cells(classRow),
}

func classRow(c *storagev1.StorageClass, now time.Time) []any {
	name, reclaim, binding := c.Name, string(corev1.PersistentVolumeReclaimDelete), string(storagev1.VolumeBindingImmediate)
	if c.Annotations[defaultAnnotation] == "true" || c.Annotations[betaAnnotation] == "true" {
		name += " (default)"
	}
	if c.ReclaimPolicy != nil {
		reclaim = string(*c.ReclaimPolicy)
	}
	if c.VolumeBindingMode != nil {
		binding = string(*c.VolumeBindingMode)
	}
	return []any{name, c.Provisioner, reclaim, binding, c.AllowVolumeExpansion != nil && *c.AllowVolumeExpansion, apis.AgeOf(c, now)}
}

func validateClass(c *storagev1.StorageClass) field.ErrorList {
	errs := validateProvisioner(c.Provisioner, field.NewPath("provisioner"))
	errs = append(errs, validateParameters(c.Parameters, field.NewPath("parameters"))...)
	if p := c.ReclaimPolicy; p != nil && *p != "" {
		errs = append(errs, validate.OneOf(field.NewPath("reclaimPolicy"), *p, corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain)...)
	}
	if c.VolumeBindingMode == nil {
		errs = append(errs, field.Required(field.NewPath("volumeBindingMode"), ""))
	} else {
		errs = append(errs, validate.OneOf(field.NewPath("volumeBindingMode"), *c.VolumeBindingMode, storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer)...)
	}
	return append(errs, validateTopologies(c.AllowedTopologies, field.NewPath("allowedTopologies"))...)
}

func validateClassUpdate(c, old *storagev1.StorageClass) field.ErrorList {
	errs := validateClass(c)
	errs = append(errs, validate.Immutable(field.NewPath("parameters"), c.Parameters, old.Parameters)...)
	errs = append(errs, validate.Immutable(field.NewPath("provisioner"), c.Provisioner, old.Provisioner)...)
	errs = append(errs, validate.Immutable(field.NewPath("reclaimPolicy"), c.ReclaimPolicy, old.ReclaimPolicy)...)
	return append(errs, validate.Immutable(field.NewPath("volumeBindingMode"), c.VolumeBindingMode, old.VolumeBindingMode)...)
}

// validateProvisioner also checks attachers: a qualified name in any case.
func validateProvisioner(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	lower := strings.ToLower(name)
	return validate.Invalid(path, lower, validation.IsQualifiedName(lower))
}

func validateParameters(parameters map[string]string, path *field.Path) field.ErrorList {
	if len(parameters) > maxParameters {
		return field.ErrorList{field.TooLong(path, "", maxParameters)}
	}
	var errs field.ErrorList
	size := 0
	for k, v := range parameters {
		if k == "" {
			errs = append(errs, field.Invalid(path, k, "field can not be empty."))
		}
		size += len(k) + len(v)
	}
	if size > maxParametersSize {
		errs = append(errs, field.TooLong(path, "", maxParametersSize))
	}
	return errs
}

func validateTopologies(terms []corev1.TopologySelectorTerm, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]int{fmt.Sprint([]corev1.TopologySelectorLabelRequirement{}): len(terms)} // a term that says nothing is none
	for i, term := range terms {
		at := path.Index(i)
		errs = append(errs, core.ValidateTopologySelectorTerm(term, at)...)
		key := fmt.Sprint(term.MatchLabelExpressions)
		for range seen[key] {
			errs = append(errs, field.Duplicate(at.Child("matchLabelExpressions"), ""))
		}
		seen[key]++
	}
	return errs
}
