package registry

import (
	"bytes"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	kjson "sigs.k8s.io/json"

	"proa/internal/apis"
	"proa/internal/apiserver/wire"
	"proa/internal/store"
)

// Codec is how objects are kept: as upstream keeps them in etcd, the "k8s\0"
// envelope of protobuf for built-in kinds and JSON for custom resources, so that a
// cluster can move between both.
type Codec struct {
	catalogue *apis.Catalogue
	scheme    *runtime.Scheme
	protobuf  *protobuf.Serializer
}

var _ store.Codec = (*Codec)(nil)

// NewCodec returns the codec for the kinds of a catalogue.
func NewCodec(c *apis.Catalogue) *Codec {
	s := apis.Scheme()
	return &Codec{catalogue: c, scheme: s, protobuf: protobuf.NewSerializer(s, s)}
}

// Indexes are the indexes that the kinds of a catalogue ask for, to open their
// store with.
func Indexes(c *apis.Catalogue) []store.Index {
	var all []store.Index
	for _, r := range c.All() {
		for _, field := range r.Indexed {
			all = append(all, store.Index{Resource: r.GroupResource(), Field: field, Value: r.Fields[field]})
		}
	}
	return all
}

// Encode implements store.Codec.
func (c *Codec) Encode(key store.Key, obj store.Object) ([]byte, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return encodeCustom(u)
	}
	gvk, err := c.kind(key, obj)
	if err != nil {
		return nil, err
	}
	stored := wire.Typed(obj, gvk) // a copy of everything but what it points to
	stored.SetResourceVersion("")
	var out bytes.Buffer
	if s, ok := obj.(interface{ Size() int }); ok {
		out.Grow(s.Size() + 64)
	}
	if err := c.protobuf.Encode(stored, &out); err != nil {
		return nil, fmt.Errorf("encode %s: %w", key, err)
	}
	return out.Bytes(), nil
}

func (c *Codec) kind(key store.Key, obj store.Object) (schema.GroupVersionKind, error) {
	if r, ok := c.catalogue.Stored(key.Resource); ok {
		return r.GroupVersionKind(), nil
	}
	kinds, _, err := c.scheme.ObjectKinds(obj)
	if err != nil {
		return schema.GroupVersionKind{}, fmt.Errorf("encode %s: %w", key, err)
	}
	return kinds[0], nil
}

// encodeCustom writes a custom resource without its resourceVersion.
func encodeCustom(u *unstructured.Unstructured) ([]byte, error) {
	meta, ok := u.Object["metadata"].(map[string]any)
	if !ok {
		return json.Marshal(u.Object)
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
	return json.Marshal(object)
}

var protobufPrefix = []byte("k8s\x00")

// Decode implements store.Codec. The value is not kept.
func (c *Codec) Decode(key store.Key, value []byte) (store.Object, error) {
	if !bytes.HasPrefix(value, protobufPrefix) {
		u := &unstructured.Unstructured{Object: map[string]any{}}
		if err := kjson.UnmarshalCaseSensitivePreserveInts(value, &u.Object); err != nil {
			return nil, fmt.Errorf("decode %s: %w", key, err)
		}
		return u, nil
	}
	decoded, _, err := c.protobuf.Decode(value, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", key, err)
	}
	obj, ok := decoded.(store.Object)
	if !ok {
		return nil, fmt.Errorf("decode %s: %T is not an API object", key, decoded)
	}
	return wire.Bare(obj), nil
}
