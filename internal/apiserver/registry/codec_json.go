package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/utils/ptr"
	kjson "sigs.k8s.io/json"

	"proa/internal/apis"
	"proa/internal/apiserver/codec/jsonplan"
	"proa/internal/apiserver/wire"
	"proa/internal/store"
)

// What upstream's servers beside the main one keep, they keep as JSON: custom
// resources, definitions (still as v1beta1, which is shorter) and API services.
const (
	definitionGroup = apiextensions.GroupName
	serviceGroup    = "apiregistration.k8s.io"
)

// definitionKeeper writes definitions as v1beta1 and reads both versions.
type definitionKeeper struct {
	scheme *runtime.Scheme
	codec  runtime.Codec // of the internal version
}

var definitionCodec = sync.OnceValue(func() *definitionKeeper {
	s := runtime.NewScheme()
	install.Install(s)
	return &definitionKeeper{s, serializer.NewCodecFactory(s).LegacyCodec(apiextensionsv1beta1.SchemeGroupVersion, apiextensionsv1.SchemeGroupVersion)}
})

func (d *definitionKeeper) encode(obj store.Object) ([]byte, error) {
	var internal apiextensions.CustomResourceDefinition
	if err := d.scheme.Convert(obj.DeepCopyObject(), &internal, nil); err != nil { // a conversion may share and change
		return nil, err
	}
	return runtime.Encode(d.codec, &internal)
}

func (d *definitionKeeper) decode(value []byte) (runtime.Object, error) {
	internal, err := runtime.Decode(d.codec, value)
	if err != nil {
		return nil, err
	}
	obj := new(apiextensionsv1.CustomResourceDefinition)
	return obj, d.scheme.Convert(internal, obj, nil)
}

// encodeJSON writes an object of a kind that is kept as JSON; ok is false for others.
func encodeJSON(gvk schema.GroupVersionKind, obj store.Object) (value []byte, ok bool, err error) {
	switch gvk.Group {
	case definitionGroup:
		value, err = definitionCodec().encode(obj)
	case serviceGroup:
		value, err = line(wire.Typed(obj, gvk))
	default:
		return nil, false, nil
	}
	return value, true, err
}

// decodeJSON reads a value of a built-in kind that is kept as JSON, which
// upstream does with any on request.
func (c *Codec) decodeJSON(r *apis.Resource, value []byte) (runtime.Object, schema.GroupVersionKind, error) {
	if r.Group == definitionGroup {
		obj, err := definitionCodec().decode(value)
		return obj, r.GroupVersionKind(), err
	}
	obj, gvk, err := c.json.Decode(value, nil, nil)
	return obj, ptr.Deref(gvk, schema.GroupVersionKind{}), err
}

// encodeCustom writes a custom resource without its resourceVersion.
func (c *Codec) encodeCustom(u *unstructured.Unstructured) ([]byte, error) {
	meta, ok := u.Object["metadata"].(map[string]any)
	if !ok {
		return c.encodeContent(u.Object)
	}
	object := make(map[string]any, len(u.Object))
	for k, v := range u.Object {
		object[k] = v
	}
	kept := make(map[string]any, len(meta))
	for k, v := range meta {
		if k != "resourceVersion" {
			kept[k] = v
		}
	}
	object["metadata"] = kept
	return c.encodeContent(object)
}

func (c *Codec) encodeContent(object map[string]any) ([]byte, error) {
	if !c.CBOR {
		return valueLine(object)
	}
	body, err := direct.Marshal(object)
	return slices.Concat(cborPrefix, body), err
}

// cborPrefix is the tag of self-described CBOR, which no JSON begins with.
var cborPrefix = []byte{0xd9, 0xd9, 0xf7}

func valueLine(object map[string]any) ([]byte, error) {
	scratch := lines.Get().(*[]byte)
	defer lines.Put(scratch)
	out, err := jsonplan.AppendValue((*scratch)[:0], object)
	*scratch = out[:0]
	return append(append(make([]byte, 0, len(out)+1), out...), '\n'), err
}

var lines = sync.Pool{New: func() any { return new([]byte) }}

// line is JSON as upstream keeps it, with a line feed at the end.
func line(v any) ([]byte, error) {
	out, err := json.Marshal(v)
	return append(out, '\n'), err
}

func decodeCustom(key store.Key, value []byte) (store.Object, error) {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	read := kjson.UnmarshalCaseSensitivePreserveInts
	if bytes.HasPrefix(value, cborPrefix) {
		read = direct.Unmarshal
	}
	if err := read(value, &u.Object); err != nil {
		return nil, fmt.Errorf("decode %s: %w", key, err)
	}
	return u, nil
}
