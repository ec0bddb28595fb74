package patch

import (
	"bytes"
	"encoding/json"
	"slices"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"proa/internal/apiserver/codec/jsonplan"
)

// mergeObjects is jsonpatch.MergePatch for two JSON objects, without taking apart
// what the patch does not touch. Doc is well formed: the server wrote it.
func mergeObjects(doc, patch []byte) ([]byte, error) {
	members, ok := jsonplan.Members(doc)
	var from map[string]json.RawMessage
	if !ok || json.Unmarshal(patch, &from) != nil || from == nil {
		return jsonpatch.MergePatch(doc, patch)
	}
	into := make(map[string]json.RawMessage, len(members)+len(from))
	for _, m := range members {
		into[m.Name] = m.Value
	}
	for name, value := range from {
		current, ok := into[name]
		switch {
		case isNull(value):
			delete(into, name)
			continue
		case ok && isObject(current) && isObject(value):
			merged, err := mergeObjects(current, value)
			if err != nil {
				return nil, err
			}
			into[name] = merged
			continue
		case ok && isObject(current): // replaced by something else, which stays as it is
			into[name] = value
			continue
		}
		pruned, err := withoutNulls(value)
		if err != nil {
			return nil, err
		}
		into[name] = pruned
	}
	return appendObject(make([]byte, 0, len(doc)+len(patch)), into)
}

func isNull(v json.RawMessage) bool   { return bytes.Equal(v, []byte("null")) }
func isObject(v json.RawMessage) bool { return len(v) > 0 && v[0] == '{' }

// withoutNulls drops members that are null, as a merge into nothing does.
func withoutNulls(value json.RawMessage) (json.RawMessage, error) {
	if len(value) > 0 && value[0] != '{' && value[0] != '[' {
		return value, nil
	}
	const head, tail = `{"v":`, `}`
	merged, err := jsonpatch.MergePatch([]byte("{}"), slices.Concat([]byte(head), value, []byte(tail)))
	if err != nil {
		return nil, err
	}
	return merged[len(head) : len(merged)-len(tail)], nil
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
