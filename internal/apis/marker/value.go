package marker

import (
	"context"
	"fmt"
	"reflect"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// formats are upstream's checks of strings by name.
var formats = map[string]func(context.Context, operation.Operation, *field.Path, *string, *string) field.ErrorList{
	"k8s-short-name":                    validate.ShortName[string],
	"k8s-long-name":                     validate.LongName[string],
	"k8s-long-name-caseless":            validate.LongNameCaseless[string],
	"k8s-label-key":                     validate.LabelKey[string],
	"k8s-label-value":                   validate.LabelValue[string],
	"k8s-prefixed-label-key":            validate.PrefixedLabelKey[string],
	"k8s-path-segment-name":             validate.PathSegmentName[string],
	"k8s-uuid":                          validate.UUID[string],
	"k8s-resource-pool-name":            validate.ResourcePoolName[string],
	"k8s-extended-resource-name":        validate.ExtendedResourceName[string],
	"k8s-resource-fully-qualified-name": validate.ResourceFullyQualifiedName[string],
}

// value checks a scalar against one tag. Tags about presence and change were
// checked before.
func (c *check) value(at *place, t tag, v, old reflect.Value) {
	v, old = indirect(v), indirect(old)
	switch t.name {
	case "format":
		s := v.String()
		c.errs = append(c.errs, formats[t.value](context.Background(), operation.Operation{}, at.path(), &s, nil)...)
	case "maxLength":
		if utf8.RuneCountInString(v.String()) > t.number {
			c.add(field.TooLongCharacters(at.path(), v.String(), t.number).WithOrigin("maxLength"))
		}
	case "maxBytes":
		if len(v.String()) > t.number {
			c.add(field.TooLong(at.path(), v.String(), t.number).WithOrigin("maxBytes"))
		}
	case "minimum":
		if v.Int() < int64(t.number) {
			c.add(field.Invalid(at.path(), v.Int(), content.MinError(t.number)).WithOrigin("minimum"))
		}
	case "maximum":
		if v.Int() > int64(t.number) {
			c.add(field.Invalid(at.path(), v.Int(), content.MaxError(t.number)).WithOrigin("maximum"))
		}
	case "monotonic":
		if old.IsValid() && old.Kind() != reflect.Pointer && v.Int() < old.Int() {
			c.add(field.Invalid(at.path(), v.Int(), fmt.Sprintf("may not be decreased from %v", old.Int())).WithOrigin("monotonic"))
		}
	}
}
