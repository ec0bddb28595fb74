package codec

import (
	"encoding/hex"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"sigs.k8s.io/yaml"

	"proa/internal/apis"
	"proa/internal/apiserver/codec/jsonplan"
	"proa/internal/apiserver/negotiate"
)

// decoders read every media type, leniently or strictly.
type decoders struct {
	lenient, strict map[negotiate.Media]runtime.Decoder
}

var bodyDecoders = sync.OnceValue(func() decoders {
	scheme := apis.Scheme()
	text := func(yaml, strict bool) runtime.Decoder {
		return json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: yaml, Strict: strict})
	}
	proto := protobuf.NewSerializer(scheme, scheme)
	binary := func(strict bool) runtime.Decoder { return cbor.NewSerializer(scheme, scheme, cbor.Strict(strict)) }
	return decoders{
		lenient: map[negotiate.Media]runtime.Decoder{negotiate.JSON: text(false, false), negotiate.YAML: text(true, false), negotiate.Protobuf: proto, negotiate.CBOR: binary(false)},
		strict:  map[negotiate.Media]runtime.Decoder{negotiate.JSON: text(false, true), negotiate.YAML: text(true, true), negotiate.Protobuf: proto, negotiate.CBOR: binary(true)},
	}
})

// Decode reads a body into an object of a kind, which into is the zero value
// of. The fieldValidation directive decides what unknown and duplicate fields
// do: "Strict" fails, "Ignore" drops them, and "Warn" (the default) drops them
// and returns a warning for each. Kind and apiVersion of the result are empty
// unless it is unstructured. Errors are 400 Statuses in upstream's words.
func Decode(body []byte, m negotiate.Media, kind schema.GroupVersionKind, into apis.Object, directive string) (obj apis.Object, warnings []string, err error) {
	if m == negotiate.JSON {
		if obj, ok := decodePlain(body, kind, into); ok {
			return obj, nil, nil
		}
	}
	set := bodyDecoders().strict
	if directive == metav1.FieldValidationIgnore {
		set = bodyDecoders().lenient
	}
	if m == negotiate.Protobuf {
		if err := checkDepth(body, reflect.TypeOf(into).Elem()); err != nil {
			return nil, nil, decodeError(err, kind, &kind, body)
		}
	}
	decoded, gvk, err := set[m].Decode(body, &kind, into)
	if err != nil {
		strict, isStrict := runtime.AsStrictDecodingError(err)
		if !isStrict || decoded == nil || directive == metav1.FieldValidationStrict {
			return nil, nil, decodeError(err, kind, gvk, body)
		}
		warnings = strictWarnings(strict.Errors())
	}
	if err := checkKind(decoded, into, kind, gvk, body); err != nil {
		return nil, nil, err
	}
	obj = decoded.(apis.Object)
	if m == negotiate.Protobuf {
		if err := expressible(obj); err != nil {
			return nil, nil, decodeError(err, kind, gvk, body)
		}
	}
	if _, ok := obj.(runtime.Unstructured); !ok {
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	return obj, warnings, nil
}

// decodePlain reads the JSON of a built-in kind that there is nothing to say
// about. It answers false for all else, and leaves into as it is.
func decodePlain(body []byte, kind schema.GroupVersionKind, into apis.Object) (apis.Object, bool) {
	if _, custom := into.(runtime.Unstructured); custom {
		return nil, false
	}
	obj := reflect.New(reflect.TypeOf(into).Elem()).Interface().(apis.Object)
	if !jsonplan.Decode(body, obj) {
		return nil, false
	}
	if named := obj.GetObjectKind().GroupVersionKind(); named != kind && !named.Empty() {
		return nil, false
	}
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return obj, true
}

// expressible refuses what protobuf can say and JSON cannot: an IntOrString that is
// neither, raw JSON that is none. Nobody could read such an object any more, and the
// libraries that track its fields panic.
func expressible(obj apis.Object) error {
	doc, err := jsonplan.Append(nil, obj)
	if err == nil && !stdjson.Valid(doc) {
		err = errors.New("a raw value is no JSON")
	}
	return err
}

// checkKind refuses a body of another kind or version than the path's.
func checkKind(decoded runtime.Object, into apis.Object, want schema.GroupVersionKind, got *schema.GroupVersionKind, body []byte) error {
	if got.GroupKind() != want.GroupKind() {
		if _, ok := into.(runtime.Unstructured); ok && got.GroupVersion() == want.GroupVersion() {
			return nil // the registry compares the kinds of custom resources
		}
		mismatch := fmt.Errorf("converting (%s) to (%s): unknown conversion", typeName(decoded), hubName(want))
		return decodeError(mismatch, want, got, body)
	}
	if got.GroupVersion() != want.GroupVersion() {
		return apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)", got.GroupVersion(), want.GroupVersion()))
	}
	if reflect.TypeOf(decoded) != reflect.TypeOf(into) {
		return apierrors.NewInternalError(fmt.Errorf("decoded %T, expected %T", decoded, into))
	}
	return nil
}

// hubName is what upstream calls its version-less type of a kind.
func hubName(kind schema.GroupVersionKind) string {
	group, _, _ := strings.Cut(kind.Group, ".")
	if group == "" || kind.Kind == "Event" {
		group = "core"
	}
	return group + "." + kind.Kind
}

func typeName(obj runtime.Object) string {
	return strings.TrimPrefix(reflect.TypeOf(obj).String(), "*")
}

func decodeError(err error, want schema.GroupVersionKind, got *schema.GroupVersionKind, body []byte) error {
	if got != nil && got.Kind != "" {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", got.Kind, got.Version, want.Kind, err))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)", want.Kind, err, summary(body)))
}

// summary shows the start of a body: text of JSON, hexadecimal of anything else.
func summary(body []byte) string {
	const most = 30
	if len(body) == 0 {
		return "<empty>"
	}
	start, more := body, ""
	if len(body) > most {
		start, more = body[:most], " ..."
	}
	if body[0] == '{' {
		return string(start) + more
	}
	return hex.EncodeToString(start) + more
}

// strictWarnings makes a warning of each strict decoding error; the YAML reader
// reports many in one error, a line each.
func strictWarnings(errs []error) []string {
	var warnings []string
	for _, err := range errs {
		text := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
		lines, isYAML := strings.CutPrefix(text, "yaml: unmarshal errors:\n")
		if !isYAML {
			warnings = append(warnings, err.Error())
			continue
		}
		for line := range strings.SplitSeq(lines, "\n") {
			warnings = append(warnings, strings.TrimSpace(line))
		}
	}
	return warnings
}

// DecodeOptions reads a body that holds options (DeleteOptions), in any of the
// versions that a group may name them in, in one of the media types. Kind is what
// they are where the body does not say; own is their kind in the group version of
// the request, which clients of custom resources name; meta.k8s.io/v1 is good everywhere. Unknown fields are ignored.
func DecodeOptions(body []byte, contentType string, kind, own schema.GroupVersionKind, into runtime.Object, media []negotiate.Media) error {
	m, err := negotiate.Body(contentType, media...)
	if err != nil {
		return err
	}
	decoded, named, err := bodyDecoders().lenient[m].Decode(body, &kind, into)
	meta := schema.GroupVersionKind{Group: metav1.GroupName, Version: "v1", Kind: kind.Kind}
	if runtime.IsNotRegisteredError(err) && named != nil && (*named == own || *named == meta) {
		decoded, err = into, yaml.Unmarshal(body, into) // JSON, too: protobuf has no custom kinds
	}
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if decoded != into {
		return apierrors.NewBadRequest("decoded object cannot be converted to " + kind.Kind)
	}
	return nil
}
