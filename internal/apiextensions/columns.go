package apiextensions

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/jsonpath"

	"proa/internal/apis"
)

// reader finds the value at a JSON path of an object. Simple paths, nearly all
// there are, take no reflection.
type reader struct {
	fields []string

	mu   sync.Mutex         // guards path, which keeps state while it searches
	path *jsonpath.JSONPath // nil where fields do
}

func newReader(path string) (*reader, error) {
	if fields := strings.Split(path, "."); fields[0] == "" && len(fields) > 1 && !strings.ContainsAny(path, `[]'"*@?\(){}: `) && !strings.Contains(path, "..") {
		return &reader{fields: fields[1:]}, nil
	}
	p := jsonpath.New("")
	p.AllowMissingKeys(true)
	return &reader{path: p}, p.Parse("{" + path + "}")
}

func (r *reader) value(object map[string]any) any {
	if r.path != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		results, err := r.path.FindResults(object)
		if err != nil || len(results) == 0 || len(results[0]) == 0 {
			return nil
		}
		return results[0][0].Interface()
	}
	var value any = object
	for _, name := range r.fields {
		m, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = m[name]
	}
	return value
}

// fields are what a field selector may match.
func (v *version) fields() map[string]func(apis.Object) string {
	out := map[string]func(apis.Object) string{}
	for _, f := range v.spec.SelectableFields {
		read, err := newReader(f.JSONPath)
		if err != nil {
			continue // validation lets no such path pass
		}
		out[strings.TrimPrefix(f.JSONPath, ".")] = func(obj apis.Object) string {
			loaded, err := v.load(obj)
			if err != nil {
				return ""
			}
			value := read.value(loaded.(*unstructured.Unstructured).Object)
			if value == nil {
				return ""
			}
			return fmt.Sprint(value)
		}
	}
	return out
}

type column struct {
	kind string
	read *reader
}

// table are the columns of the version; without any, a kind shows its age.
func (v *version) table() ([]metav1.TableColumnDefinition, func(apis.Object, time.Time) []any) {
	declared := v.spec.AdditionalPrinterColumns
	if len(declared) == 0 {
		declared = []apiextensionsv1.CustomResourceColumnDefinition{{
			Name: "Age", Type: "date", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"], JSONPath: ".metadata.creationTimestamp",
		}}
	}
	headers := []metav1.TableColumnDefinition{apis.NameColumn}
	var columns []column
	for _, c := range declared {
		read, err := newReader(c.JSONPath)
		if err != nil {
			break
		}
		if c.Description == "" {
			c.Description = "Custom resource definition column (in JSONPath format): " + c.JSONPath
		}
		headers = append(headers, metav1.TableColumnDefinition{Name: c.Name, Type: c.Type, Format: c.Format, Description: c.Description, Priority: c.Priority})
		columns = append(columns, column{c.Type, read})
	}
	return headers, func(obj apis.Object, now time.Time) []any {
		cells := append(make([]any, 0, 1+len(columns)), obj.GetName())
		for _, c := range columns {
			cells = append(cells, c.cell(c.read.value(obj.(*unstructured.Unstructured).Object), now))
		}
		return cells
	}
}

// cell is a value as its column's type shows it, nil where it is of another type.
func (c column) cell(value any, now time.Time) any {
	switch c.kind {
	case "integer":
		switch n := value.(type) {
		case int64:
			return n
		case float64:
			return int64(n)
		}
	case "number":
		switch n := value.(type) {
		case int64:
			return float64(n)
		case float64:
			return n
		}
	case "boolean":
		if b, ok := value.(bool); ok {
			return b
		}
	case "string":
		return printed(value)
	case "date":
		if s, ok := value.(string); ok {
			t, err := time.Parse(time.RFC3339, s)
			if err != nil {
				return "<invalid>"
			}
			return apis.Age(metav1.NewTime(t), now)
		}
	}
	return nil
}

// printed is how a JSON path template prints a value.
func printed(value any) any {
	switch value := value.(type) {
	case nil:
		return nil
	case string:
		return value
	}
	var b bytes.Buffer
	if err := jsonpath.New("").PrintResults(&b, []reflect.Value{reflect.ValueOf(value)}); err != nil {
		return nil
	}
	return b.String()
}
