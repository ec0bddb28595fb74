package resource

import (
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// derived checks the attributes that the requests of one claim compute from those
// of devices, so that constraints can compare them.
type derived struct {
	constraints []resourcev1.DeviceConstraint
	cost        uint64 // of all expressions so far
}

// validate checks the attributes of a request; an alternative's is request/alternative.
func (d *derived) validate(attributes []resourcev1.DeviceDerivedAttribute, request string, path *field.Path) errorList {
	var errs errorList
	for i, a := range attributes {
		at := path.Index(i)
		if a.Name != "" && !d.compared(string(a.Name), request) {
			errs = append(errs, field.Invalid(at.Child("name"), a.Name, "must be referenced by at least one matchAttribute or distinctAttribute constraint targeting this request"))
		}
		if a.Expression != "" {
			errs = append(errs, d.expression(a.Expression, at.Child("expression"))...)
		}
	}
	for i, a := range attributes {
		sameName := func(b resourcev1.DeviceDerivedAttribute) bool { return b.Name == a.Name }
		if slices.ContainsFunc(attributes[:i], sameName) {
			errs = append(errs, field.Duplicate(path.Index(i), string(a.Name)))
		}
	}
	return errs
}

func (d *derived) expression(text string, path *field.Path) errorList {
	cost, errs := compile(text, path, true)
	if len(errs) > 0 {
		return errs
	}
	d.cost += cost
	if cost > min(resourcev1.CELSelectorExpressionMaxCost, resourcev1.DeviceClaimDerivedAttributeCELMaxCost) {
		return errorList{field.Forbidden(path, "too complex, exceeds cost limit")}
	}
	return nil
}

// compared says that a constraint on the request, on that whose alternative it is,
// or on all of them, names the attribute.
func (d *derived) compared(attribute, request string) bool {
	parent, _, _ := strings.Cut(request, "/")
	for i := range d.constraints {
		c := &d.constraints[i]
		named := c.MatchAttribute
		if named == nil {
			named = c.DistinctAttribute
		}
		if named == nil || string(*named) != attribute {
			continue
		}
		if len(c.Requests) == 0 || slices.Contains(c.Requests, request) || slices.Contains(c.Requests, parent) {
			return true
		}
	}
	return false
}

// total bounds what all expressions of the claim cost together.
func (d *derived) total(path *field.Path) errorList {
	if d.cost <= resourcev1.DeviceClaimDerivedAttributeCELMaxCost {
		return nil
	}
	return errorList{field.Forbidden(path, "too complex, total cost of derived attribute CEL expressions in the claim exceeds cost limit")}
}
