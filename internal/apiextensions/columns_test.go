package apiextensions

import (
	"strings"
	"testing"
)

// What a column shows depends on the object alone: not on who looked before, nor on what a
// loop of the path finds null or missing.
func TestPathsWithLoops(t *testing.T) {
	object := map[string]any{"spec": map[string]any{"null": nil, "b": []any{map[string]any{"c": "x"}}, "nulls": []any{nil}}}
	for path, want := range map[string]any{
		".spec range .b[*]}{.c}{end":       "x",
		".spec.b[0].c}{range .b":           "x",
		".spec range .missing}{[0]}{end":   nil,
		".spec range .nulls[*]}{@}{end":    nil,
		".spec range .nulls[*]}{[0]}{end":  nil,
		".spec range .null}{[0].c}{end":    nil,
		".spec.b[?(@.c=='x')].c}{.missing": "x",
	} {
		t.Run(path, func(t *testing.T) {
			r, err := newReader(path)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if got := r.value(object); got != want {
					t.Fatalf("%v, want %v", got, want)
				}
			}
		})
	}
}

// The parser would take more stack for such a path than a process may have.
func TestEndlessPathsAreNotParsed(t *testing.T) {
	if _, err := newReader("." + strings.Repeat("@", 3<<20)); err == nil {
		t.Error("parsed")
	}
}
