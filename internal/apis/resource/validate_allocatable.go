package resource

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

// validateAllocatable checks what of the node's own resources a device stands for,
// or costs besides itself (KEP-5517).
func validateAllocatable(d *resourcev1.Device, path *field.Path) errorList {
	var errs errorList
	for name, r := range validate.Sorted(d.NodeAllocatableResources) {
		at := path.Key(string(name))
		if !isNodeAllocatable(name) {
			errs = append(errs, field.Invalid(at, name, "must be a node allocatable resource name"))
		}
		if r.Mapping == nil && r.Overhead == nil {
			errs = append(errs, field.Required(at, "at least one of mapping or overhead must be set"))
		}
		if r.Mapping != nil {
			errs = append(errs, validateMapping(r.Mapping, d.Capacity, at.Child("mapping"))...)
		}
		if r.Overhead != nil {
			errs = append(errs, validateOverhead(r.Overhead, at.Child("overhead"))...)
		}
	}
	return errs
}

func isNodeAllocatable(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// validateMapping: a share of a capacity has a multiplier, and the other way round.
func validateMapping(m *resourcev1.NodeAllocatableMapping, capacity map[resourcev1.QualifiedName]resourcev1.DeviceCapacity, path *field.Path) errorList {
	var errs errorList
	key, multiplier := path.Child("capacityKey"), path.Child("capacityMultiplier")
	if m.CapacityKey != nil {
		if _, known := capacity[*m.CapacityKey]; *m.CapacityKey == "" {
			errs = append(errs, field.Invalid(key, "", "capacityKey must not be an empty string"))
		} else if !known {
			errs = append(errs, field.NotFound(key, *m.CapacityKey))
		}
		if q := m.CapacityMultiplier; q == nil {
			errs = append(errs, field.Required(multiplier, "capacityMultiplier is required when capacityKey is set").WithOrigin("dependentRequired"))
		} else if q.Sign() <= 0 {
			errs = append(errs, field.Invalid(multiplier, q.String(), "must be positive"))
		}
	}
	if q := m.DeviceMultiplier; q != nil && q.Sign() <= 0 {
		errs = append(errs, field.Invalid(path.Child("deviceMultiplier"), q.String(), "must be positive"))
	}
	if m.CapacityMultiplier != nil && m.CapacityKey == nil {
		errs = append(errs, field.Required(key, "capacityKey is required when capacityMultiplier is set").WithOrigin("dependentRequired"))
	}
	return errs
}

func validateOverhead(o *resourcev1.NodeAllocatableOverhead, path *field.Path) errorList {
	if o.PerPod == nil && o.PerContainer == nil {
		return errorList{field.Invalid(path, "", "at least one of perPod or perContainer must be set")}
	}
	var errs errorList
	if q := o.PerPod; q != nil && q.Sign() < 0 {
		errs = append(errs, field.Invalid(path.Child("perPod"), q.String(), "must be non-negative"))
	}
	if q := o.PerContainer; q != nil && q.Sign() < 0 {
		errs = append(errs, field.Invalid(path.Child("perContainer"), q.String(), "must be non-negative"))
	}
	return errs
}
