package resource

import (
	"fmt"
	"strings"

	"github.com/blang/semver/v4"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/core"
	"proa/internal/apis/validate"
)

func validateSliceUpdate(s, old *resourcev1.ResourceSlice) errorList {
	path := field.NewPath("spec")
	errs := validateSlice(s)
	errs = append(errs, validate.Immutable(path.Child("pool", "name"), s.Spec.Pool.Name, old.Spec.Pool.Name)...)
	errs = append(errs, validate.Immutable(path.Child("driver"), s.Spec.Driver, old.Spec.Driver)...)
	errs = append(errs, validate.Immutable(path.Child("nodeName"), s.Spec.NodeName, old.Spec.NodeName)...)
	return append(errs, validate.Immutable(path.Child("allNodes"), s.Spec.AllNodes, old.Spec.AllNodes)...)
}

func validateSlice(slice *resourcev1.ResourceSlice) errorList {
	path, s := field.NewPath("spec"), &slice.Spec
	errs := validate.CSIDriverName(path.Child("driver"), s.Driver)
	if s.Pool.Generation < 0 {
		errs = append(errs, field.Invalid(path.Child("pool", "generation"), s.Pool.Generation, "must be greater than or equal to zero"))
	}
	if s.Pool.ResourceSliceCount <= 0 {
		errs = append(errs, field.Invalid(path.Child("pool", "resourceSliceCount"), s.Pool.ResourceSliceCount, "must be greater than zero"))
	}
	perDevice := s.PerDeviceNodeSelection != nil && *s.PerDeviceNodeSelection
	errs = append(errs, validateWhere(path, s.NodeName, s.NodeSelector, s.AllNodes, s.PerDeviceNodeSelection, "perDeviceNodeSelection")...)
	if n := len(s.Devices); n > resourcev1.ResourceSliceMaxDevices {
		errs = append(errs, field.TooMany(path.Child("devices"), n, resourcev1.ResourceSliceMaxDevices))
	}
	names := map[string]bool{}
	for i := range s.Devices {
		d, at := &s.Devices[i], path.Child("devices").Index(i)
		if names[d.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), d.Name))
		}
		names[d.Name] = true
		errs = append(errs, validateDevice(d, perDevice, at)...)
	}
	return append(errs, validateCounterSets(s.SharedCounters, path.Child("sharedCounters"))...)
}

// validateWhere: devices are on one node, on those a selector chooses, on all,
// or each says so itself.
func validateWhere(path *field.Path, name *string, selector *corev1.NodeSelector, all, each *bool, eachName string) errorList {
	var errs errorList
	var set []string
	if name != nil {
		set = append(set, "`nodeName`")
		if *name == "" {
			errs = append(errs, field.Invalid(path.Child("nodeName"), *name, "must be either unset or set to a non-empty string"))
		} else {
			errs = append(errs, validate.NodeName(path.Child("nodeName"), *name)...)
		}
	}
	if selector != nil {
		set = append(set, "`nodeSelector`")
		errs = append(errs, validateOneTerm(selector, path.Child("nodeSelector"))...)
	}
	flag := func(b *bool, name string) {
		if b == nil {
			return
		}
		set = append(set, "`"+name+"`")
		if !*b {
			errs = append(errs, field.Invalid(path.Child(name), *b, "must be either unset or set to true"))
		}
	}
	flag(all, "allNodes")
	choices := "`nodeName`, `nodeSelector`, or `allNodes`"
	if eachName != "" {
		flag(each, eachName)
		choices = "`nodeName`, `nodeSelector`, `allNodes`, `" + eachName + "`"
	}
	switch {
	case len(set) == 0:
		errs = append(errs, field.Required(path, "exactly one of "+choices+" is required"))
	case len(set) > 1:
		errs = append(errs, field.Invalid(path, "{"+strings.Join(set, ", ")+"}", "exactly one of "+choices+" is required, but multiple fields are set"))
	}
	return errs
}

func validateOneTerm(s *corev1.NodeSelector, path *field.Path) errorList {
	errs := core.ValidateNodeSelector(s, path)
	if len(s.NodeSelectorTerms) != 1 {
		errs = append(errs, field.Invalid(path.Child("nodeSelectorTerms"), s.NodeSelectorTerms, "must have exactly one node selector term"))
	}
	return errs
}

func validateDevice(d *resourcev1.Device, places bool, path *field.Path) errorList {
	errs := validate.Label(path.Child("name"), d.Name)
	if n := len(d.Attributes) + len(d.Capacity); n > resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		errs = append(errs, field.Invalid(path, n, fmt.Sprintf("the total number of attributes and capacities must not exceed %d", resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice)))
	}
	for name, a := range validate.Sorted(d.Attributes) {
		at := path.Child("attributes").Key(string(name))
		errs = append(errs, validateQualifiedName(string(name), at)...)
		errs = append(errs, validateAttribute(&a, at)...)
	}
	for name, c := range validate.Sorted(d.Capacity) {
		at := path.Child("capacity").Key(string(name))
		errs = append(errs, validateQualifiedName(string(name), at)...)
		if c.RequestPolicy != nil {
			errs = append(errs, validateRequestPolicy(c, d.AllowMultipleAllocations, at.Child("requestPolicy"))...)
		}
	}
	for i := range d.Taints {
		errs = append(errs, validateTaint(&d.Taints[i], path.Child("taints").Index(i))...)
	}
	if places {
		errs = append(errs, validateWhere(path, d.NodeName, d.NodeSelector, d.AllNodes, nil, "")...)
	} else {
		for name, set := range validate.Sorted(map[string]bool{"nodeName": d.NodeName != nil, "nodeSelector": d.NodeSelector != nil, "allNodes": d.AllNodes != nil}) {
			if set {
				errs = append(errs, field.Invalid(path.Child(name), nil, "can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec"))
			}
		}
	}
	return errs
}

// validateQualifiedName wants a C identifier, with a domain before it or not.
func validateQualifiedName(name string, path *field.Path) errorList {
	if name == "" {
		return errorList{field.Required(path, "name required")}
	}
	domain, id, has := strings.Cut(name, "/")
	if !has {
		return validateIdentifier(name, path)
	}
	var errs errorList
	if domain == "" {
		errs = append(errs, field.Invalid(path, "", "the domain must not be empty"))
	} else {
		if len(domain) > resourcev1.DeviceMaxDomainLength {
			errs = append(errs, field.TooLong(path, "", resourcev1.DeviceMaxDomainLength))
		}
		errs = append(errs, validate.Subdomain(path, domain)...)
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
	long := func(name string, v *string) {
		if v != nil && len(*v) > resourcev1.DeviceAttributeMaxValueLength {
			errs = append(errs, field.TooLong(path.Child(name), *v, resourcev1.DeviceAttributeMaxValueLength))
		}
	}
	long("string", a.StringValue)
	long("version", a.VersionValue)
	if v := a.VersionValue; v != nil {
		if _, err := semver.Parse(*v); err != nil {
			errs = append(errs, field.Invalid(path.Child("version"), *v, "must be a string compatible with semver.org spec 2.0.0"))
		}
	}
	return errs
}

func validateRequestPolicy(c resourcev1.DeviceCapacity, many *bool, path *field.Path) errorList {
	if many == nil || !*many {
		return errorList{field.Forbidden(path, "allowMultipleAllocations must be true")}
	}
	p := c.RequestPolicy
	if p.Default == nil {
		if len(p.ValidValues) > 0 || p.ValidRange != nil {
			return errorList{field.Required(path.Child("default"), "required when validValues or validRange is defined")}
		}
		return nil
	}
	var errs errorList
	if p.Default.Cmp(c.Value) > 0 {
		errs = append(errs, field.Invalid(path.Child("default"), p.Default.String(), "default is larger than capacity value: "+c.Value.String()))
	}
	found := len(p.ValidValues) == 0
	for i, v := range p.ValidValues {
		at := path.Child("validValues").Index(i)
		found = found || v.Cmp(*p.Default) == 0
		if i > 0 && v.Cmp(p.ValidValues[i-1]) <= 0 {
			errs = append(errs, field.Invalid(at, v.String(), "values must be sorted in ascending order"))
		}
		if v.Cmp(c.Value) > 0 {
			errs = append(errs, field.Invalid(at, v.String(), "option is larger than capacity value: "+c.Value.String()))
		}
	}
	if !found {
		errs = append(errs, field.Invalid(path.Child("validValues"), p.Default.String(), "default value is not valid according to the requestPolicy"))
	}
	return append(errs, validateRange(p, c.Value, path.Child("validRange"))...)
}

func validateRange(p *resourcev1.CapacityRequestPolicy, whole resource.Quantity, path *field.Path) errorList {
	r := p.ValidRange
	if r == nil {
		return nil
	}
	var errs errorList
	if r.Min == nil {
		return errorList{field.Required(path.Child("min"), "")}
	}
	if r.Min.Cmp(whole) > 0 {
		errs = append(errs, field.Invalid(path.Child("min"), r.Min.String(), "min is larger than capacity value: "+whole.String()))
	}
	if p.Default.Cmp(*r.Min) < 0 {
		errs = append(errs, field.Invalid(path.Child("default"), p.Default.String(), "default is less than min: "+r.Min.String()))
	}
	if r.Max != nil {
		if r.Min.Cmp(*r.Max) > 0 {
			errs = append(errs, field.Invalid(path.Child("min"), r.Min.String(), "min is larger than max: "+r.Max.String()))
		}
		if r.Max.Cmp(whole) > 0 {
			errs = append(errs, field.Invalid(path.Child("max"), r.Max.String(), "max is larger than capacity value: "+whole.String()))
		}
		if p.Default.Cmp(*r.Max) > 0 {
			errs = append(errs, field.Invalid(path.Child("default"), p.Default.String(), "default is more than max: "+r.Max.String()))
		}
	}
	return errs
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
