package machinery

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"proa/pkg/proatest"
)

// TestFieldValidationAsUpstream sends bodies with fields that are unknown, given
// twice or of a wrong type by every verb and in every text form.
func TestFieldValidationAsUpstream(t *testing.T) {
	t.Parallel()
	s := start(t, proatest.Options{})
	ns := meta(s.create(t, namespaces, map[string]any{"metadata": map[string]any{"generateName": "f-"}}))["name"].(string)
	collection := namespaces + "/" + ns + "/services"
	var got table
	var made atomic.Int64
	for title, fields := range map[string]string{
		"unknown":         `"spec": {"ports": [{"port": 80, "bogus": 1}], "other": true}, "top": 1`,
		"twice":           `"spec": {"ports": [{"port": 80, "port": 81}], "selector": {"a": "b", "a": "c"}}`,
		"of another case": `"spec": {"Ports": [{"port": 80}], "ports": [{"port": 80}]}`,
		"of another type": `"spec": {"ports": [{"port": "eighty"}]}`,
		"null":            `"spec": {"ports": [{"port": 80}], "selector": null, "type": null}`,
		"too large":       `"spec": {"ports": [{"port": 99999999999999999999}]}`,
		"a fraction":      `"spec": {"ports": [{"port": 80.5}]}`,
		"in metadata":     `"spec": {"ports": [{"port": 80}]}, "metadata": {"name": "NAME", "name": "NAME", "bogus": 1}`,
	} {
		each(queries(option{"fieldValidation", []string{"-", "Strict", "Warn", "Ignore", "Loose", ""}}), 4, func(q string) {
			for _, verb := range []string{"create", "create as YAML", "update", "json", "merge", "strategic-merge"} {
				name := fmt.Sprintf("x%d", made.Add(1))
				a := s.write(t, collection, verb, name, fields, q)
				got.add(fmt.Sprintf("%s a field that is %s?%s", verb, title, q), strings.ReplaceAll(s.written(a), name, "{name}"))
			}
		})
	}
	got.compare(t, "fieldvalidation.txt")
}

func (s *server) write(t *testing.T, collection, verb, name, fields, query string) answer {
	head := fmt.Sprintf(`"apiVersion": "v1", "kind": "Service", "metadata": {"name": %q}`, name)
	if strings.Contains(fields, "metadata") {
		head, fields = `"apiVersion": "v1", "kind": "Service"`, strings.ReplaceAll(fields, "NAME", name)
	}
	q := request{method: http.MethodPost, path: collection + "?dryRun=All&" + query, body: "{" + head + ", " + fields + "}"}
	switch verb {
	case "create":
		return s.do(t, q)
	case "create as YAML":
		q.kind = "application/yaml"
		return s.do(t, q)
	}
	s.create(t, collection, parse(`{"metadata": {"name": "`+name+`"}, "spec": {"clusterIP": "None", "ports": [{"port": 79}]}}`))
	q.path = collection + "/" + name + "?dryRun=All&" + query
	switch verb {
	case "update":
		q.method = http.MethodPut
		return s.do(t, q)
	case "json":
		_, spec, _ := strings.Cut(fields, `"spec": `)
		q.body = `[{"op": "replace", "path": "/spec", "value": ` + endOf(spec) + `}, {"op": "add", "path": "/top", "value": 1}]`
	}
	q.method, q.kind = http.MethodPatch, patchKind(verb)
	return s.do(t, q)
}

// endOf is the first object of a text.
func endOf(text string) string {
	depth := 0
	for i, c := range text {
		switch c {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return text[:i+1]
			}
		}
	}
	return text
}

// written tells what a write answered.
func (s *server) written(a answer) string {
	out := s.status(a)
	if a.code < http.StatusMultipleChoices {
		out = fmt.Sprint(a.code)
	}
	for _, w := range a.warnings {
		out += "; " + w
	}
	return out
}

// TestFormsAsUpstream asks for every form of an answer.
func TestFormsAsUpstream(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	const (
		one  = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
		many = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
		rows = "application/json;as=Table;g=meta.k8s.io;v=v1"
	)
	accepts := []string{
		one, many, rows, strings.Replace(one, "v=v1", "v=v1beta1", 1), strings.Replace(rows, "v=v1", "v=v1beta1", 1),
		strings.Replace(rows, "v=v1", "v=v2", 1), "application/json;as=Row;g=meta.k8s.io;v=v1", "application/json;as=Table", "application/json;as=Table;g=x;v=v1",
		one + ",application/json", "text/plain", "text/plain, */*;q=0.1", "*/*", "application/*", "application/json;pretty=1",
		"application/json;stream=watch", "", "application/json;q=0", "nonsense", "application/vnd.kubernetes.protobuf", "application/cbor",
	}
	name := s.collection + "/a"
	requests := map[string]request{
		"get":              {method: http.MethodGet, path: name},
		"list":             {method: http.MethodGet, path: s.collection},
		"create":           {method: http.MethodPost, path: s.collection + "?dryRun=All", body: `{"metadata": {"name": "n"}}`},
		"update":           {method: http.MethodPut, path: name + "?dryRun=All", body: `{"metadata": {"name": "a"}}`},
		"patch":            {method: http.MethodPatch, path: name + "?dryRun=All", body: `{}`},
		"delete":           {method: http.MethodDelete, path: name + "?dryRun=All"},
		"deletecollection": {method: http.MethodDelete, path: s.collection + "?dryRun=All"},
		"a missing one":    {method: http.MethodGet, path: s.collection + "/missing"},
		"groups":           {method: http.MethodGet, path: "/apis/apps"},
	}
	var got table
	for title, q := range requests {
		for _, accept := range accepts {
			q.accept = accept
			a := s.do(t, q)
			kind, _ := a.object["kind"].(string)
			tell := fmt.Sprintf("%d %s %s %v", a.code, a.header.Get("Content-Type"), kind, a.object["apiVersion"])
			if a.code >= http.StatusMultipleChoices {
				tell = a.header.Get("Content-Type") + " " + s.status(a)
				if kind == "" {
					tell = fmt.Sprintf("%d %s", a.code, a.header.Get("Content-Type"))
				}
			}
			got.add(title+" as "+accept, tell)
		}
	}
	got.compare(t, "forms.txt")
}

// TestGeneratedNamesAsUpstream creates objects with a generateName.
func TestGeneratedNamesAsUpstream(t *testing.T) {
	t.Parallel()
	s := start(t, proatest.Options{}) // no words for numbers, which random letters can be
	ns := meta(s.create(t, namespaces, map[string]any{"metadata": map[string]any{"generateName": "g-"}}))["name"].(string)
	var got table
	for _, prefix := range []string{"", "a", "a-", "a.", "-", "A", "a_", strings.Repeat("a", 57), strings.Repeat("a", 63), strings.Repeat("a", 252), strings.Repeat("a", 300), "a/b", ".."} {
		for _, name := range []string{"", "given"} {
			for _, kind := range []string{"configmaps", "services"} {
				collection := namespaces + "/" + ns + "/" + kind
				body := fmt.Sprintf(`{"metadata": {"generateName": %q, "name": %q}, "spec": {"clusterIP": "None", "ports": [{"port": 1}]}}`, prefix, name)
				if kind == "configmaps" {
					body = fmt.Sprintf(`{"metadata": {"generateName": %q, "name": %q}}`, prefix, name)
				}
				a := s.do(t, request{method: http.MethodPost, path: collection + "?dryRun=All", body: body})
				tell := s.status(a)
				if made, ok := meta(a.object)["name"].(string); ok && a.code == http.StatusCreated {
					tell = fmt.Sprintf("201 a name of %d letters from %d of the prefix", len(made), common(made, prefix))
				} else if generated, ok := strings.CutPrefix(prefix, ""); ok && generated != "" {
					tell = masked(tell, prefix)
				}
				got.add(fmt.Sprintf("%s generateName=%s name=%s", kind, prefix, name), tell)
			}
		}
	}
	got.compare(t, "names.txt")
}

// common is how many letters two texts begin with alike.
func common(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// masked hides the random letters after a prefix.
func masked(text, prefix string) string {
	if len(prefix) > 58 {
		prefix = prefix[:58]
	}
	parts := strings.Split(text, prefix)
	for i := 1; i < len(parts); i++ {
		if len(parts[i]) >= 6 && parts[i][5] == '"' {
			parts[i] = "{random}" + parts[i][5:]
		}
	}
	return strings.Join(parts, prefix)
}
