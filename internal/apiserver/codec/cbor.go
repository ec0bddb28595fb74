package codec

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/watch"
	kjson "sigs.k8s.io/json"

	"proa/internal/store"
)

// CBOR (KEP-4222) is written as JSON is: what is kept of an object is its map
// without kind and apiVersion, which are put in front and counted in. Documents,
// and the objects within events, start with the tag of self-described CBOR.

var selfDescribed = []byte{0xd9, 0xd9, 0xf7}

const (
	cborArray = 0x80
	cborMap   = 0xa0
)

// appendCBORHead appends the head of a map or an array of n elements.
func appendCBORHead(b []byte, major byte, n int) []byte {
	switch {
	case n < 24:
		return append(b, major|byte(n))
	case n < 1<<8:
		return append(b, major|24, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, major|25), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, major|26), uint32(n))
}

// cborFields splits a map into the number of its entries and their bytes.
func cborFields(doc []byte) (n int, fields []byte, ok bool) {
	if len(doc) == 0 || doc[0]&0xe0 != cborMap {
		return 0, nil, false
	}
	switch short := doc[0] & 0x1f; {
	case short < 24:
		return int(short), doc[1:], true
	case short == 24 && len(doc) > 1:
		return int(doc[1]), doc[2:], true
	case short == 25 && len(doc) > 2:
		return int(binary.BigEndian.Uint16(doc[1:])), doc[3:], true
	}
	return 0, nil, false
}

// cborText is a string as upstream writes it.
func cborText(s string) []byte {
	b, _ := direct.Marshal(s) // a string: cannot fail
	return b
}

var cborKindKey = cborText("kind")

// cborKind is the two entries that name a kind.
func cborKind(kind schema.GroupVersionKind) []byte {
	if kind.Kind == "" {
		return nil
	}
	return bytes.Join([][]byte{cborKindKey, cborText(kind.Kind), cborText("apiVersion"), cborText(kind.GroupVersion().String())}, nil)
}

// joinCBOR returns the two parts of a map with its kind in front. An object that
// holds its kind itself keeps it.
func joinCBOR(kind, body []byte) (head, rest []byte) {
	n, fields, ok := cborFields(body)
	if kind == nil || !ok || bytes.HasPrefix(fields, cborKindKey) {
		return nil, body
	}
	return append(appendCBORHead(nil, cborMap, n+2), kind...), fields
}

// encodeCBOR makes the map of an object, with its kind only if it is unstructured.
func encodeCBOR(obj any) ([]byte, error) {
	u, ok := obj.(runtime.Unstructured)
	if !ok {
		return direct.Marshal(obj)
	}
	content, bare := u.UnstructuredContent(), map[string]any{}
	for k, v := range content {
		if k != "kind" && k != "apiVersion" {
			bare[k] = v
		}
	}
	body, err := direct.Marshal(bare)
	if err != nil {
		return nil, err
	}
	apiVersion, _ := content["apiVersion"].(string)
	kind, _ := content["kind"].(string)
	head, rest := joinCBOR(cborKind(schema.FromAPIVersionAndKind(apiVersion, kind)), body)
	return append(head, rest...), nil
}

// cborOf is a JSON document as CBOR.
func cborOf(doc []byte) ([]byte, error) {
	var v any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(doc, &v); err != nil {
		return nil, err
	}
	return direct.Marshal(v)
}

// JSONOf is a CBOR document, a patch, as JSON. The error is a 400 Status.
func JSONOf(doc []byte) ([]byte, error) {
	var v any
	if err := direct.Unmarshal(doc, &v); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	out, err := json.Marshal(v)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	return out, nil
}

func (f *Form) writeCBORItem(w io.Writer, body []byte) error {
	head, rest := joinCBOR(f.head, body)
	return writeAll(w, selfDescribed, head, rest)
}

func (f *Form) writeCBORList(w io.Writer, l List, items []*store.Item) error {
	meta, err := direct.Marshal(l.Meta)
	if err != nil {
		return err
	}
	const fields = 4
	start := append(appendCBORHead(bytes.Clone(selfDescribed), cborMap, fields), cborKind(l.Kind)...)
	start = append(append(append(start, cborText("metadata")...), meta...), cborText("items")...)
	if err := writeAll(w, appendCBORHead(start, cborArray, len(items))); err != nil {
		return err
	}
	keep := l.keeps(items)
	for _, item := range items {
		body, err := f.body(item, keep)
		if err != nil {
			return err
		}
		var head []byte
		if l.ItemKinds {
			head, body = joinCBOR(f.head, body)
		}
		if err := writeAll(w, head, body); err != nil {
			return err
		}
	}
	return nil
}

func writeCBORFrame(w io.Writer, typ watch.EventType, kind, body []byte) error {
	head, rest := joinCBOR(kind, body)
	frame := appendCBORHead(bytes.Clone(selfDescribed), cborMap, 2)
	frame = append(append(append(frame, cborText("type")...), cborText(string(typ))...), cborText("object")...)
	return writeAll(w, frame, selfDescribed, head, rest)
}
