package codec

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"proa/internal/apiserver/negotiate"
	"proa/internal/store"
)

// keepMost is the longest list whose items' bytes are kept for the next reader.
// A longer one, or a page of one, would push out what watches and gets share; it
// uses what is kept and encodes the rest on the way out.
const keepMost = 4096

// keeps says whether the bytes of a list's items are kept.
func (l *List) keeps(items []*store.Item) bool {
	return len(items) <= keepMost && l.Meta.Continue == ""
}

// List is what a list response says besides its items.
type List struct {
	Kind schema.GroupVersionKind // PodList
	Meta metav1.ListMeta
	// ItemKinds is set for lists whose items name their kind (metadata lists).
	ItemKinds bool
}

// WriteList writes a list response item by item, without holding the whole body.
func (f *Form) WriteList(w io.Writer, l List, items []*store.Item) error {
	switch {
	case f.Media == negotiate.Protobuf:
		return f.writeProtoList(w, l, items)
	case f.Media == negotiate.CBOR:
		return f.writeCBORList(w, l, items)
	case f.Media == negotiate.YAML:
		return f.writeYAMLList(w, l, items)
	case f.Pretty:
		return f.writePrettyList(w, l, items)
	}
	return f.writeJSONList(w, l, items)
}

// head is the list's JSON up to and without the closing brace.
func (l List) head() ([]byte, error) {
	meta, err := json.Marshal(l.Meta)
	if err != nil {
		return nil, err
	}
	head, rest := joinHead(kindHead(l.Kind), append([]byte(`{"metadata":`), meta...))
	return slices.Concat(head, rest), nil
}

// reader makes the JSON of a list's items one after the other. What it returns is
// valid until the next call.
type reader struct {
	form    *Form
	kinds   bool // items name their kind
	keep    bool
	scratch []byte
}

func (f *Form) reader(l List, items []*store.Item) *reader {
	return &reader{form: f, kinds: l.ItemKinds, keep: l.keeps(items)}
}

func (r *reader) next(item *store.Item) (head, rest []byte, err error) {
	var body []byte
	if r.keep {
		body, err = r.form.body(item, true)
	} else {
		r.scratch, err = r.form.appendBody(r.scratch[:0], item, nil)
		body = r.scratch
	}
	if err != nil || !r.kinds {
		return nil, body, err
	}
	head, rest = joinHead(r.form.head, body)
	return head, rest, nil
}

func (f *Form) writeJSONList(w io.Writer, l List, items []*store.Item) error {
	head, err := l.head()
	if err != nil {
		return err
	}
	if err := writeAll(w, head, []byte(`,"items":[`)); err != nil {
		return err
	}
	if !l.keeps(items) {
		err := writeChunks(w, items, func(b []byte, i int, m *Memo) ([]byte, error) {
			return f.appendListed(b, l, items[i], i == 0, m)
		})
		if err != nil {
			return err
		}
		return writeAll(w, []byte("]}\n"))
	}
	read, comma := f.reader(l, items), []byte(nil)
	for _, item := range items {
		head, body, err := read.next(item)
		if err != nil {
			return err
		}
		if err := writeAll(w, comma, head, body); err != nil {
			return err
		}
		comma = []byte(",")
	}
	return writeAll(w, []byte("]}\n"))
}

// appendListed appends an item of a long list, with the comma before it.
func (f *Form) appendListed(b []byte, l List, item *store.Item, first bool, m *Memo) ([]byte, error) {
	if !first {
		b = append(b, ',')
	}
	if !l.ItemKinds {
		return f.appendBody(b, item, &m.json)
	}
	start := len(b)
	b, err := f.appendBody(b, item, nil)
	if err != nil {
		return b, err
	}
	if head, rest := joinHead(f.head, b[start:]); head != nil {
		b = append(b[:start], slices.Concat(head, rest)...)
	}
	return b, nil
}

// writePrettyList writes what json.MarshalIndent would, an item at a time.
func (f *Form) writePrettyList(w io.Writer, l List, items []*store.Item) error {
	head, err := l.head()
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, append(head, '}'), "", "  "); err != nil {
		return err
	}
	start := bytes.TrimSuffix(b.Bytes(), []byte("\n}"))
	if len(items) == 0 {
		return writeAll(w, start, []byte(",\n  \"items\": []\n}"))
	}
	if err := writeAll(w, start, []byte(",\n  \"items\": [")); err != nil {
		return err
	}
	read := f.reader(l, items)
	for i, item := range items {
		head, body, err := read.next(item)
		if err != nil {
			return err
		}
		b.Reset()
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("\n    ")
		if err := json.Indent(&b, slices.Concat(head, body), "    ", "  "); err != nil {
			return err
		}
		if _, err := w.Write(b.Bytes()); err != nil {
			return err
		}
	}
	return writeAll(w, []byte("\n  ]\n}"))
}

// writeYAMLList writes keys in sorted order, as the YAML form of any object:
// apiVersion, items, kind, metadata.
func (f *Form) writeYAMLList(w io.Writer, l List, items []*store.Item) error {
	if len(items) == 0 {
		var b bytes.Buffer
		if err := f.writeJSONList(&b, l, nil); err != nil {
			return err
		}
		return WriteText(w, negotiate.YAML, b.Bytes())
	}
	if err := writeAll(w, []byte("apiVersion: "+l.Kind.GroupVersion().String()+"\nitems:\n")); err != nil {
		return err
	}
	read := f.reader(l, items)
	for _, item := range items {
		head, body, err := read.next(item)
		if err != nil {
			return err
		}
		text, err := yaml.JSONToYAML(slices.Concat([]byte("["), head, body, []byte("]")))
		if err != nil {
			return err
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	tail, err := yaml.Marshal(map[string]any{"kind": l.Kind.Kind, "metadata": l.Meta})
	if err != nil {
		return err
	}
	return writeAll(w, tail)
}

// writeProtoList needs the size of everything before the first byte: it adds up
// the items' sizes, then encodes and writes one after the other.
func (f *Form) writeProtoList(w io.Writer, l List, items []*store.Item) error {
	meta, err := appendListMeta(nil, &l.Meta)
	if err != nil {
		return err
	}
	sizes, err := f.protoSizes(items, l.keeps(items))
	if err != nil {
		return err
	}
	total := len(meta)
	for _, n := range sizes {
		total += fieldSize(int(n))
	}
	if err := writeAll(w, envelopeHead(newEnvelope(l.Kind), total), meta); err != nil {
		return err
	}
	if !l.keeps(items) {
		err := writeChunks(w, items, func(b []byte, i int, m *Memo) ([]byte, error) {
			return f.appendProto(b, items[i], int(sizes[i]), m)
		})
		if err != nil {
			return err
		}
		return writeAll(w, envelopeTail)
	}
	var tag, scratch []byte
	for i, item := range items {
		var body []byte
		if body, scratch, err = f.protoBody(item, scratch); err != nil {
			return err
		}
		if len(body) != int(sizes[i]) {
			return errSizeChanged
		}
		tag = appendTag(tag[:0], 2, len(body))
		if err := writeAll(w, tag, body); err != nil {
			return err
		}
	}
	return writeAll(w, envelopeTail)
}

func (f *Form) protoSizes(items []*store.Item, keeps bool) ([]int32, error) {
	sizes := make([]int32, len(items))
	size := func(_ []byte, i int, _ *Memo) ([]byte, error) {
		n, err := f.protoSize(items[i])
		sizes[i] = int32(n)
		return nil, err
	}
	if !keeps {
		return sizes, writeChunks(io.Discard, items, size)
	}
	for i := range items {
		if _, err := size(nil, i, nil); err != nil {
			return nil, err
		}
	}
	return sizes, nil
}

// appendProto appends an item of a long list as the list message's field.
func (f *Form) appendProto(b []byte, item *store.Item, size int, m *Memo) ([]byte, error) {
	return f.appendMessage(appendTag(b, 2, size), item, size, m)
}

// appendMessage appends an item's message of a known size. The memo is of what else b holds.
func (f *Form) appendMessage(b []byte, item *store.Item, size int, m *Memo) ([]byte, error) {
	if kept, ok := f.peek(item); ok {
		if len(kept) != size {
			return b, errSizeChanged
		}
		return append(b, kept...), nil
	}
	message, err := f.protoMessage(item)
	if err != nil {
		return b, err
	}
	return m.proto.Append(b, message, size)
}
