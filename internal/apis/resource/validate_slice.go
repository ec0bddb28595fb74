package resource

import (
	"fmt"
	"slices"
	"strings"

	"github.com/blang/semver/v4"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/core"
	"proa/internal/apis/validate"
)

func validateSliceUpdate(s, old *resourcev1.ResourceSlice) errorList {
	return validateSliceSpec(&s.Spec, &old.Spec)
}

func validateSlice(slice *resourcev1.ResourceSlice) errorList {
	return validateSliceSpec(&slice.Spec, nil)
}

// validateSliceSpec checks a slice; capacities that a device of old had are as they
// were. Old is nil for a new slice.
func validateSliceSpec(s, old *resourcev1.ResourceSliceSpec) errorList {
	path := field.NewPath("spec")
	errs := validate.CSIDriverName(path.Child("driver"), s.Driver)
	errs = append(errs, validatePoolName(s.Pool.Name, path.Child("pool", "name"))...)
	if s.Pool.Generation < 0 {
		errs = append(errs, field.Invalid(path.Child("pool", "generation"), s.Pool.Generation, "must be greater than or equal to zero"))
	}
	if s.Pool.ResourceSliceCount <= 0 {
		errs = append(errs, field.Invalid(path.Child("pool", "resourceSliceCount"), s.Pool.ResourceSliceCount, "must be greater than zero"))
	}
	if old == nil {
		old = &resourcev1.ResourceSliceSpec{}
	} else {
		errs = append(errs, validate.Immutable(path.Child("pool", "name"), s.Pool.Name, old.Pool.Name)...)
		errs = append(errs, validate.Immutable(path.Child("driver"), s.Driver, old.Driver)...)
		errs = append(errs, validate.Immutable(path.Child("nodeName"), s.NodeName, old.NodeName)...)
	}
	perDevice := s.PerDeviceNodeSelection != nil && *s.PerDeviceNodeSelection
	errs = append(errs, place{path, s.NodeName, s.NodeSelector, s.AllNodes}.validate(s.PerDeviceNodeSelection)...)
	if s.SharedCounters != nil && s.Devices != nil {
		errs = append(errs, field.Invalid(path, "", "only one of `sharedCounters` or `devices` is allowed"))
	}
	if n := len(s.Devices); n > resourcev1.ResourceSliceMaxDevices {
		errs = append(errs, field.TooMany(path.Child("devices"), n, resourcev1.ResourceSliceMaxDevices))
	}
	names := map[string]bool{}
	for i := range s.Devices {
		d, at := &s.Devices[i], path.Child("devices").Index(i)
		if names[d.Name] {
			errs = append(errs, field.Duplicate(at, d.Name))
		}
		names[d.Name] = true
		i := slices.IndexFunc(old.Devices, func(o resourcev1.Device) bool { return o.Name == d.Name })
		if i < 0 || !apiequality.Semantic.DeepEqual(old.Devices[i].Capacity, d.Capacity) {
			errs = append(errs, validateCapacity(d, at.Child("capacity"))...)
		}
		errs = append(errs, validateDevice(d, perDevice, at)...)
	}
	return append(errs, validateCounterSets(s.SharedCounters, path.Child("sharedCounters"))...)
}

// place is where the devices of a slice, or one device, are.
type place struct {
	path     *field.Path
	name     *string
	selector *corev1.NodeSelector
	all      *bool
}

// validate wants devices on one node, on those a selector chooses, on all, or on
// what each of them says.
func (p place) validate(each *bool) errorList {
	set, errs := p.chosen("must be either unset or set to a non-empty string")
	if s := p.selector; s != nil && len(s.NodeSelectorTerms) != 1 {
		errs = append(errs, field.Invalid(p.path.Child("nodeSelector", "nodeSelectorTerms"), s.NodeSelectorTerms, "must have exactly one node selector term"))
	}
	set, errs = p.flag(each, "perDeviceNodeSelection", set, errs)
	return append(errs, p.one(set, "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required", ", but multiple fields are set")...)
}

// validateDevice is validate for one device.
func (p place) validateDevice() errorList {
	set, errs := p.chosen("must not be empty")
	return append(errs, p.one(set, "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec", "")...)
}

func (p place) chosen(emptyName string) (set []string, errs errorList) {
	switch {
	case p.name == nil:
	case *p.name == "":
		errs = append(errs, field.Invalid(p.path.Child("nodeName"), *p.name, emptyName))
	default:
		set = append(set, "`nodeName`")
		errs = append(errs, validate.NodeName(p.path.Child("nodeName"), *p.name)...)
	}
	if p.selector != nil {
		set = append(set, "`nodeSelector`")
		errs = append(errs, core.ValidateNodeSelector(p.selector, p.path.Child("nodeSelector"))...)
	}
	return p.flag(p.all, "allNodes", set, errs)
}

func (p place) flag(b *bool, name string, set []string, errs errorList) ([]string, errorList) {
	switch {
	case b == nil:
		return set, errs
	case !*b:
		return set, append(errs, field.Invalid(p.path.Child(name), *b, "must be either unset or set to true"))
	}
	return append(set, "`"+name+"`"), errs
}

func (p place) one(set []string, rule, many string) errorList {
	switch len(set) {
	case 0:
		return errorList{field.Required(p.path, rule)}
	case 1:
		return nil
	}
	return errorList{field.Invalid(p.path, "{"+strings.Join(set, ", ")+"}", rule+many)}
}

func validateDevice(d *resourcev1.Device, places bool, path *field.Path) errorList {
	errs := validate.Label(path.Child("name"), d.Name)
	if n := len(d.Attributes) + len(d.Capacity); n > resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		errs = append(errs, field.Invalid(path, n, fmt.Sprintf("the total number of attributes and capacities must not exceed %d", resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice)))
	}
	for name, a := range validate.Sorted(d.Attributes) {
		at := path.Child("attributes").Key(string(name))
		errs = append(errs, validateQualifiedName(string(name), path.Child("attributes"))...)
		errs = append(errs, validateAttribute(&a, at)...)
	}
	for i := range d.Taints {
		errs = append(errs, validateTaint(&d.Taints[i], path.Child("taints").Index(i))...)
	}
	where := place{path, d.NodeName, d.NodeSelector, d.AllNodes}
	switch {
	case places:
		errs = append(errs, where.validateDevice()...)
	case d.NodeName != nil || d.NodeSelector != nil || d.AllNodes != nil:
		errs = append(errs, field.Invalid(path, nil, "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec"))
	}
	return errs
}

func validateCapacity(d *resourcev1.Device, path *field.Path) errorList {
	var errs errorList
	for name, c := range validate.Sorted(d.Capacity) {
		at := path.Key(string(name))
		errs = append(errs, validateQualifiedName(string(name), path)...)
		if c.RequestPolicy != nil {
			errs = append(errs, validateRequestPolicy(c, d.AllowMultipleAllocations, at.Child("requestPolicy"))...)
		}
	}
	return errs
}

// validateQualifiedName wants a C identifier, with a domain before it or not. What
// has more than one slash is not looked at, as upstream has it.
func validateQualifiedName(name string, path *field.Path) errorList {
	domain, id, has := strings.Cut(name, "/")
	switch {
	case !has:
		return validateIdentifier(name, path)
	case strings.Contains(id, "/"):
		return nil
	}
	var errs errorList
	if domain == "" {
		errs = append(errs, field.Invalid(path, "", "the domain must not be empty"))
	} else {
		errs = append(errs, validate.CSIDriverName(path, domain)...)
	}
	if id == "" {
		return append(errs, field.Invalid(path, "", "the name must not be empty"))
	}
	return append(errs, validateIdentifier(id, path)...)
}

func validateIdentifier(id string, path *field.Path) errorList {
	var errs errorList
	if len(id) > resourcev1.DeviceMaxIDLength {
		errs = append(errs, field.TooLong(path, "", resourcev1.DeviceMaxIDLength))
	}
	return append(errs, validate.CIdentifier(path, id)...)
}

func validateAttribute(a *resourcev1.DeviceAttribute, path *field.Path) errorList {
	var errs errorList
	if v := a.StringValue; v != nil {
		errs = validateAttributeLength(*v, path.Child("string"))
	}
	if v := a.VersionValue; v != nil {
		at := path.Child("version")
		if _, err := semver.Parse(*v); err != nil {
			errs = append(errs, field.Invalid(at, *v, "must be a string compatible with semver.org spec 2.0.0"))
		}
		errs = append(errs, validateAttributeLength(*v, at)...)
	}
	return errs
}

func validateAttributeLength(v string, path *field.Path) errorList {
	if len(v) <= resourcev1.DeviceAttributeMaxValueLength {
		return nil
	}
	return errorList{field.TooLong(path, "", resourcev1.DeviceAttributeMaxValueLength)}
}

func validateCounterSets(list []resourcev1.CounterSet, path *field.Path) errorList {
	var errs errorList
	for i, set := range list {
		if len(set.Counters) == 0 {
			errs = append(errs, field.Required(path.Index(i).Child("counters"), ""))
		}
		if n := len(set.Counters); n > resourcev1.ResourceSliceMaxCountersPerCounterSet {
			errs = append(errs, field.TooMany(path.Index(i).Child("counters"), n, resourcev1.ResourceSliceMaxCountersPerCounterSet))
		}
	}
	return errs
}
