package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"proa/internal/apiserver/negotiate"
)

// A quantity with a large positive exponent (1e999999999) is read at once and
// compared for minutes. As a text such a number can also be a digest, so it is not
// looked for in bodies but in the quantities of what was read from those that hold
// something like it.

// maxScale is the largest power of ten of a quantity.
const maxScale = 999

// CheckExponents refuses an object read from a body that may hold a quantity with a
// large exponent. The error is a 400 Status.
func CheckExponents(obj any, body []byte, m negotiate.Media) error {
	if !mayHoldType(reflect.TypeOf(obj), quantityType) || !mayHoldExponent(body, m) {
		return nil
	}
	return CheckScales(obj)
}

// CheckPatch is CheckExponents for a merge patch or an apply of an object like into,
// which it changes. What a JSON patch makes has to be looked at with CheckScales.
func CheckPatch(data []byte, m negotiate.Media, into any) error {
	if !mayHoldType(reflect.TypeOf(into), quantityType) || !mayHoldExponent(data, m) {
		return nil
	}
	var err error
	if m == negotiate.YAML {
		data, err = yaml.YAMLToJSON(data)
	}
	if err == nil {
		data, err = unescaped(data)
	}
	if err != nil {
		return nil // the decoder says why
	}
	_ = json.Unmarshal(data, into) // as much as is of the right type; the decoder says what is not
	return CheckScales(into)
}

// CheckScales refuses an object one of whose quantities has a large exponent.
func CheckScales(obj any) error {
	if q := largest(reflect.ValueOf(obj)); q != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("unable to parse quantity's suffix: the exponent of %.40q is too large", q.String()))
	}
	return nil
}

var quantityType = reflect.TypeFor[resource.Quantity]()

// largest finds a quantity with a large exponent, or nil.
func largest(v reflect.Value) *resource.Quantity {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return largest(v.Elem())
		}
	case reflect.Struct:
		if v.Type() == quantityType {
			return large(v.Interface().(resource.Quantity))
		}
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && mayHoldType(f.Type, quantityType) {
				if q := largest(v.Field(i)); q != nil {
					return q
				}
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if q := largest(v.Index(i)); q != nil {
				return q
			}
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			if q := largest(v.MapIndex(key)); q != nil {
				return q
			}
		}
	}
	return nil
}

func large(q resource.Quantity) *resource.Quantity {
	q = q.DeepCopy()
	if q.AsDec().Scale() < -maxScale {
		return &q
	}
	return nil
}

// mayHoldExponent is a quick look that finds nothing in nearly every body: an
// exponent of four digits, or a form in which one can hide.
func mayHoldExponent(body []byte, m negotiate.Media) bool {
	return m == negotiate.CBOR || m == negotiate.YAML && bytes.ContainsAny(body, `\!`) ||
		findExponent(body, 0) >= 0 || bytes.Contains(body, []byte(`\u00`))
}

// findExponent returns where the e of an exponent with four digits or more stands,
// at from or behind it, or -1.
func findExponent(body []byte, from int) int {
	const digits = mostExponent + 1
	for i := from + digits; i < len(body); i += digits {
		if body[i] < '0' || body[i] > '9' {
			continue
		}
		start, end := i, i+1
		for start > from && body[start-1] >= '0' && body[start-1] <= '9' {
			start--
		}
		for end < len(body) && body[end] >= '0' && body[end] <= '9' {
			end++
		}
		e := start - 1
		if e > from && body[e] == '+' {
			e--
		}
		if end-start >= digits && e > from && body[e]|0x20 == 'e' && numeral(body[e-1]) {
			return e
		}
		i = max(i, end)
	}
	return -1
}
