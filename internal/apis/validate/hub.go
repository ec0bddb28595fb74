package validate

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Hub returns a value of an API type in the form that upstream's messages show it
// in: with the fields of its internal types, which are those of Go and leave
// nothing out. Other values are returned as they are.
func Hub(v any) any {
	if v == nil || !ofAPI(reflect.TypeOf(v)) {
		return v
	}
	return hub{v}
}

// InHub shows the bad values of errors as upstream's messages do.
func InHub(errs field.ErrorList) field.ErrorList {
	for _, e := range errs {
		e.BadValue = Hub(e.BadValue)
	}
	return errs
}

// hub is a value that is written with the names that Go has for its fields.
type hub struct{ value any }

// MarshalJSON writes the value.
func (h hub) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	err := writeHub(&b, reflect.ValueOf(h.value))
	return b.Bytes(), err
}

// ofAPI tells types that have another form within upstream's server.
func ofAPI(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return ofAPI(t.Elem())
	case reflect.Struct:
		return strings.HasPrefix(t.PkgPath(), "k8s.io/api/")
	}
	return false
}

func writeHub(b *bytes.Buffer, v reflect.Value) error {
	if !ofAPI(v.Type()) {
		return writeJSON(b, v)
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			b.WriteString("null")
			return nil
		}
		return writeHub(b, v.Elem())
	case reflect.Slice:
		return writeHubList(b, v)
	case reflect.Struct:
		b.WriteByte('{')
		err := writeHubFields(b, v)
		b.WriteByte('}')
		return err
	}
	return writeHubMap(b, v)
}

func writeHubList(b *bytes.Buffer, v reflect.Value) error {
	if v.IsNil() {
		b.WriteString("null")
		return nil
	}
	b.WriteByte('[')
	for i := range v.Len() {
		separate(b)
		if err := writeHub(b, v.Index(i)); err != nil {
			return err
		}
	}
	b.WriteByte(']')
	return nil
}

func writeHubMap(b *bytes.Buffer, v reflect.Value) error {
	if v.IsNil() {
		b.WriteString("null")
		return nil
	}
	form := make(map[string]hub, v.Len())
	for it := v.MapRange(); it.Next(); {
		form[it.Key().String()] = hub{it.Value().Interface()}
	}
	return writeJSON(b, reflect.ValueOf(form))
}

// writeHubFields writes the fields of a struct; those of an embedded one are its own.
func writeHubFields(b *bytes.Buffer, v reflect.Value) error {
	for i := range v.NumField() {
		f, value := v.Type().Field(i), v.Field(i)
		if f.Anonymous && f.Type.Kind() == reflect.Struct {
			if err := writeEmbedded(b, value); err != nil {
				return err
			}
			continue
		}
		separate(b)
		b.WriteString(`"` + f.Name + `":`)
		if err := writeHub(b, value); err != nil {
			return err
		}
	}
	return nil
}

func writeEmbedded(b *bytes.Buffer, v reflect.Value) error {
	if ofAPI(v.Type()) {
		return writeHubFields(b, v)
	}
	text, err := json.Marshal(v.Interface())
	if inner := bytes.Trim(text, "{}"); err == nil && len(inner) > 0 {
		separate(b)
		b.Write(text[1 : len(text)-1])
	}
	return err
}

// separate writes the comma that stands before every element but the first.
func separate(b *bytes.Buffer) {
	if last := b.Bytes()[b.Len()-1]; last != '{' && last != '[' {
		b.WriteByte(',')
	}
}

func writeJSON(b *bytes.Buffer, v reflect.Value) error {
	text, err := json.Marshal(v.Interface())
	b.Write(text)
	return err
}
