package codec

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"proa/internal/apiserver/negotiate"
)

// A quantity is read as a decimal of any size: a dozen bytes (1e-999999999) or a
// few million digits keep a processor busy for minutes, and no deadline ends it.
// Such numbers are refused before any decoder sees them, wherever in the body they
// stand, so that no patch can copy one to where a quantity belongs.
const (
	mostExponent = 3    // digits of a negative exponent
	mostDigits   = 1000 // of a number
)

// CheckQuantities refuses a body, or a patch, for an object of a type that holds
// quantities if one of its numbers takes too long to read. The error is a 400 Status.
func CheckQuantities(body []byte, m negotiate.Media, into any) error {
	if !mayHoldType(reflect.TypeOf(into), reflect.TypeFor[resource.Quantity]()) || !suspicious(body, m) {
		return nil
	}
	at := excessive(body, m)
	if at == nil {
		return nil
	}
	const shown = 40
	return apierrors.NewBadRequest(fmt.Sprintf("unable to parse numeric part of quantity: %.*q...", shown, at))
}

// suspicious is a quick look that finds nothing in nearly every body.
func suspicious(body []byte, m negotiate.Media) bool {
	return len(body) >= mostDigits || findExponent(body, 0) >= 0 || m == negotiate.YAML || m == negotiate.CBOR ||
		bytes.Contains(body, []byte("e-")) || bytes.Contains(body, []byte("E-")) || bytes.Contains(body, []byte(`\u00`))
}

// escaped is a character of a number that JSON can also spell otherwise.
var escaped = regexp.MustCompile(`\\u00(2[bBdDeE]|3[0-9]|[46]5)`)

// excessive returns the place of a number that takes too long to read, or nil. A body that cannot be read
// is left to the decoder that says why.
func excessive(body []byte, m negotiate.Media) []byte {
	var err error
	switch m {
	case negotiate.Protobuf:
		return excessiveNumber(body, lengthBefore)
	case negotiate.YAML:
		if !bytes.ContainsAny(body, `\!`) && excessiveNumber(body, func([]byte, int, int, int) bool { return true }) == nil {
			return nil
		}
		body, err = yaml.YAMLToJSON(body)
	case negotiate.CBOR:
		body, err = JSONOf(body)
	}
	if err == nil {
		body, err = unescaped(body)
	}
	if err != nil {
		return nil
	}
	return excessiveNumber(body, aloneInJSON)
}

// unescaped spells the numbers of a JSON text as they are read.
func unescaped(body []byte) ([]byte, error) {
	if !escaped.Match(body) {
		return body, nil
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// bounded says whether a number that begins at start is a value of its own. It ends
// behind least and at most at end.
type bounded func(body []byte, start, least, end int) bool

func excessiveNumber(body []byte, alone bounded) []byte {
	for from := 0; ; {
		i := bytes.IndexByte(body[from:], '-')
		if i < 0 {
			break
		}
		i += from
		from = i + 1
		if i < 2 || body[i-1]|0x20 != 'e' || !numeral(body[i-2]) {
			continue
		}
		end := i + 1
		for end < len(body) && body[end] >= '0' && body[end] <= '9' {
			end++
		}
		if end-i-1 <= mostExponent {
			continue
		}
		if start := startOf(body, i-1); alone(body, start, i+1+mostExponent, end) {
			return body[start:end]
		}
	}
	if at := excessiveExponent(body, alone); at != nil {
		return at
	}
	for i := mostDigits - 1; i < len(body); i += mostDigits {
		if !numeral(body[i]) {
			continue
		}
		start, end := startOf(body, i), i
		for end < len(body) && numeral(body[end]) {
			end++
		}
		if end-start > mostDigits {
			return body[start:end]
		}
	}
	return nil
}

// unpacked is how many digits a number has that is read as a decimal at once, to be
// compared with the largest there is.
const unpacked = 19

// excessiveExponent finds a number of many digits with a large positive exponent.
func excessiveExponent(body []byte, alone bounded) []byte {
	for e := findExponent(body, 0); e >= 0; e = findExponent(body, e) {
		start, end := startOf(body, e), e+1
		if body[end] == '+' {
			end++
		}
		least := end + mostExponent
		for end < len(body) && body[end] >= '0' && body[end] <= '9' {
			end++
		}
		if e-start >= unpacked && alone(body, start, least, end) {
			return body[start:end]
		}
	}
	return nil
}

// startOf is where the digits before end begin. More than is allowed are not looked at.
func startOf(body []byte, end int) int {
	start := end
	for start > 0 && end-start <= mostDigits && numeral(body[start-1]) {
		start--
	}
	return start
}

func numeral(c byte) bool { return c >= '0' && c <= '9' || c == '.' }

// aloneInJSON: nothing but a sign stands between the number and what delimits it.
func aloneInJSON(body []byte, start, _, end int) bool {
	start = withSign(body, start)
	return start > 0 && bytes.IndexByte([]byte("\": \t\r\n,["), body[start-1]) >= 0 &&
		(end == len(body) || bytes.IndexByte([]byte("\" \t\r\n,]}"), body[end]) >= 0)
}

func withSign(body []byte, start int) int {
	if start > 0 && (body[start-1] == '-' || body[start-1] == '+') {
		return start - 1
	}
	return start
}

// lengthBefore: in front of a string, in protobuf, stands its length. The byte of a
// length can look like a digit of the number, and so can what follows the string.
func lengthBefore(body []byte, start, least, end int) bool {
	start = withSign(body, start)
	for k := least - mostExponent - 2; k >= max(start, 1); k-- {
		for size := 1; size <= 2 && size <= k; size++ {
			n, used := binary.Uvarint(body[k-size : k])
			if used == size && k+int(n) > least && k+int(n) <= end {
				return true
			}
		}
	}
	return false
}

type holder struct{ in, of reflect.Type }

var holders sync.Map // holder -> bool

// mayHoldType says whether a value of one type can be anywhere in another.
func mayHoldType(in, of reflect.Type) bool {
	key := holder{in, of}
	if known, ok := holders.Load(key); ok {
		return known.(bool)
	}
	found := holds(in, of, map[reflect.Type]bool{})
	holders.Store(key, found)
	return found
}

func holds(t, of reflect.Type, seen map[reflect.Type]bool) bool {
	if t == of {
		return true
	}
	if t == nil || seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return holds(t.Elem(), of, seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if holds(t.Field(i).Type, of, seen) {
				return true
			}
		}
	}
	return false
}
