package kinds

import (
	"fmt"
	"regexp"
	"sort"
	"strconv"
)

// step is a field's name or, in brackets, an index or a key with dots.
var step = regexp.MustCompile(`^\.?([\w-]+)|^\[([^\]]+)\]`)

// apply returns an object with the change made.
func (c change) apply(obj map[string]any) (map[string]any, error) {
	changed, err := c.at(obj, c.Path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Path, err)
	}
	return changed.(map[string]any), nil
}

// at changes what is at a path below v.
func (c change) at(v any, path string) (any, error) {
	m := step.FindStringSubmatch(path)
	if m == nil {
		return nil, fmt.Errorf("no path: %q", path)
	}
	key, rest := m[1]+m[2], path[len(m[0]):]
	switch v := v.(type) {
	case map[string]any:
		return c.inMap(v, key, rest)
	case []any:
		i, err := strconv.Atoi(key)
		if err != nil || i >= len(v) {
			return nil, fmt.Errorf("no index %q", key)
		}
		return c.inList(v, i, rest)
	}
	return nil, fmt.Errorf("nothing at %q", key)
}

func (c change) inMap(v map[string]any, key, rest string) (any, error) {
	if rest != "" {
		child, err := c.at(v[key], rest)
		v[key] = child
		return v, err
	}
	if _, there := v[key]; c.Remove && !there {
		return nil, fmt.Errorf("no %q to remove", key)
	}
	if v[key] = c.Set; c.Remove {
		delete(v, key)
	}
	return v, nil
}

func (c change) inList(v []any, i int, rest string) (any, error) {
	if rest != "" {
		child, err := c.at(v[i], rest)
		v[i] = child
		return v, err
	}
	if c.Remove {
		return append(v[:i:i], v[i+1:]...), nil
	}
	v[i] = c.Set
	return v, nil
}

// lacks lists the paths at which got does not say what want says.
func lacks(want, got any, path string) []string {
	var missing []string
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return []string{path}
		}
		for key, value := range w {
			missing = append(missing, lacks(value, g[key], path+"."+key)...)
		}
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) < len(w) {
			return []string{path}
		}
		for i, value := range w {
			missing = append(missing, lacks(value, g[i], fmt.Sprintf("%s[%d]", path, i))...)
		}
	default:
		if want == false && got == nil { // absent means the same
			return nil
		}
		if fmt.Sprint(want) != fmt.Sprint(got) {
			return []string{path}
		}
	}
	return missing
}

// differences lists where got is not what want says. Empty lists and maps are as
// good as absent ones, which they become in storage.
func differences(want, got any, path string) []string {
	if want == "*" {
		if text, ok := got.(string); ok && text != "" {
			return nil
		}
	}
	switch w := want.(type) {
	case map[string]any:
		g, _ := got.(map[string]any)
		return differentFields(w, g, path)
	case []any:
		g, _ := got.([]any)
		if len(g) != len(w) {
			return []string{fmt.Sprintf("%s: want %v, got %v", path, want, got)}
		}
		var all []string
		for i := range w {
			all = append(all, differences(w[i], g[i], fmt.Sprintf("%s[%d]", path, i))...)
		}
		return all
	case nil:
		if isEmpty(got) {
			return nil
		}
	}
	if fmt.Sprint(want) != fmt.Sprint(got) {
		return []string{fmt.Sprintf("%s: want %v, got %v", path, want, got)}
	}
	return nil
}

func differentFields(want, got map[string]any, path string) []string {
	var all []string
	for key, value := range want {
		all = append(all, differences(value, got[key], path+"."+key)...)
	}
	for key, value := range got {
		if _, expected := want[key]; !expected && !isEmpty(value) {
			all = append(all, fmt.Sprintf("%s.%s: want nothing, got %v", path, key, value))
		}
	}
	sort.Strings(all)
	return all
}

func isEmpty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}
