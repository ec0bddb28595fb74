package registry

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"

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
	heads     sync.Map // schema.GroupVersionKind -> []byte
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
	if obj.GetResourceVersion() != "" {
		obj = wire.Typed(obj, gvk) // a copy of everything but what it points to
		obj.SetResourceVersion("")
	}
	m, ok := obj.(message)
	if !ok {
		return nil, fmt.Errorf("encode %s: %T has no protobuf form", key, obj)
	}
	out, err := appendEnvelope(c.head(gvk), m)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", key, err)
	}
	return out, nil
}

// message is what generated Kubernetes types offer.
type message interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
}

// head is the part of a kind's envelope before the object: the magic number and
// field 1 of runtime.Unknown, the type.
func (c *Codec) head(gvk schema.GroupVersionKind) []byte {
	if head, ok := c.heads.Load(gvk); ok {
		return head.([]byte)
	}
	apiVersion, kind := gvk.ToAPIVersionAndKind()
	var of []byte
	of = appendField(of, 1, []byte(apiVersion))
	of = appendField(of, 2, []byte(kind))
	head := appendField(slices.Clone(protobufPrefix), 1, of)
	c.heads.Store(gvk, head)
	return head
}

func appendField(b []byte, field byte, value []byte) []byte {
	return append(binary.AppendUvarint(append(b, field<<3|2), uint64(len(value))), value...)
}

// envelopeTail is the empty contentEncoding and contentType of runtime.Unknown.
var envelopeTail = []byte{0x1a, 0, 0x22, 0}

// appendEnvelope returns an object as field 2 of runtime.Unknown, in one
// allocation of the exact size.
func appendEnvelope(head []byte, m message) ([]byte, error) {
	size := m.Size()
	out := make([]byte, 0, len(head)+1+(bits.Len64(uint64(size)|1)+6)/7+size+len(envelopeTail))
	out = binary.AppendUvarint(append(append(out, head...), 2<<3|2), uint64(size))
	start := len(out)
	out = out[:start+size]
	n, err := m.MarshalToSizedBuffer(out[start:])
	if err == nil && n != size {
		err = errors.New("an object changed while it was encoded")
	}
	return append(out, envelopeTail...), err
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
