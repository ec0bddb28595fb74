// Package codec turns objects into bytes and back.
//
// A revision of an object is encoded at most once per media type and version:
// what is kept is the object alone, without kind and apiVersion and without
// any envelope. A get, an item of a list and the frame of a watch event are that
// same slice between a few constant bytes:
//
//	get    {"kind":"Pod","apiVersion":"v1", | "metadata":...}
//	list   {...,"items":[{ | "metadata":...} | ,{ | ...
//	watch  {"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1", | "metadata":...} | }
//
// and in protobuf, where the object is the raw field of runtime.Unknown, of the
// list message's items field, or of the event's object.
package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"proa/internal/apis"
	"proa/internal/apiserver/codec/jsonplan"
	"proa/internal/apiserver/negotiate"
	"proa/internal/store"
)

// Form is one way of writing objects of one kind: a media type and a version.
// It is made per request and holds no state of its own.
type Form struct {
	Kind    schema.GroupVersionKind
	Media   negotiate.Media
	Pretty  bool
	Convert func(apis.Object) (apis.Object, error) // from the stored object; nil: as it is

	key      string // names the encoding in an Item; empty: nothing is kept
	head     []byte // {"kind":...,"apiVersion":..., as it precedes an object's own fields
	envelope []byte // protobuf: what precedes the message
}

// NewForm returns the form of a kind in a media type.
func NewForm(kind schema.GroupVersionKind, f negotiate.Format, convert func(apis.Object) (apis.Object, error)) *Form {
	key := string(f.Media)
	if f.Media == negotiate.YAML {
		key = string(negotiate.JSON)
	}
	if convert != nil {
		key += ";" + kind.GroupVersion().String()
	}
	out := &Form{Media: f.Media, Pretty: f.Pretty, Convert: convert, key: key}
	out.setKind(kind)
	return out
}

func (f *Form) setKind(kind schema.GroupVersionKind) {
	f.Kind, f.head, f.envelope = kind, kindHead(kind), newEnvelope(kind)
	if f.Media == negotiate.CBOR {
		f.head = cborKind(kind)
	}
}

// Variant returns the same form for what convert makes of an object (its
// metadata, say), kept under another name. An empty name keeps nothing.
func (f *Form) Variant(name string, kind schema.GroupVersionKind, convert func(apis.Object) (apis.Object, error)) *Form {
	v := *f
	v.Convert, v.key = convert, ""
	v.setKind(kind)
	if name != "" {
		v.key = f.key + ";" + name
	}
	return &v
}

// ContentType is the header value of a response in this form.
func (f *Form) ContentType() string { return string(f.Media) }

// WriteItem writes one object as a whole response body.
func (f *Form) WriteItem(w io.Writer, item *store.Item) error {
	body, err := f.body(item, true)
	if err != nil {
		return err
	}
	if f.Media == negotiate.Protobuf {
		return writeAll(w, envelopeHead(f.envelope, len(body)), body, envelopeTail)
	}
	if f.Media == negotiate.CBOR {
		return f.writeCBORItem(w, body)
	}
	head, rest := joinHead(f.head, body)
	if f.Media == negotiate.JSON && !f.Pretty {
		return writeAll(w, head, rest, newline)
	}
	return WriteText(w, f.Media, slices.Concat(head, rest))
}

// Append writes one object as compact JSON with its kind, for use inside
// another document.
func (f *Form) Append(w io.Writer, item *store.Item) error {
	body, err := f.body(item, false)
	if err != nil {
		return err
	}
	head, rest := joinHead(f.head, body)
	return writeAll(w, head, rest)
}

// Partial is an object's metadata alone. It shares the metadata's maps and
// slices with the object.
func Partial(obj apis.Object) *metav1.PartialObjectMetadata {
	if a, ok := obj.(metav1.ObjectMetaAccessor); ok {
		if m, ok := a.GetObjectMeta().(*metav1.ObjectMeta); ok {
			return &metav1.PartialObjectMetadata{ObjectMeta: *m}
		}
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: obj.GetName(), GenerateName: obj.GetGenerateName(), Namespace: obj.GetNamespace(), SelfLink: obj.GetSelfLink(),
		UID: obj.GetUID(), ResourceVersion: obj.GetResourceVersion(), Generation: obj.GetGeneration(),
		CreationTimestamp: obj.GetCreationTimestamp(), DeletionTimestamp: obj.GetDeletionTimestamp(),
		DeletionGracePeriodSeconds: obj.GetDeletionGracePeriodSeconds(), Labels: obj.GetLabels(), Annotations: obj.GetAnnotations(),
		OwnerReferences: obj.GetOwnerReferences(), Finalizers: obj.GetFinalizers(), ManagedFields: obj.GetManagedFields(),
	}}
}

// WriteObject writes an object that is no item: a Status, a Table, a discovery
// document. Its kind is written as given.
func WriteObject(w io.Writer, f negotiate.Format, kind schema.GroupVersionKind, obj any) error {
	if f.Media == negotiate.Protobuf {
		m, ok := obj.(marshaler)
		if !ok {
			return fmt.Errorf("%s has no protobuf form", kind)
		}
		body, err := marshalProto(m)
		if err != nil {
			return err
		}
		return writeAll(w, envelopeHead(newEnvelope(kind), len(body)), body, envelopeTail)
	}
	body, err := marshalJSON(obj)
	if err != nil {
		return err
	}
	head, rest := joinHead(kindHead(kind), body)
	if f.Media == negotiate.JSON && !f.Pretty {
		return writeAll(w, head, rest, newline)
	}
	return WriteText(w, f.Media, slices.Concat(head, rest))
}

var newline = []byte{'\n'}

// WriteText writes a JSON document as YAML, CBOR or indented.
func WriteText(w io.Writer, m negotiate.Media, doc []byte) error {
	if m == negotiate.CBOR {
		body, err := cborOf(doc)
		if err != nil {
			return err
		}
		return writeAll(w, selfDescribed, body)
	}
	if m == negotiate.YAML {
		text, err := yaml.JSONToYAML(doc)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, doc, "", "  "); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

// body returns the bare bytes of an item. With keep they stay with the item for
// whoever asks next, as long as the store has room for encodings.
func (f *Form) body(item *store.Item, keep bool) ([]byte, error) {
	if f.key == "" {
		return f.encode(item.Object)
	}
	if keep {
		return item.Encoding(f.key, f.encode)
	}
	if b, ok := f.peek(item); ok {
		return b, nil
	}
	return f.encode(item.Object)
}

var errNotKept = errors.New("encoding is not kept")

// peek returns the bytes of an item if they are kept.
func (f *Form) peek(item *store.Item) ([]byte, bool) {
	if f.key == "" {
		return nil, false
	}
	b, err := item.Encoding(f.key, func(apis.Object) ([]byte, error) { return nil, errNotKept })
	return b, err == nil
}

// appendBody appends the bare JSON of an item that is not to be kept. The memo is of
// what else b holds.
func (f *Form) appendBody(b []byte, item *store.Item, m *jsonplan.Memo) ([]byte, error) {
	if kept, ok := f.peek(item); ok {
		return append(b, kept...), nil
	}
	if f.Media == negotiate.CBOR {
		raw, err := f.encode(item.Object)
		return append(b, raw...), err
	}
	obj := item.Object
	if f.Convert != nil {
		var err error
		if obj, err = f.Convert(obj); err != nil {
			return b, err
		}
	}
	return appendJSON(b, obj, m)
}

// encode makes the bare bytes of an object: JSON without kind and apiVersion
// unless the object itself holds them, or a protobuf message without envelope.
func (f *Form) encode(obj apis.Object) ([]byte, error) {
	if f.Convert != nil {
		var err error
		if obj, err = f.Convert(obj); err != nil {
			return nil, err
		}
	}
	if f.Media == negotiate.Protobuf {
		m, ok := obj.(marshaler)
		if !ok {
			return nil, fmt.Errorf("%s has no protobuf form", f.Kind)
		}
		return marshalProto(m)
	}
	if f.Media == negotiate.CBOR {
		return encodeCBOR(obj)
	}
	return marshalJSON(obj)
}

// marshalJSON is json.Marshal, in a fraction of its time.
func marshalJSON(obj any) ([]byte, error) {
	scratch := scratches.Get().(*[]byte)
	defer scratches.Put(scratch)
	b, err := appendJSON((*scratch)[:0], obj, nil)
	*scratch = b[:0]
	if err != nil {
		return nil, err
	}
	return bytes.Clone(b), nil // what is kept has no room to spare
}

var scratches = sync.Pool{New: func() any { return new([]byte) }}

// appendJSON appends an object's JSON to b.
func appendJSON(b []byte, obj any, m *jsonplan.Memo) ([]byte, error) {
	if u, ok := obj.(runtime.Unstructured); ok {
		return jsonplan.AppendValue(b, u.UnstructuredContent())
	}
	if v := reflect.ValueOf(obj); v.Kind() == reflect.Pointer && !v.IsNil() {
		return m.Append(b, obj)
	}
	raw, err := json.Marshal(obj)
	return append(b, raw...), err
}

// kindHead is the start of a JSON object of a kind, ready for more fields.
func kindHead(kind schema.GroupVersionKind) []byte {
	if kind.Kind == "" {
		return nil
	}
	head := appendString([]byte(`{"kind":`), kind.Kind)
	if kind.Version == "" {
		return append(head, ',')
	}
	head = appendString(append(head, `,"apiVersion":`...), kind.GroupVersion().String())
	return append(head, ',')
}

// joinHead returns the two parts of body with its kind in front. An object that
// holds its kind itself keeps it.
func joinHead(kindHead, body []byte) (head, rest []byte) {
	switch {
	case kindHead == nil || hasKind(body):
		return nil, body
	case len(body) == 2: // {}
		return kindHead[:len(kindHead)-1], body[1:]
	}
	return kindHead, body[1:]
}

func appendString(b []byte, s string) []byte {
	quoted, _ := json.Marshal(s) // a string: cannot fail
	return append(b, quoted...)
}

// hasKind reports whether an encoded object starts with its kind or apiVersion:
// typed objects put TypeMeta first, and in sorted keys apiVersion comes first.
func hasKind(body []byte) bool {
	return bytes.HasPrefix(body, []byte(`{"apiVersion":`)) || bytes.HasPrefix(body, []byte(`{"kind":`))
}

func writeAll(w io.Writer, parts ...[]byte) error {
	for _, p := range parts {
		if len(p) == 0 {
			continue
		}
		if _, err := w.Write(p); err != nil {
			return err
		}
	}
	return nil
}
