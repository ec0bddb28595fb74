package core

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

func validateMounts(c *corev1.Container, p *podContext, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	paths := sets.New[string]()
	mounts := at // where upstream reports how a volume is mounted
	for i := range c.VolumeMounts {
		m, at := &c.VolumeMounts[i], at.Index(i)
		if m.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		}
		if _, known := p.volumes[m.Name]; !known {
			errs = append(errs, field.NotFound(at.Child("name"), m.Name))
		}
		if m.MountPath == "" {
			errs = append(errs, field.Required(at.Child("mountPath"), ""))
		}
		if paths.Has(m.MountPath) {
			errs = append(errs, field.Invalid(at.Child("mountPath"), m.MountPath, "must be unique"))
		}
		paths.Insert(m.MountPath)
		if slices.ContainsFunc(c.VolumeDevices, func(d corev1.VolumeDevice) bool { return d.Name == m.Name }) {
			errs = append(errs, field.Invalid(at.Child("name"), m.Name, "must not already exist in volumeDevices"))
		}
		if slices.ContainsFunc(c.VolumeDevices, func(d corev1.VolumeDevice) bool { return d.DevicePath == m.MountPath }) {
			errs = append(errs, field.Invalid(at.Child("mountPath"), m.MountPath, "must not already exist as a path in volumeDevices"))
		}
		errs = append(errs, validateSubPaths(m, at)...)
		errs = append(errs, validatePropagation(m, c, mounts.Child("mountPropagation"))...)
		errs = append(errs, validateRecursiveReadOnly(m, mounts.Child("recursiveReadOnly"))...)
	}
	return errs
}

func validateSubPaths(m *corev1.VolumeMount, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m.SubPath != "" {
		errs = append(errs, validateDescendingPath(m.SubPath, at.Child("subPath"))...)
	}
	if m.SubPathExpr != "" {
		if m.SubPath != "" {
			errs = append(errs, field.Invalid(at.Child("subPathExpr"), m.SubPathExpr, "subPathExpr and subPath are mutually exclusive"))
		}
		errs = append(errs, validateDescendingPath(m.SubPathExpr, at.Child("subPathExpr"))...)
	}
	return errs
}

func validatePropagation(m *corev1.VolumeMount, c *corev1.Container, at *field.Path) field.ErrorList {
	if m.MountPropagation == nil {
		return nil
	}
	errs := validate.OneOf(at, *m.MountPropagation, corev1.MountPropagationBidirectional, corev1.MountPropagationHostToContainer, corev1.MountPropagationNone)
	if *m.MountPropagation == corev1.MountPropagationBidirectional && !isPrivileged(c.SecurityContext) {
		errs = append(errs, field.Forbidden(at, "Bidirectional mount propagation is available only to privileged containers"))
	}
	return errs
}

func validateRecursiveReadOnly(m *corev1.VolumeMount, at *field.Path) field.ErrorList {
	if m.RecursiveReadOnly == nil || *m.RecursiveReadOnly == corev1.RecursiveReadOnlyDisabled {
		return nil
	}
	errs := validate.OneOf(at, *m.RecursiveReadOnly, corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible)
	if !m.ReadOnly {
		errs = append(errs, field.Forbidden(at, "may only be specified when readOnly is true"))
	}
	if m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone {
		errs = append(errs, field.Forbidden(at, "may only be specified when mountPropagation is None or not specified"))
	}
	return errs
}

func validateDevices(c *corev1.Container, p *podContext, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	names, paths := sets.New[string](), sets.New[string]()
	for i, d := range c.VolumeDevices {
		at := at.Index(i)
		name, devicePath := at.Child("name"), at.Child("devicePath")
		source, known := p.volumes[d.Name]
		switch {
		case d.Name == "":
			errs = append(errs, field.Required(name, ""))
		case names.Has(d.Name):
			errs = append(errs, field.Invalid(name, d.Name, "must be unique"))
		}
		if known && source.PersistentVolumeClaim == nil && source.Ephemeral == nil {
			errs = append(errs, field.Invalid(name, d.Name, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"))
		}
		if !known {
			errs = append(errs, field.NotFound(name, d.Name))
		}
		switch {
		case d.DevicePath == "":
			errs = append(errs, field.Required(devicePath, ""))
		case paths.Has(d.DevicePath):
			errs = append(errs, field.Invalid(devicePath, d.DevicePath, "must be unique"))
		default:
			if slices.Contains(strings.Split(d.DevicePath, "/"), "..") {
				errs = append(errs, field.Invalid(devicePath, d.DevicePath, "can not contain backsteps ('..')"))
			}
		}
		names.Insert(d.Name)
		paths.Insert(d.DevicePath)
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == d.Name }) {
			errs = append(errs, field.Invalid(name, d.Name, "must not already exist in volumeMounts"))
		}
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == d.DevicePath }) {
			errs = append(errs, field.Invalid(devicePath, d.DevicePath, "must not already exist as a path in volumeMounts"))
		}
	}
	return errs
}

// validateDescendingPath wants a relative path that never climbs.
func validateDescendingPath(p string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if path.IsAbs(p) {
		errs = append(errs, field.Invalid(at, p, "must be a relative path"))
	}
	return append(errs, validateNoBacksteps(p, at)...)
}

func validateNoBacksteps(p string, at *field.Path) field.ErrorList {
	if slices.Contains(strings.Split(p, "/"), "..") {
		return field.ErrorList{field.Invalid(at, p, "must not contain '..'")}
	}
	return nil
}

// validateNonReservedPath also refuses names starting with "..": the directories
// that atomic updates of projected volumes use.
func validateNonReservedPath(p string, at *field.Path) field.ErrorList {
	errs := validateDescendingPath(p, at)
	if strings.HasPrefix(p, "..") && !strings.HasPrefix(p, "../") && p != ".." {
		errs = append(errs, field.Invalid(at, p, "must not start with '..'"))
	}
	return errs
}
