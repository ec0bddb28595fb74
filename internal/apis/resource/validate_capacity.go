package resource

import (
	"math"
	"strconv"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxChoices is how many amounts a policy may list.
const maxChoices = 10

// validateRequestPolicy: only a device that is given away in parts says how much
// of a capacity a request takes (KEP-5075): one of a list, or a range in steps.
func validateRequestPolicy(c resourcev1.DeviceCapacity, many *bool, path *field.Path) errorList {
	if many == nil || !*many {
		return errorList{field.Forbidden(path, "allowMultipleAllocations must be true")}
	}
	p, start := c.RequestPolicy, path.Child("default")
	switch {
	case len(p.ValidValues) > 0 && p.ValidRange != nil:
		return errorList{field.Forbidden(path, `exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time`)}
	case len(p.ValidValues) > 0 && p.Default == nil:
		return errorList{field.Required(start, "required when validValues is defined")}
	case len(p.ValidValues) > 0:
		return validateChoices(p, c.Value, path.Child("validValues"))
	case p.ValidRange != nil && p.Default == nil:
		return errorList{field.Required(start, "required when validRange is defined")}
	case p.ValidRange != nil:
		return validateRange(*p.Default, p.ValidRange, c.Value, path.Child("validRange"))
	}
	return nil
}

func validateChoices(p *resourcev1.CapacityRequestPolicy, whole resource.Quantity, path *field.Path) errorList {
	var errs errorList
	for i := 1; i < len(p.ValidValues); i++ {
		if v := p.ValidValues[i]; p.ValidValues[i-1].Cmp(v) > 0 {
			errs = append(errs, field.Invalid(path.Index(i), v.String(), "values must be sorted in ascending order"))
		}
	}
	known, seen := false, map[int64]bool{}
	if n := len(p.ValidValues); n > maxChoices {
		errs = append(errs, field.TooMany(path, n, maxChoices))
	} else {
		for i, v := range p.ValidValues {
			known = known || v.Cmp(*p.Default) == 0
			if v.Cmp(whole) > 0 {
				errs = append(errs, field.Invalid(path.Index(i), v.String(), "option is larger than capacity value: "+whole.String()))
			}
		}
		for i, v := range p.ValidValues {
			if seen[v.Value()] {
				errs = append(errs, field.Duplicate(path.Index(i), strconv.FormatInt(v.Value(), 10)))
			}
			seen[v.Value()] = true
		}
	}
	if !known {
		errs = append(errs, field.Invalid(path, p.Default.String(), "default value is not valid according to the requestPolicy"))
	}
	return errs
}

func validateRange(start resource.Quantity, r *resourcev1.CapacityRequestPolicyRange, whole resource.Quantity, path *field.Path) errorList {
	if r.Min == nil {
		return errorList{field.Required(path.Child("min"), "required when validRange is defined")}
	}
	var errs errorList
	above := func(name string, q, limit resource.Quantity, what string) {
		if q.Cmp(limit) > 0 {
			errs = append(errs, field.Invalid(path.Child(name), q.String(), what+limit.String()))
		}
	}
	above("min", *r.Min, whole, "min is larger than capacity value: ")
	if start.Cmp(*r.Min) < 0 {
		errs = append(errs, field.Invalid(path.Child("default"), start.String(), "default is less than min: "+r.Min.String()))
	}
	if r.Max != nil {
		above("max", *r.Min, *r.Max, "min is larger than max: ")
		above("max", *r.Max, whole, "max is larger than capacity value: ")
		above("default", start, *r.Max, "default is more than max: ")
	}
	if r.Step == nil {
		return errs
	}
	return append(errs, validateStep(start, r, whole, path)...)
}

// validateStep wants the default and the end of a range whole steps from its start.
func validateStep(start resource.Quantity, r *resourcev1.CapacityRequestPolicyRange, whole resource.Quantity, path *field.Path) errorList {
	at := path.Child("step")
	if r.Step.Sign() <= 0 {
		return errorList{field.Invalid(at, r.Step.String(), "must be greater than zero")}
	}
	var errs errorList
	next := r.Min.DeepCopy()
	next.Add(*r.Step)
	if next.Cmp(whole) > 0 {
		errs = append(errs, field.Invalid(at, r.Step.String(), "one step "+next.String()+" is larger than capacity value: "+whole.String()))
	}
	before := len(errs)
	countable := func(name string, q *resource.Quantity) {
		switch {
		case q == nil:
		case q.Sign() < 0:
			errs = append(errs, field.Invalid(path.Child(name), q.String(), apivalidation.IsNegativeErrorMsg))
		case q.CmpInt64(math.MaxInt64) > 0:
			errs = append(errs, field.Invalid(path.Child(name), q.String(), "must not be larger than 9223372036854775807"))
		}
	}
	countable("default", &start)
	countable("min", r.Min)
	countable("max", r.Max)
	countable("step", r.Step)
	if len(errs) > before {
		return errs // their distances cannot be computed
	}
	for _, q := range []*resource.Quantity{&start, r.Max} {
		if q != nil && (q.Value()-r.Min.Value())%r.Step.Value() != 0 {
			errs = append(errs, field.Invalid(at, q.String(), "value is not a multiple of a given step ("+r.Step.String()+") from ("+r.Min.String()+")"))
		}
	}
	return errs
}
