package environment

import (
	"fmt"
	"strings"
)

// Expand replaces $(NAME) in a container's command or args by the variable's
// value. $$ stands for one dollar sign, and what names no variable stays as it is.
func Expand(words []string, vars []Variable) []string {
	if words == nil {
		return nil
	}
	lookup := lookupIn(vars)
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = expand(w, lookup, nil)
	}
	return out
}

// ExpandStrict expands s and fails when it names a variable that is not set, as
// subPathExpr requires.
func ExpandStrict(s string, vars []Variable) (string, error) {
	var missing []string
	out := expand(s, lookupIn(vars), func(name string) { missing = append(missing, name) })
	if len(missing) > 0 {
		return "", fmt.Errorf("missing value for %q", missing[0])
	}
	return out, nil
}

func lookupIn(vars []Variable) func(string) (string, bool) {
	values := make(map[string]string, len(vars))
	for _, v := range vars {
		values[v.Name] = v.Value
	}
	return func(name string) (string, bool) {
		v, ok := values[name]
		return v, ok
	}
}

// expand is one pass from left to right; values are not expanded again.
func expand(s string, lookup func(string) (string, bool), missing func(string)) string {
	if !strings.Contains(s, "$") {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			out.WriteByte(s[i])
			continue
		}
		switch i++; s[i] {
		case '$':
			out.WriteByte('$')
		case '(':
			end := strings.IndexByte(s[i:], ')')
			if end < 0 {
				out.WriteString("$(")
				continue
			}
			name := s[i+1 : i+end]
			value, ok := lookup(name)
			if !ok {
				value = "$(" + name + ")"
				if missing != nil {
					missing(name)
				}
			}
			out.WriteString(value)
			i += end
		default:
			out.WriteByte('$')
			out.WriteByte(s[i])
		}
	}
	return out.String()
}
