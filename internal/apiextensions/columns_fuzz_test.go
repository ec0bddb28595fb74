package apiextensions

import (
	"strings"
	"testing"

	kjson "sigs.k8s.io/json"
)

// FuzzColumn reads what a definition's path names from any object, and prints it.
func FuzzColumn(f *testing.F) {
	for _, path := range []string{
		".spec.a", ".spec.b[0].c", ".spec.b[*].c", ".spec.b[?(@.c=='x')].c", "..c", ".spec.b[-1]", ".spec.b[0:2:1]", ".spec['a','b']", ".spec.missing.more",
		`.metadata.annotations.a\.b/c`, ".spec.b[?(@.c>1)]", ".", "", ".spec.b[5]", `.spec["a"]`, "[*]", ".spec.*", ".spec.b[?(@.c)]", ".spec.null", ".spec.null.x", ".spec.b[?(@.null==null)]",
		".spec range .b}{.c}{end", ".spec range .missing}{[0]}{end", ".spec range .null}{@}{end", ".spec.a}{.b",
	} {
		f.Add(path, `{"spec": {"a": 1, "null": null, "b": [{"c": "x"}, {"c": null}, null, 1, "s", []]}, "metadata": {"annotations": {"a.b/c": "d"}}}`)
	}
	f.Add(".a", `{"a": [[[]], {}]}`)
	f.Fuzz(func(t *testing.T, path, text string) {
		var object map[string]any
		if kjson.UnmarshalCaseSensitivePreserveInts([]byte(text), &object) != nil || len(path) > 200 || len(text) > 2000 {
			return
		}
		r, err := newReader(path)
		if err != nil {
			return
		}
		first := printed(r.value(object))
		if strings.Contains(path, "*") || strings.Contains(path, "..") {
			return // of the fields of a map any comes first, upstream too
		}
		if again := printed(r.value(object)); first != again {
			t.Fatalf("%q of %s is %v, and then %v", path, text, first, again)
		}
	})
}
