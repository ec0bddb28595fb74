package resource

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
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

// validateSliceSpec checks a slice. Old is nil for a new one.
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
	errs = append(errs, place{path, s.NodeName, s.NodeSelector, s.AllNodes}.validate(s.PerDeviceNodeSelection)...)
	if s.SharedCounters != nil && s.Devices != nil {
		errs = append(errs, field.Invalid(path, "", "only one of `sharedCounters` or `devices` is allowed"))
	}
	errs = append(errs, validateDevices(s, old, path.Child("devices"))...)
	errs = append(errs, validateCounterSets(s.SharedCounters, path.Child("sharedCounters"))...)
	if s.PartitionTypeAttribute != nil {
		errs = append(errs, validatePartitionType(s, path)...)
	}
	return append(errs, validateSkipped(s.SkipNodeOperations, path.Child("skipNodeOperations"))...)
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

func validateCounterSets(list []resourcev1.CounterSet, path *field.Path) errorList {
	if len(list) > resourcev1.ResourceSliceMaxCounterSets {
		return nil // a marker says so
	}
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

// validatePartitionType: where a slice names the attribute that tells kinds of
// partitions apart, every device that consumes counters has it, as a string.
func validatePartitionType(s *resourcev1.ResourceSliceSpec, path *field.Path) errorList {
	name := string(*s.PartitionTypeAttribute)
	if !slices.ContainsFunc(s.Devices, func(d resourcev1.Device) bool { return len(d.ConsumesCounters) > 0 }) {
		return errorList{field.Invalid(path.Child("partitionTypeAttribute"), name, "may only be set on a slice which declares devices that consume counters")}
	}
	if !strings.Contains(name, "/") || len(validateQualifiedName(name, nil)) > 0 {
		return nil // a marker says so, and no device can have it
	}
	bare, own := strings.CutPrefix(name, s.Driver+"/")
	var errs errorList
	for i := range s.Devices {
		d, at := &s.Devices[i], path.Child("devices").Index(i).Child("attributes").Key(name)
		if len(d.ConsumesCounters) == 0 {
			continue
		}
		a, ok := d.Attributes[resourcev1.QualifiedName(name)]
		if !ok && own { // the driver's own domain may be left out
			a, ok = d.Attributes[resourcev1.QualifiedName(bare)]
		}
		switch {
		case !ok:
			errs = append(errs, field.Required(at, "device consumes counters and `partitionTypeAttribute` names this attribute, so it must be set"))
		case a.StringValue == nil:
			errs = append(errs, field.Invalid(at, a, "must be a string value because `partitionTypeAttribute` names this attribute"))
		}
	}
	return errs
}

// validateSkipped: what a node does not prepare it cannot undo.
func validateSkipped(skipped []resourcev1.SkipNodeOperation, path *field.Path) errorList {
	has := func(o resourcev1.SkipNodeOperation) bool { return slices.Contains(skipped, o) }
	if !has(resourcev1.SkipNodeOperationNodePrepareResources) || has(resourcev1.SkipNodeOperationNodeUnprepareResources) || has(resourcev1.SkipNodeOperationAll) {
		return nil
	}
	return errorList{field.Invalid(path, skipped, "NodePrepareResources cannot be skipped unless NodeUnprepareResources is also skipped")}
}
