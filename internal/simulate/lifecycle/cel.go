package lifecycle

import (
	"time"

	"proa/internal/simulate/expr"
)

// celProgram is an expression over self, the object.
type celProgram struct{ *expr.Program }

func compileCEL(text string, now func() time.Time) (celProgram, error) {
	env, err := expr.New(expr.Config{Now: now, Variables: []string{"self"}})
	if err != nil {
		return celProgram{}, err
	}
	p, err := env.Compile(text)
	return celProgram{p}, err
}

func (p celProgram) eval(s *Subject) (any, error) {
	return p.Eval(map[string]any{"self": WithMetadata(s.JSON())})
}

// WithMetadata gives a tree's metadata the labels and annotations that the object
// has none of, so that expressions can ask what is in them.
func WithMetadata(tree map[string]any) map[string]any {
	meta, _ := tree["metadata"].(map[string]any)
	for _, field := range []string{"labels", "annotations"} {
		if meta != nil && meta[field] == nil {
			meta[field] = map[string]any{}
		}
	}
	return tree
}
