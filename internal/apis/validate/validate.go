// Package validate holds the field checks that kinds of several groups share.
// Each returns upstream's errors for one value at one path; what apimachinery
// already checks is called there, not repeated here.
package validate

import (
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxSignerName is what a domain and a path of certificates may be long.
const maxSignerName = 571

// Invalid turns messages of a name validator into errors about one value.
func Invalid(path *field.Path, value any, messages []string) field.ErrorList {
	var errs field.ErrorList
	for _, m := range messages {
		errs = append(errs, field.Invalid(path, value, m))
	}
	return errs
}

// OneOf refuses a value outside allowed, which is listed sorted.
func OneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if slices.Contains(allowed, value) {
		return nil
	}
	allowed = slices.Clone(allowed)
	slices.Sort(allowed)
	return field.ErrorList{field.NotSupported(path, value, allowed)}
}

// Listed is OneOf with the allowed values listed in the order given.
func Listed[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if slices.Contains(allowed, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, allowed)}
}

// RequiredListed is Listed for a value that must be there.
func RequiredListed[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return Listed(path, value, allowed...)
}

// RequiredOneOf is OneOf for a value that must be there.
func RequiredOneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return OneOf(path, value, allowed...)
}

// NonNegative refuses numbers below 0.
func NonNegative[N ~int32 | ~int64 | ~int](path *field.Path, n N) field.ErrorList {
	return apivalidation.ValidateNonnegativeField(int64(n), path)
}

// NonNegativePtr refuses numbers below 0 where there is one.
func NonNegativePtr[N ~int32 | ~int64](path *field.Path, n *N) field.ErrorList {
	if n == nil {
		return nil
	}
	return NonNegative(path, *n)
}

// Immutable refuses a change.
func Immutable(path *field.Path, value, old any) field.ErrorList {
	return apivalidation.ValidateImmutableField(value, old, path)
}

// Selector checks a label selector's syntax.
func Selector(path *field.Path, s *metav1.LabelSelector) field.ErrorList {
	return metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, path)
}

// Labels checks label keys and values.
func Labels(path *field.Path, labels map[string]string) field.ErrorList {
	return metavalidation.ValidateLabels(labels, path)
}

// LabelName checks a qualified label key.
func LabelName(path *field.Path, name string) field.ErrorList {
	return metavalidation.ValidateLabelName(name, path)
}

// LabelValue checks a label's value.
func LabelValue(path *field.Path, value string) field.ErrorList {
	return Invalid(path, value, validation.IsValidLabelValue(value))
}

// Annotations checks annotation keys and their total size.
func Annotations(path *field.Path, annotations map[string]string) field.ErrorList {
	return apivalidation.ValidateAnnotations(annotations, path)
}

// CIdentifier checks a name as C has them.
func CIdentifier(path *field.Path, value string) field.ErrorList {
	return Invalid(path, value, validation.IsCIdentifier(value))
}

// Label checks a DNS-1123 label.
func Label(path *field.Path, value string) field.ErrorList {
	return Invalid(path, value, validation.IsDNS1123Label(value))
}

// Subdomain checks a DNS-1123 subdomain.
func Subdomain(path *field.Path, value string) field.ErrorList {
	return Invalid(path, value, validation.IsDNS1123Subdomain(value))
}

// QualifiedName checks a name with an optional DNS prefix.
func QualifiedName(path *field.Path, value string) field.ErrorList {
	return Invalid(path, value, validation.IsQualifiedName(value))
}

// Port checks a port number.
func Port(path *field.Path, port int32) field.ErrorList {
	return Invalid(path, port, validation.IsValidPortNum(int(port)))
}

// PortNumOrName checks a port that may be a container port's name.
func PortNumOrName(path *field.Path, port intstr.IntOrString) field.ErrorList {
	switch port.Type {
	case intstr.Int:
		return Invalid(path, port.IntValue(), validation.IsValidPortNum(port.IntValue()))
	case intstr.String:
		return Invalid(path, port.StrVal, validation.IsValidPortName(port.StrVal))
	}
	return field.ErrorList{field.InternalError(path, fmt.Errorf("unknown type: %v", port.Type))}
}

// IntOrPercent checks a count of at least 0 or a percentage.
func IntOrPercent(path *field.Path, v intstr.IntOrString) field.ErrorList {
	switch v.Type {
	case intstr.String:
		return Invalid(path, v, validation.IsValidPercent(v.StrVal))
	case intstr.Int:
		return NonNegative(path, v.IntValue())
	}
	return field.ErrorList{field.Invalid(path, v, "must be an integer or percentage (e.g '5%%')")}
}

// Percent returns the number of a percentage.
func Percent(v intstr.IntOrString) (int, bool) {
	if v.Type != intstr.String || len(validation.IsValidPercent(v.StrVal)) > 0 {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSuffix(v.StrVal, "%"))
	return n, err == nil
}

// AtMost100Percent refuses percentages above 100.
func AtMost100Percent(path *field.Path, v intstr.IntOrString) field.ErrorList {
	if n, ok := Percent(v); ok && n > 100 {
		return field.ErrorList{field.Invalid(path, v, "must not be greater than 100%")}
	}
	return nil
}

// NonNegativeQuantity refuses quantities below 0.
func NonNegativeQuantity(path *field.Path, q resource.Quantity) field.ErrorList {
	if q.Cmp(resource.Quantity{}) < 0 {
		return field.ErrorList{field.Invalid(path, q.String(), apivalidation.IsNegativeErrorMsg)}
	}
	return nil
}

// PositiveQuantity refuses quantities of 0 and below.
func PositiveQuantity(path *field.Path, q resource.Quantity) field.ErrorList {
	if q.Cmp(resource.Quantity{}) <= 0 {
		return field.ErrorList{field.Invalid(path, q.String(), "must be greater than zero")}
	}
	return nil
}

// NameAlone has a validator judge names, but not what names are made from.
func NameAlone(check func(name string, prefix bool) []string) func(name string, prefix bool) []string {
	return func(name string, prefix bool) []string {
		if prefix {
			return path.IsValidPathSegmentPrefix(name)
		}
		return check(name, false)
	}
}

// NodeName checks a name of a node.
func NodeName(path *field.Path, name string) field.ErrorList {
	return Invalid(path, name, apivalidation.NameIsDNSSubdomain(name, false))
}

// SignerName checks the name of a signer of certificates: a domain and a path.
func SignerName(path *field.Path, name string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	domain, rest, qualified := strings.Cut(name, "/")
	if !qualified || strings.Contains(rest, "/") {
		return field.ErrorList{field.Invalid(path, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")}
	}
	errs := Subdomain(path, domain)
	for i := range errs {
		errs[i].Detail = fmt.Sprintf("validating label %q: %s", domain, errs[i].Detail)
	}
	if !strings.Contains(domain, ".") {
		errs = append(errs, field.Invalid(path, name, "should be a domain with at least two segments separated by dots"))
	}
	for _, label := range strings.Split(rest, ".") {
		for _, m := range validation.IsDNS1123Label(label) {
			errs = append(errs, field.Invalid(path, rest, fmt.Sprintf("validating label %q: %s", label, m)))
		}
	}
	if len(name) > maxSignerName {
		errs = append(errs, field.TooLong(path, "", maxSignerName))
	}
	return errs
}

// CSIDriverName checks the name of a CSI driver: at most 63 characters of a
// subdomain in any case.
func CSIDriverName(path *field.Path, name string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	if len(name) > 63 {
		errs = append(errs, field.TooLong(path, "", 63))
	}
	return append(errs, Invalid(path, name, validation.IsDNS1123Subdomain(strings.ToLower(name)))...)
}

// SortedKeys returns a map's keys in order, so that errors have one too.
func SortedKeys[K ~string, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Sorted ranges over a map in the order of its keys.
func Sorted[K ~string, V any](m map[K]V) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, k := range SortedKeys(m) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}
