package resource

import (
	"fmt"
	"slices"

	"github.com/blang/semver/v4"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

// validateDevices checks the devices of a slice. Capacities and taints that a device
// of old had are as they were.
func validateDevices(s, old *resourcev1.ResourceSliceSpec, path *field.Path) errorList {
	if n, most := len(s.Devices), maxDevices(s); n > most {
		return errorList{field.TooMany(path, n, most).WithOrigin("maxItems")}
	}
	perDevice := s.PerDeviceNodeSelection != nil && *s.PerDeviceNodeSelection
	var errs errorList
	for i := range s.Devices {
		d := &s.Devices[i]
		var before *resourcev1.Device
		if j := slices.IndexFunc(old.Devices, func(o resourcev1.Device) bool { return o.Name == d.Name }); j >= 0 {
			before = &old.Devices[j]
		}
		errs = append(errs, validateDevice(d, before, perDevice, path.Index(i))...)
	}
	names := map[string]bool{}
	for i := range s.Devices {
		name := s.Devices[i].Name
		if names[name] {
			errs = append(errs, field.Duplicate(path.Index(i), name))
		}
		names[name] = true
	}
	return errs
}

// maxDevices is lower for a slice in which a device has more to say.
func maxDevices(s *resourcev1.ResourceSliceSpec) int {
	for i := range s.Devices {
		d := &s.Devices[i]
		if len(d.Taints) > 0 || len(d.ConsumesCounters) > 0 {
			return resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
		}
		for _, a := range d.Attributes {
			if a.BoolValues != nil || a.IntValues != nil || a.StringValues != nil || a.VersionValues != nil {
				return resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
			}
		}
	}
	return resourcev1.ResourceSliceMaxDevices
}

func validateDevice(d, old *resourcev1.Device, places bool, path *field.Path) errorList {
	errs := validate.Label(path.Child("name"), d.Name)
	errs = append(errs, validateAttributes(d, path)...)
	if old == nil || !apiequality.Semantic.DeepEqual(old.Capacity, d.Capacity) {
		errs = append(errs, validateCapacity(d, path.Child("capacity"))...)
	}
	if old == nil || !apiequality.Semantic.DeepEqual(old.Taints, d.Taints) {
		errs = append(errs, validateTaints(d.Taints, path.Child("taints"))...)
	}
	errs = append(errs, validateConsumed(d.ConsumesCounters, path.Child("consumesCounters"))...)
	where := place{path, d.NodeName, d.NodeSelector, d.AllNodes}
	switch {
	case places:
		errs = append(errs, where.validateDevice()...)
	case d.NodeName != nil || d.NodeSelector != nil || d.AllNodes != nil:
		errs = append(errs, field.Invalid(path, nil, "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec"))
	}
	errs = append(errs, validateBindingConditions(d.BindingConditions, d.BindingFailureConditions, path)...)
	return append(errs, validateAllocatable(d, path.Child("nodeAllocatableResources"))...)
}

func validateAttributes(d *resourcev1.Device, path *field.Path) errorList {
	var errs errorList
	if n := len(d.Attributes) + len(d.Capacity); n > resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		errs = append(errs, field.Invalid(path, n, fmt.Sprintf("the total number of attributes and capacities must not exceed %d", resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice)))
	}
	if n := attributeValues(d); n > resourcev1.ResourceSliceMaxAttributeValuesPerDevice {
		errs = append(errs, field.Invalid(path, n, fmt.Sprintf("the total number of attribute values must not exceed %d", resourcev1.ResourceSliceMaxAttributeValuesPerDevice)))
	}
	at := path.Child("attributes")
	for name, a := range validate.Sorted(d.Attributes) {
		errs = append(errs, validateQualifiedName(string(name), at)...)
		errs = append(errs, validateAttribute(&a, at.Key(shortened(string(name))))...)
	}
	return errs
}

// attributeValues counts the items of lists, and what is no list as one.
func attributeValues(d *resourcev1.Device) int {
	n := 0
	for _, a := range d.Attributes {
		n += max(1, len(a.BoolValues)+len(a.IntValues)+len(a.StringValues)+len(a.VersionValues))
	}
	return n
}

func validateAttribute(a *resourcev1.DeviceAttribute, path *field.Path) errorList {
	var errs errorList
	if v := a.StringValue; v != nil {
		errs = validateAttributeLength(*v, path.Child("string"))
	}
	if v := a.VersionValue; v != nil {
		errs = append(errs, validateVersion(*v, path.Child("version"))...)
	}
	empty := func(name string, list any, set bool, n int) {
		if set && n == 0 {
			errs = append(errs, field.Invalid(path.Child(name), list, "must not be empty if specified"))
		}
	}
	empty("bools", a.BoolValues, a.BoolValues != nil, len(a.BoolValues))
	empty("ints", a.IntValues, a.IntValues != nil, len(a.IntValues))
	empty("strings", a.StringValues, a.StringValues != nil, len(a.StringValues))
	for i, v := range a.StringValues {
		errs = append(errs, validateAttributeLength(v, path.Child("strings").Index(i))...)
	}
	empty("versions", a.VersionValues, a.VersionValues != nil, len(a.VersionValues))
	for i, v := range a.VersionValues {
		errs = append(errs, validateVersion(v, path.Child("versions").Index(i))...)
	}
	return errs
}

func validateVersion(v string, path *field.Path) errorList {
	var errs errorList
	if _, err := semver.Parse(v); err != nil {
		errs = append(errs, field.Invalid(path, v, "must be a string compatible with semver.org spec 2.0.0"))
	}
	return append(errs, validateAttributeLength(v, path)...)
}

func validateAttributeLength(v string, path *field.Path) errorList {
	if len(v) <= resourcev1.DeviceAttributeMaxValueLength {
		return nil
	}
	return errorList{field.TooLong(path, "", resourcev1.DeviceAttributeMaxValueLength)}
}

func validateCapacity(d *resourcev1.Device, path *field.Path) errorList {
	var errs errorList
	for name, c := range validate.Sorted(d.Capacity) {
		errs = append(errs, validateQualifiedName(string(name), path)...)
		if c.RequestPolicy != nil {
			errs = append(errs, validateRequestPolicy(c, d.AllowMultipleAllocations, path.Key(shortened(string(name))).Child("requestPolicy"))...)
		}
	}
	return errs
}

func validateTaints(taints []resourcev1.DeviceTaint, path *field.Path) errorList {
	if n := len(taints); n > resourcev1.DeviceTaintsMaxLength {
		return errorList{field.TooMany(path, n, resourcev1.DeviceTaintsMaxLength).WithOrigin("maxItems")}
	}
	var errs errorList
	for i := range taints {
		errs = append(errs, validateTaint(&taints[i], path.Index(i))...)
	}
	return errs
}

func validateConsumed(list []resourcev1.DeviceCounterConsumption, path *field.Path) errorList {
	if len(list) > resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice {
		return nil // a marker says so
	}
	var errs errorList
	for i := range list {
		if n := len(list[i].Counters); n > resourcev1.ResourceSliceMaxCountersPerDeviceCounterConsumption {
			errs = append(errs, field.TooMany(path.Index(i).Child("counters"), n, resourcev1.ResourceSliceMaxCountersPerDeviceCounterConsumption))
		}
	}
	return errs
}

// shortened leaves out the middle of a name that is too long to be shown.
func shortened(name string) string {
	const most = resourcev1.DeviceMaxDomainLength + 1 + resourcev1.DeviceMaxIDLength
	if len(name) <= most {
		return name
	}
	kept := most - len("...")
	return name[:(kept+1)/2] + "..." + name[len(name)-kept/2:]
}
