package codec

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"proa/internal/apis"
	"proa/internal/apiserver/codec/jsonplan"
	"proa/internal/apiserver/negotiate"
	"proa/internal/apiserver/wire"
)

// DecodeCustom is Decode for a custom resource, whose unknown fields only its
// schema can tell.
func DecodeCustom(body []byte, m negotiate.Media, form wire.Form, directive string) (obj apis.Object, warnings []string, err error) {
	set := bodyDecoders().strict
	if directive == metav1.FieldValidationIgnore {
		set = bodyDecoders().lenient
	}
	kind, into := form.GroupVersionKind, form.New()
	if m == negotiate.JSON {
		if obj, ok := plainCustom(body, form); ok {
			return obj, nil, nil
		}
	}
	decoded, gvk, err := set[m].Decode(body, &kind, into)
	var complaints []error
	if err != nil {
		strict, isStrict := runtime.AsStrictDecodingError(err)
		if !isStrict || decoded == nil {
			return nil, nil, decodeError(err, kind, gvk, body)
		}
		complaints = strict.Errors()
	}
	if err := checkKind(decoded, into, kind, gvk, body); err != nil {
		return nil, nil, err
	}
	obj = decoded.(apis.Object)
	unknown, err := form.Coerce(obj, wire.Strict(directive))
	if err != nil {
		return nil, nil, decodeError(err, kind, gvk, body)
	}
	if complaints = append(complaints, unknown...); len(complaints) == 0 {
		return obj, nil, nil
	}
	if directive == metav1.FieldValidationStrict {
		return nil, nil, decodeError(runtime.NewStrictDecodingError(complaints), kind, gvk, body)
	}
	return obj, strictWarnings(complaints), nil
}

// plainCustom reads the JSON of a custom resource that there is nothing to say about.
func plainCustom(body []byte, form wire.Form) (apis.Object, bool) {
	object, ok := jsonplan.DecodeObject(body)
	if !ok {
		return nil, false
	}
	obj := &unstructured.Unstructured{Object: object}
	apiVersion, kind := form.ToAPIVersionAndKind()
	if object["apiVersion"] != apiVersion || object["kind"] != kind {
		return nil, false
	}
	unknown, err := form.Coerce(obj, true)
	return obj, err == nil && len(unknown) == 0
}
