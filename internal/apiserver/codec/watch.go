package codec

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"proa/internal/apiserver/codec/jsonplan"
	"proa/internal/apiserver/negotiate"
	"proa/internal/store"
)

// WriteEvent writes one event of a watch as a frame: a line of JSON, a protobuf
// WatchEvent behind its length in four bytes, or a CBOR map.
func (f *Form) WriteEvent(w io.Writer, typ watch.EventType, item *store.Item) error {
	body, err := f.body(item, true)
	if err != nil {
		return err
	}
	return f.writeFrame(w, typ, f.head, f.envelope, body)
}

// AppendInitial appends what WriteEvent writes, for one of the many objects that a
// watch begins with: its bytes are used when they are kept already, and not kept
// otherwise. The memo is of what else b holds.
func (f *Form) AppendInitial(b []byte, typ watch.EventType, item *store.Item, m *Memo) ([]byte, error) {
	switch {
	case f.Media == negotiate.Protobuf:
		size, err := f.protoSize(item)
		if err != nil {
			return b, err
		}
		b, err = f.appendMessage(append(b, protoFrameHead(typ, f.envelope, size)...), item, size, m)
		return append(b, envelopeTail...), err
	case f.Media == negotiate.JSON && f.Convert == nil && len(f.head) > 0:
		return f.appendPlain(b, typ, item, &m.json)
	}
	scratch := scratches.Get().(*[]byte)
	defer scratches.Put(scratch)
	body, err := f.appendBody((*scratch)[:0], item, nil)
	if *scratch = body[:0]; err != nil {
		return b, err
	}
	out := bytes.NewBuffer(b)
	err = f.writeFrame(out, typ, f.head, f.envelope, body)
	return out.Bytes(), err
}

// appendPlain appends the line of an object as it is stored. The brace that the object
// begins with becomes the comma behind its kind, so that nothing has to be moved.
func (f *Form) appendPlain(b []byte, typ watch.EventType, item *store.Item, m *jsonplan.Memo) ([]byte, error) {
	b = append(b, eventHeads[typ]...)
	start := len(b)
	b = append(b, f.head[:len(f.head)-1]...)
	brace := len(b)
	b, err := f.appendBody(b, item, m)
	if err != nil {
		return b, err
	}
	switch body := b[brace:]; {
	case hasKind(body): // it keeps its own
		m.Reset()
		b = append(b[:start], body...)
	case len(body) == 2: // {}
		b = append(b[:brace], '}')
	default:
		b[brace] = ','
	}
	return append(b, eventTail...), nil
}

// WriteError writes an ERROR event. It is the last of a watch.
func (f *Form) WriteError(w io.Writer, s *metav1.Status) error {
	return f.WriteOther(w, watch.Error, StatusKind, s)
}

// WriteOther writes an event whose object is not the form's kind: a Table, a Status.
func (f *Form) WriteOther(w io.Writer, typ watch.EventType, kind schema.GroupVersionKind, obj any) error {
	var body []byte
	var err error
	if f.Media == negotiate.Protobuf {
		m, ok := obj.(marshaler)
		if !ok {
			return fmt.Errorf("%T has no protobuf form", obj)
		}
		body, err = marshalProto(m)
	} else {
		body, err = marshalJSON(obj)
	}
	if err != nil {
		return err
	}
	if f.Media == negotiate.CBOR {
		head, rest := joinHead(kindHead(kind), body)
		if body, err = cborOf(slices.Concat(head, rest)); err != nil {
			return err
		}
		return writeCBORFrame(w, typ, nil, body)
	}
	return f.writeFrame(w, typ, kindHead(kind), newEnvelope(kind), body)
}

func (f *Form) writeFrame(w io.Writer, typ watch.EventType, kindHead, envelope, body []byte) error {
	if f.Media == negotiate.Protobuf {
		return writeAll(w, protoFrameHead(typ, envelope, len(body)), body, envelopeTail)
	}
	if f.Media == negotiate.CBOR {
		return writeCBORFrame(w, typ, kindHead, body)
	}
	head, rest := joinHead(kindHead, body)
	return writeAll(w, eventHeads[typ], head, rest, eventTail)
}

var (
	eventHeads = map[watch.EventType][]byte{
		watch.Added:    eventHead(watch.Added),
		watch.Modified: eventHead(watch.Modified),
		watch.Deleted:  eventHead(watch.Deleted),
		watch.Bookmark: eventHead(watch.Bookmark),
		watch.Error:    eventHead(watch.Error),
	}
	eventTail = []byte("}\n")
)

func eventHead(typ watch.EventType) []byte { return []byte(`{"type":"` + string(typ) + `","object":`) }

// protoFrameHead is everything before the object's own bytes. From outside in:
// the frame's length; WatchEvent {1 type, 2 object}; RawExtension {1 raw};
// envelope.
func protoFrameHead(typ watch.EventType, envelope []byte, body int) []byte {
	inner := envelopeSize(envelope, body)
	extension := fieldSize(inner)
	event := fieldSize(len(typ)) + fieldSize(extension)
	b := make([]byte, 0, 64+len(envelope))
	b = binary.BigEndian.AppendUint32(b, uint32(event))
	b = appendField(b, 1, string(typ))
	b = appendTag(b, 2, extension)
	b = appendTag(b, 1, inner)
	b = append(b, envelope...)
	return appendTag(b, 2, body)
}

// StreamType is the Content-Type of a watch response.
func (f *Form) StreamType() string {
	if f.Media == negotiate.Protobuf {
		return string(f.Media) + ";stream=watch"
	}
	if f.Media == negotiate.CBOR {
		return string(f.Media) + "-seq"
	}
	return string(f.Media)
}

// StatusKind is how a Status names itself: in the core group's version.
var StatusKind = schema.GroupVersionKind{Version: "v1", Kind: "Status"}
