package registry

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/utils/ptr"

	"proa/internal/apis"
	"proa/internal/apiserver/wire"
	"proa/internal/store"
)

// Codec is how objects are kept: as upstream keeps them in etcd, the "k8s\0"
// envelope of protobuf for built-in kinds in upstream's storage versions and JSON
// for custom resources, their definitions and API services, so that a cluster can
// move between both. What lies in another version is converted when it is read.
type Codec struct {
	// CBOR has custom resources written as CBOR (KEP-4222). What is in the other form
	// is read whatever this says.
	CBOR bool

	catalogue *apis.Catalogue
	scheme    *runtime.Scheme
	protobuf  *protobuf.Serializer
	json      *json.Serializer
	storage   map[schema.GroupKind]*apis.Served // versions to keep that are not the hub's
	heads     sync.Map                          // schema.GroupVersionKind -> []byte
}

var _ store.Codec = (*Codec)(nil)

// NewCodec returns the codec for the kinds of a catalogue.
func NewCodec(c *apis.Catalogue) *Codec {
	s := apis.Scheme()
	return &Codec{
		catalogue: c, scheme: s, protobuf: protobuf.NewSerializer(s, s),
		json:    json.NewSerializerWithOptions(json.DefaultMetaFactory, s, s, json.SerializerOptions{}),
		storage: storageVersions(c),
	}
}

func storageVersions(c *apis.Catalogue) map[schema.GroupKind]*apis.Served {
	kept := map[schema.GroupKind]*apis.Served{}
	for _, r := range c.All() {
		for _, s := range slices.Concat(r.Readable, r.Also) {
			if s.Version == r.Storage && s.Group == r.Group {
				kept[r.GroupVersionKind().GroupKind()] = &s
			}
		}
	}
	return kept
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
		return c.encodeCustom(u)
	}
	gvk, err := c.kind(key, obj)
	if err != nil {
		return nil, err
	}
	if obj.GetResourceVersion() != "" {
		obj = wire.Typed(obj, gvk) // a copy of everything but what it points to
		obj.SetResourceVersion("")
	}
	if value, ok, err := encodeJSON(gvk, obj); ok {
		return value, err
	}
	if s := c.storage[gvk.GroupKind()]; s != nil {
		if obj, err = s.FromHub(obj); err != nil {
			return nil, fmt.Errorf("encode %s: %w", key, err)
		}
		gvk.Version = s.Version
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

var (
	protobufPrefix  = []byte("k8s\x00")
	encryptedPrefix = []byte("k8s:enc:")
)

// Decode implements store.Codec. The value is not kept.
func (c *Codec) Decode(key store.Key, value []byte) (store.Object, error) {
	if bytes.HasPrefix(value, encryptedPrefix) {
		return nil, fmt.Errorf("decode %s: the value is encrypted, and no --encryption-provider-config says how", key)
	}
	r, known := c.catalogue.Stored(key.Resource)
	known = known && r.Custom == nil
	if !known && !bytes.HasPrefix(value, protobufPrefix) {
		return decodeCustom(key, value)
	}
	decoded, gvk, err := c.decodeBuiltin(r, value)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", key, err)
	}
	obj, ok := decoded.(store.Object)
	if !ok {
		return nil, fmt.Errorf("decode %s: %T is not an API object", key, decoded)
	}
	if known && gvk.GroupVersion() != r.GroupVersionKind().GroupVersion() {
		if obj, err = toHub(r, gvk, obj); err != nil {
			return nil, fmt.Errorf("decode %s: %w", key, err)
		}
	}
	completeEmbedded(obj)
	return wire.Bare(obj), nil
}

func (c *Codec) decodeBuiltin(r *apis.Resource, value []byte) (runtime.Object, schema.GroupVersionKind, error) {
	if !bytes.HasPrefix(value, protobufPrefix) {
		return c.decodeJSON(r, value)
	}
	obj, gvk, err := c.protobuf.Decode(value, nil, nil)
	return obj, ptr.Deref(gvk, schema.GroupVersionKind{}), err
}

// toHub converts an object that lies in the store in another version.
func toHub(r *apis.Resource, gvk schema.GroupVersionKind, obj store.Object) (store.Object, error) {
	for _, s := range slices.Concat(r.Readable, r.Also) {
		if s.Group == gvk.Group && s.Version == gvk.Version {
			return s.ToHub(obj)
		}
	}
	return nil, fmt.Errorf("the store holds it as %s, which is not known", gvk)
}
