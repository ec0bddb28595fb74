package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
	"proa/internal/store"
)

// marshaler is what generated Kubernetes messages offer.
type marshaler interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error) // fills it from the end
}

func marshalProto(m marshaler) ([]byte, error) {
	b := make([]byte, m.Size())
	return b, marshalInto(b, m)
}

// marshalInto fills b, which has the size of the message.
func marshalInto(b []byte, m marshaler) error {
	n, err := m.MarshalToSizedBuffer(b)
	if err == nil && n != len(b) {
		err = errSizeChanged
	}
	return err
}

// Every protobuf body is "k8s\0" and a runtime.Unknown message:
//
//	1 typeMeta {1 apiVersion, 2 kind}   2 raw   3 contentEncoding ""   4 contentType ""
var (
	magic        = []byte("k8s\x00")
	envelopeTail = []byte{0x1a, 0, 0x22, 0}
)

// newEnvelope is the part of the envelope that depends on the kind alone.
func newEnvelope(kind schema.GroupVersionKind) []byte {
	var meta []byte
	meta = appendField(meta, 1, kind.GroupVersion().String())
	meta = appendField(meta, 2, kind.Kind)
	return appendField(slices.Clone(magic), 1, string(meta))
}

// envelopeHead is everything before a message of raw bytes.
func envelopeHead(envelope []byte, raw int) []byte { return appendTag(slices.Clip(envelope), 2, raw) }

func envelopeSize(envelope []byte, raw int) int {
	return len(envelope) + fieldSize(raw) + len(envelopeTail)
}

// appendTag begins a length-delimited field (numbers below 16 take one byte).
func appendTag(b []byte, field, size int) []byte {
	return binary.AppendUvarint(append(b, byte(field<<3|2)), uint64(size))
}

func appendField(b []byte, field int, value string) []byte {
	return append(appendTag(b, field, len(value)), value...)
}

// fieldSize is the size of a length-delimited field with n bytes in it.
func fieldSize(n int) int { return 1 + varintSize(uint64(n)) + n }

func varintSize(n uint64) int { return (bits.Len64(n|1) + 6) / 7 }

// appendListMeta begins a Kubernetes list message, 1 metadata and
// repeated 2 items, the layout that every list type shares.
func appendListMeta(b []byte, meta marshaler) ([]byte, error) {
	raw, err := marshalProto(meta)
	if err != nil {
		return nil, fmt.Errorf("encode list metadata: %w", err)
	}
	return appendField(b, 1, string(raw)), nil
}

var errSizeChanged = errors.New("an object changed its size while a list was written")

func (f *Form) protoMessage(item *store.Item) (marshaler, error) {
	obj := item.Object
	if f.Convert != nil {
		var err error
		if obj, err = f.Convert(obj); err != nil {
			return nil, err
		}
	}
	return f.messageOf(obj)
}

func (f *Form) messageOf(obj apis.Object) (marshaler, error) {
	m, ok := obj.(marshaler)
	if !ok {
		return nil, fmt.Errorf("%s has no protobuf form", f.Kind)
	}
	return m, nil
}

func (f *Form) measure(obj apis.Object) (int, error) {
	m, err := f.messageOf(obj)
	if err != nil {
		return 0, err
	}
	return m.Size(), nil
}

// protoSize is the size of an item's message, without encoding it if that is
// not kept.
func (f *Form) protoSize(item *store.Item) (int, error) {
	if b, ok := f.peek(item); ok {
		return len(b), nil
	}
	if f.Convert == nil {
		return item.Length(f.measure)
	}
	obj, err := f.Convert(item.Object)
	if err != nil {
		return 0, err
	}
	return f.measure(obj)
}

// protoBody returns an item's message, which is kept; one that has no name goes to
// scratch, which it returns grown for the next call.
func (f *Form) protoBody(item *store.Item, scratch []byte) (body, grown []byte, err error) {
	if f.key != "" {
		b, err := f.body(item, true)
		return b, scratch, err
	}
	m, err := f.protoMessage(item)
	if err != nil {
		return nil, scratch, err
	}
	n := m.Size()
	if cap(scratch) < n {
		scratch = make([]byte, n+n/2)
	}
	return scratch[:n], scratch, marshalInto(scratch[:n], m)
}
