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

// longestPath is the longest JSON path that is parsed: the parser goes a call deeper with
// every character, and some megabytes of them would end the process.
const longestPath = 10_000

// reader finds the value at a JSON path of an object. Simple paths, nearly all
// there are, take no reflection.
type reader struct {
	fields []string

	mu   sync.Mutex         // guards path, which keeps state while it searches
	path *jsonpath.JSONPath // nil where fields do
	loop string             // the path as it is written, where it has a loop
}

func newReader(path string) (*reader, error) {
	if fields := strings.Split(path, "."); fields[0] == "" && len(fields) > 1 && !strings.ContainsAny(path, `[]'"*@?\(){}: `) && !strings.Contains(path, "..") {
		return &reader{fields: fields[1:]}, nil
	}
	if len(path) > longestPath {
		return nil, fmt.Errorf("a JSON path of %d characters is too long", len(path))
	}
	parsed, err := parsePath(path)
	if strings.Contains(path, "range") {
		return &reader{loop: path}, err
	}
	return &reader{path: parsed}, err
}

func parsePath(path string) (*jsonpath.JSONPath, error) {
	p := jsonpath.New("")
	p.AllowMissingKeys(true)
	return p, p.Parse("{" + path + "}")
}

func (r *reader) value(object map[string]any) any {
	switch {
	case r.loop != "":
		return looped(r.loop, object)
	case r.path != nil:
		r.mu.Lock()
		defer r.mu.Unlock()
		return first(r.path, object)
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

func first(path *jsonpath.JSONPath, object map[string]any) any {
	results, err := path.FindResults(object)
	if err != nil || len(results) == 0 || len(results[0]) == 0 {
		return nil
	}
	return results[0][0].Interface()
}

// looped is what a path with a loop finds first. A loop takes its parser apart, so that every
// search has one of its own, and panics over what is null or missing: there it finds nothing.
func looped(path string, object map[string]any) (value any) {
	defer func() {
		if recover() != nil {
			value = nil
		}
	}()
	parsed, err := parsePath(path)
	if err != nil {
		return nil
	}
	return first(parsed, object)
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
