// Package table prints objects as rows, the form kubectl get asks for. Columns
// and cells come from the catalogue.
package table

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
	"proa/internal/apiserver/codec"
	"proa/internal/apiserver/negotiate"
	"proa/internal/store"
)

// Printer writes tables of one resource for one request.
type Printer struct {
	Resource *apis.Resource
	Version  string // of meta.k8s.io that the client asked for
	Include  metav1.IncludeObjectPolicy
	Form     *codec.Form // of the whole object, for Include "Object"
	Now      time.Time   // that ages are told at
}

// Include reads the includeObject query parameter. The error is a 400 Status.
func Include(query url.Values) (metav1.IncludeObjectPolicy, error) {
	switch p := metav1.IncludeObjectPolicy(query.Get("includeObject")); p {
	case "":
		return metav1.IncludeMetadata, nil
	case metav1.IncludeNone, metav1.IncludeMetadata, metav1.IncludeObject:
		return p, nil
	default:
		return "", apierrors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: includeObject: Invalid value: %q: must be 'Metadata', 'Object', 'None', or empty", p))
	}
}

// Kind is the kind of what Write writes.
func (p *Printer) Kind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: metav1.GroupName, Version: p.Version, Kind: "Table"}
}

var defaultColumns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]},
	{Name: "Created At", Type: "date", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]},
}

func (p *Printer) columns() []metav1.TableColumnDefinition {
	if p.Resource.Columns == nil {
		return defaultColumns
	}
	return p.Resource.Columns
}

func (p *Printer) cells(obj apis.Object) []any {
	if p.Resource.Columns == nil || p.Resource.Row == nil {
		return []any{obj.GetName(), obj.GetCreationTimestamp().UTC().Format(time.RFC3339)}
	}
	return p.Resource.Row(obj, p.Now)
}

// Write writes the items as one table, a row at a time.
func (p *Printer) Write(w io.Writer, f negotiate.Format, meta metav1.ListMeta, items []*store.Item) error {
	if f.Pretty || f.Media == negotiate.YAML {
		var b bytes.Buffer
		if err := p.write(&b, meta, items, true); err != nil {
			return err
		}
		return codec.WriteText(w, f.Media, b.Bytes())
	}
	if err := p.write(w, meta, items, true); err != nil {
		return err
	}
	_, err := w.Write([]byte{'\n'})
	return err
}

// Event is the table of one event of a watch: one row, with the columns only if
// it is the first. The row of a bookmark bears its annotations.
func (p *Printer) Event(item *store.Item, first bool) (json.RawMessage, error) {
	var b bytes.Buffer
	meta := metav1.ListMeta{ResourceVersion: item.Object.GetResourceVersion()}
	err := p.write(&b, meta, []*store.Item{item}, first)
	return b.Bytes(), err
}

func (p *Printer) write(w io.Writer, meta metav1.ListMeta, items []*store.Item, headers bool) error {
	head, err := json.Marshal(struct {
		Kind       string                         `json:"kind"`
		APIVersion string                         `json:"apiVersion"`
		Metadata   metav1.ListMeta                `json:"metadata"`
		Columns    []metav1.TableColumnDefinition `json:"columnDefinitions"`
	}{"Table", p.Kind().GroupVersion().String(), meta, p.headers(headers)})
	if err != nil {
		return err
	}
	if _, err := w.Write(append(bytes.TrimSuffix(head, []byte("}")), `,"rows":[`...)); err != nil {
		return err
	}
	var row bytes.Buffer
	for i, item := range items {
		row.Reset()
		if i > 0 {
			row.WriteByte(',')
		}
		if err := p.writeRow(&row, item); err != nil {
			return err
		}
		if _, err := w.Write(row.Bytes()); err != nil {
			return err
		}
	}
	_, err = io.WriteString(w, "]}")
	return err
}

func (p *Printer) headers(wanted bool) []metav1.TableColumnDefinition {
	if !wanted {
		return nil
	}
	return p.columns()
}

func (p *Printer) writeRow(w *bytes.Buffer, item *store.Item) error {
	obj := item.Object
	if c := p.Resource.Custom; c != nil {
		var err error
		if obj, err = c.Load(obj); err != nil {
			return err
		}
	}
	cells, err := json.Marshal(p.cells(obj))
	if err != nil {
		return err
	}
	w.WriteString(`{"cells":`)
	w.Write(cells)
	if say := p.Resource.RowConditions; say != nil {
		if conditions := say(obj); len(conditions) > 0 {
			text, err := json.Marshal(conditions)
			if err != nil {
				return err
			}
			w.WriteString(`,"conditions":`)
			w.Write(text)
		}
	}
	w.WriteString(`,"object":`)
	switch p.Include {
	case metav1.IncludeNone:
		w.WriteString("null")
	case metav1.IncludeObject:
		if err := p.Form.Append(w, item); err != nil {
			return err
		}
	default:
		if err := p.writeMetadata(w, obj); err != nil {
			return err
		}
	}
	return w.WriteByte('}')
}

func (p *Printer) writeMetadata(w *bytes.Buffer, obj apis.Object) error {
	partial := codec.Partial(obj)
	partial.Kind, partial.APIVersion = "PartialObjectMetadata", p.Kind().GroupVersion().String()
	raw, err := json.Marshal(partial)
	w.Write(raw)
	return err
}
