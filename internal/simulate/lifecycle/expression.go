package lifecycle

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/itchyny/gojq"

	"proa/internal/simulate/kwok"
)

// value is something that an expression gives for an object; false when it gives
// nothing.
type value[T any] func(*Subject) (T, bool)

// query is a jq expression. What it cannot compute gives nothing, as in KWOK.
type query struct{ code *gojq.Code }

func compileJQ(text string) (*query, error) {
	parsed, err := gojq.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("jq %q: %w", text, err)
	}
	code, err := gojq.Compile(parsed)
	if err != nil {
		return nil, fmt.Errorf("jq %q: %w", text, err)
	}
	return &query{code}, nil
}

func (q *query) run(s *Subject) []any {
	var out []any
	for iter := q.code.Run(s.JSON()); ; {
		v, more := iter.Next()
		if !more {
			return out
		}
		if _, failed := v.(error); failed {
			return nil
		}
		if v != nil {
			out = append(out, v)
		}
	}
}

func compileRequirement(r kwok.Requirement, now func() time.Time) (func(*Subject) bool, error) {
	if r.CEL != nil {
		program, err := compileCEL(r.CEL.Expression, now)
		if err != nil {
			return nil, err
		}
		return func(s *Subject) bool {
			v, err := program.eval(s)
			holds, isBool := v.(bool)
			return err == nil && isBool && holds
		}, nil
	}
	jq := r.JQ
	if jq == nil {
		jq = &kwok.JQSelector{Key: r.Key, Operator: r.Operator, Values: r.Values}
	}
	return compileJQSelector(jq)
}

func compileJQSelector(r *kwok.JQSelector) (func(*Subject) bool, error) {
	q, err := compileJQ(r.Key)
	if err != nil {
		return nil, err
	}
	in := func(s *Subject) bool {
		return slices.ContainsFunc(q.run(s), func(v any) bool { return slices.Contains(r.Values, text(v)) })
	}
	exists := func(s *Subject) bool { return len(q.run(s)) > 0 }
	switch r.Operator {
	case "In", "NotIn":
		if len(r.Values) == 0 {
			return nil, errors.New("for 'in', 'notin' operators, values set can't be empty")
		}
	case "Exists", "DoesNotExist":
		if len(r.Values) > 0 {
			return nil, errors.New("values set must be empty for exists and does not exist")
		}
	}
	switch r.Operator {
	case "In":
		return in, nil
	case "NotIn":
		return func(s *Subject) bool { return !in(s) }, nil
	case "Exists":
		return exists, nil
	case "DoesNotExist":
		return func(s *Subject) bool { return !exists(s) }, nil
	}
	return nil, fmt.Errorf("operator %q is not supported", r.Operator)
}

// text is a scalar as a selector's values have it.
func text(v any) string {
	switch t := v.(type) {
	case string:
		return t
	case bool:
		return strconv.FormatBool(t)
	case int:
		return strconv.Itoa(t)
	}
	return ""
}

// compileValue gives what an expression evaluates to first.
func compileValue(e *kwok.Expression, now func() time.Time) (value[any], error) {
	if e.CEL != nil {
		program, err := compileCEL(e.CEL.Expression, now)
		if err != nil {
			return nil, err
		}
		return func(s *Subject) (any, bool) {
			v, err := program.eval(s)
			return v, err == nil
		}, nil
	}
	text := e.ExpressionFrom
	if e.JQ != nil {
		text = e.JQ.Expression
	}
	q, err := compileJQ(text)
	if err != nil {
		return nil, err
	}
	return func(s *Subject) (any, bool) {
		if out := q.run(s); len(out) > 0 {
			return out[0], true
		}
		return nil, false
	}, nil
}

// compileNumber is nil without an expression.
func compileNumber(e *kwok.Expression, now func() time.Time) (value[int64], error) {
	if e == nil {
		return nil, nil
	}
	from, err := compileValue(e, now)
	if err != nil {
		return nil, err
	}
	return func(s *Subject) (int64, bool) {
		v, ok := from(s)
		if !ok {
			return 0, false
		}
		switch t := v.(type) {
		case int:
			return int64(t), true
		case int64:
			return t, true
		case float64:
			return int64(t), true
		case string:
			n, err := strconv.ParseInt(t, 10, 64)
			return n, err == nil
		}
		return 0, false
	}, nil
}

// compileDuration takes an expression's value as a duration or as a time to wait
// for, else the fixed number of milliseconds.
func compileDuration(fixed *int64, e *kwok.Expression, now func() time.Time) (value[time.Duration], error) {
	otherwise := func() (time.Duration, bool) {
		if fixed == nil {
			return 0, false
		}
		return time.Duration(*fixed) * time.Millisecond, true
	}
	if e == nil {
		return func(*Subject) (time.Duration, bool) { return otherwise() }, nil
	}
	from, err := compileValue(e, now)
	if err != nil {
		return nil, err
	}
	return func(s *Subject) (time.Duration, bool) {
		v, ok := from(s)
		if !ok {
			return otherwise()
		}
		switch t := v.(type) {
		case time.Duration:
			return t, true
		case time.Time:
			return t.Sub(now()), true
		case string:
			if at, err := time.Parse(time.RFC3339Nano, t); err == nil {
				return at.Sub(now()), true
			}
			if d, err := time.ParseDuration(t); err == nil {
				return d, true
			}
		}
		return otherwise()
	}, nil
}
