package patch

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"proa/internal/apiserver/codec/jsonplan"
)

// rawLevels is how many levels of a document are taken apart as text. Each level
// reads what is below it again, so that deeper ones are decoded at once: the cost
// stays in proportion to the size, however deep a client nests.
const rawLevels = 16

// mergeObjects is jsonpatch.MergePatch for a JSON object and a patch, without taking
// apart what the patch does not touch. Doc is well formed: the server wrote it.
func mergeObjects(doc, patch []byte) ([]byte, error) {
	from, err := decodeValue(patch)
	if err != nil {
		return nil, jsonpatch.ErrBadJSONPatch
	}
	switch from := from.(type) {
	case map[string]any:
		if !isObject(doc) {
			return nil, jsonpatch.ErrBadJSONDoc
		}
		return mergeRaw(doc, from, rawLevels)
	case []any: // is no object, which the decoder will say
		return json.Marshal(withoutNulls(from))
	}
	return nil, jsonpatch.ErrBadJSONPatch
}

// decodeValue reads one JSON value; numbers keep their digits.
func decodeValue(data []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, jsonpatch.ErrBadJSONPatch
	}
	return v, nil
}

// mergeRaw merges into an object that is text, so many levels deep.
func mergeRaw(doc []byte, from map[string]any, levels int) ([]byte, error) {
	members, ok := jsonplan.Members(doc)
	if !ok || levels == 0 {
		into, err := decodeValue(doc)
		if err != nil {
			return nil, jsonpatch.ErrBadJSONDoc
		}
		return json.Marshal(mergeValue(into, from))
	}
	into := make(map[string]json.RawMessage, len(members)+len(from))
	for _, m := range members {
		into[m.Name] = m.Value
	}
	for name, value := range from {
		if value == nil {
			delete(into, name)
			continue
		}
		var err error
		current := into[name]
		if object, ok := value.(map[string]any); ok && isObject(current) {
			into[name], err = mergeRaw(current, object, levels-1)
		} else {
			into[name], err = json.Marshal(replacement(isObject(current), value))
		}
		if err != nil {
			return nil, err
		}
	}
	return appendObject(make([]byte, 0, len(doc)), into)
}

func isObject(v json.RawMessage) bool { return len(v) > 0 && v[0] == '{' }

// mergeValue merges into a decoded value, which it changes.
func mergeValue(into any, from map[string]any) any {
	object, ok := into.(map[string]any)
	if !ok {
		return withoutNulls(from)
	}
	for name, value := range from {
		if value == nil {
			delete(object, name)
			continue
		}
		current, wasObject := object[name].(map[string]any)
		if changes, ok := value.(map[string]any); ok && wasObject {
			object[name] = mergeValue(current, changes)
		} else {
			object[name] = replacement(wasObject, value)
		}
	}
	return object
}

// replacement is what takes the place of a member: what replaces an object stays as
// it is, and anything else loses its members that are null.
func replacement(ofObject bool, value any) any {
	if ofObject {
		return value
	}
	return withoutNulls(value)
}

// withoutNulls drops members that are null, as a merge into nothing does. It
// changes the value.
func withoutNulls(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for name, member := range value {
			if member == nil {
				delete(value, name)
			} else {
				withoutNulls(member)
			}
		}
	case []any:
		for _, element := range value {
			withoutNulls(element)
		}
	}
	return value
}

// appendObject writes members in the order of their names.
func appendObject(b []byte, members map[string]json.RawMessage) ([]byte, error) {
	names := make([]string, 0, len(members))
	for name := range members {
		names = append(names, name)
	}
	slices.Sort(names)
	b = append(b, '{')
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		quoted, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		b = append(append(append(b, quoted...), ':'), members[name]...)
	}
	return append(b, '}'), nil
}
