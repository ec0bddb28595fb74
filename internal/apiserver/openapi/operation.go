package openapi

import (
	"reflect"
	"slices"
	"strings"
)

// parameter is a path or query parameter.
type parameter struct {
	name, in, doc string
	schema        object
}

// pathParameters are those of a path below a scope that ends in the name of a kind,
// or in none.
func pathParameters(scope, kind string) []parameter {
	var list []parameter
	if kind != "" {
		list = append(list, parameter{"name", "path", "name of the " + kind, object{"type": "string"}})
	}
	if scope != "" {
		list = append(list, parameter{"namespace", "path", "object name and auth scope, such as for teams and projects", object{"type": "string"}})
	}
	return list
}

// queryParameters lists the fields of an options type that a query can hold:
// scalars and lists of them.
func (m *models) queryParameters(t reflect.Type) []parameter {
	var list []parameter
	docs := docsOf(t)
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || name == "" || name == "-" {
			continue
		}
		s := m.of(f.Type)
		if element, ok := s["items"].(object); ok {
			s = element // given several times
		}
		if s["$ref"] != nil || s["type"] == "object" {
			continue
		}
		s = object{"type": s["type"]}
		list = append(list, parameter{name, "query", docs[name], s})
	}
	return list
}

func (d *document) writeParameter(p parameter) object {
	out := object{"name": p.name, "in": p.in}
	if p.doc != "" {
		out["description"] = p.doc
	}
	if p.in == "path" {
		out["required"] = true
	}
	if d.models.v3 {
		s := object{"uniqueItems": true}
		for k, v := range p.schema {
			s[k] = v
		}
		out["schema"] = s
		return out
	}
	out["uniqueItems"] = true
	for k, v := range p.schema {
		out[k] = v
	}
	return out
}

// withPretty adds to parameters the one of all paths whose answers the server writes.
func withPretty(list ...parameter) []parameter {
	return append(list, parameter{"pretty", "query", "If 'true', then the output is pretty printed. Defaults to 'false' unless the user-agent indicates a browser or command-line HTTP tool (curl and wget).", object{"type": "string"}})
}

// describe gives a path its parameters.
func (d *document) describe(path string, parameters ...parameter) {
	item, ok := d.paths[path]
	if !ok {
		return
	}
	var list []object
	for _, p := range parameters {
		list = append(list, d.writeParameter(p))
	}
	list = append(list, takeCommon(item)...)
	sortByName(list)
	if len(list) > 0 {
		item["parameters"] = list
	}
}

// takeCommon removes from the operations of a path the query parameters that all of
// them have, and returns these.
func takeCommon(item object) []object {
	var common []object
	first := true
	for _, op := range item {
		list, _ := op.(object)["parameters"].([]object)
		if first {
			common, first = slices.DeleteFunc(slices.Clone(list), isBody), false
			continue
		}
		common = slices.DeleteFunc(common, func(p object) bool { return !hasParameter(list, p) })
	}
	for _, op := range item {
		op := op.(object)
		list, _ := op["parameters"].([]object)
		if list = slices.DeleteFunc(slices.Clone(list), func(p object) bool { return hasParameter(common, p) }); len(list) > 0 {
			op["parameters"] = list
		} else {
			delete(op, "parameters")
		}
	}
	return common
}

func isBody(p object) bool { return p["in"] == "body" }

func hasParameter(list []object, p object) bool {
	return slices.ContainsFunc(list, func(other object) bool { return reflect.DeepEqual(p, other) })
}

func sortByName(list []object) {
	slices.SortStableFunc(list, func(a, b object) int { return strings.Compare(a["name"].(string), b["name"].(string)) })
}

// add writes an operation at a path.
func (d *document) add(path, method string, op operation) {
	out := object{
		"operationId": d.operationID(op), "description": op.doc, "tags": []string{tag(op.s)},
		"responses": d.responses(op),
	}
	if op.action != "" {
		out["x-kubernetes-action"] = op.action
		out["x-kubernetes-group-version-kind"] = kindObject(op.kind)
	}
	var parameters []object
	names := map[string]bool{}
	for _, t := range op.options {
		for _, p := range d.models.queryParameters(t) {
			if !names[p.name] && !slices.Contains(op.without, p.name) {
				names[p.name] = true
				parameters = append(parameters, d.writeParameter(p))
			}
		}
	}
	if op.body != nil {
		parameters = d.writeBody(out, op, parameters)
	}
	if len(parameters) > 0 {
		sortByName(parameters)
		out["parameters"] = parameters
	}
	if !d.models.v3 {
		out["schemes"] = []string{"https"}
		out["produces"] = op.answerIs
		out["consumes"] = anyType
		if op.s.newItem != nil && isCustom(op.s) {
			out["consumes"] = d.types(op.s)
		}
		if op.bodyIs != nil && (op.action == "patch" || op.body == nil) {
			out["consumes"] = op.bodyIs
		}
	}
	if d.paths[path] == nil {
		d.paths[path] = object{}
	}
	d.paths[path][method] = out
}

func (d *document) writeBody(out object, op operation, parameters []object) []object {
	if d.models.v3 {
		types := op.bodyIs
		if op.action != "patch" && !isCustom(op.s) {
			types = anyType
		}
		body := object{"content": content(types, op.body)}
		if !op.optional {
			body["required"] = true
		}
		out["requestBody"] = body
		return parameters
	}
	body := object{"name": "body", "in": "body", "schema": op.body}
	if !op.optional {
		body["required"] = true
	}
	return append(parameters, body)
}

func content(types []string, schema object) object {
	c := object{}
	for _, t := range types {
		c[t] = object{"schema": schema}
	}
	return c
}

func (d *document) responses(op operation) object {
	answer := op.answer
	if answer == nil {
		answer = object{"type": "string"}
	}
	out := object{"401": object{"description": "Unauthorized"}}
	for code, text := range op.codes {
		r := object{"description": text}
		if d.models.v3 {
			r["content"] = content(op.answerIs, answer)
		} else {
			r["schema"] = answer
		}
		out[code] = r
	}
	return out
}

// operationID follows upstream: the action, the group version, the rest.
func (d *document) operationID(op operation) string {
	action, rest, _ := strings.Cut(op.id, "|")
	id := action + groupName(op.s.kind.Group) + title(op.s.kind.Version) + rest
	d.seen[id]++
	return id + strings.Repeat("_", d.seen[id]-1)
}

func tag(s served) string {
	return firstLower(groupName(s.kind.Group)) + "_" + s.kind.Version
}
