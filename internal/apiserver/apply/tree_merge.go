package apply

import (
	"maps"
	"slices"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// A treeMerger sets the values of a configuration in a JSON value, as
// structured-merge-diff merges typed values: nothing is taken away, a leaf becomes
// what the configuration has. All values are valid. Neither side is changed; what
// stays as it was is shared with it.
type treeMerger struct {
	changed bool // the outcome is not equal to what there was
	hollow  bool // the configuration names what has parts without naming any of them
}

// value returns what comes of a value, and whether that is another one than before.
func (w *treeMerger) value(b *branch, old some, config any) (any, bool) {
	switch given := config.(type) {
	case nil:
		if b.outlasts(old.value) {
			w.hollow = true
			return old.value, false
		}
	case map[string]any:
		if b.object.granular {
			was, _ := old.value.(map[string]any)
			switch {
			case len(was) > 0:
				w.hollow = w.hollow || len(given) == 0
				return w.object(b.object, was, given)
			case len(given) > 0:
				w.changed = true
				return given, true
			}
		}
	case []any:
		if b.list.associative {
			was, _ := old.value.([]any)
			switch {
			case len(was) > 0:
				return w.list(b.list, was, given)
			case len(given) > 0:
				w.changed = true
				return given, true
			}
		}
	}
	return w.leaf(old, config)
}

// leaf replaces a value as a whole, also by one that is equal but written otherwise.
func (w *treeMerger) leaf(old some, config any) (any, bool) {
	if old.given && identical(old.value, config) {
		return old.value, false
	}
	w.changed = w.changed || !old.given || !equal(old.value, config)
	return config, true
}

// outlasts says that a value stays when the configuration has null for it: what is
// merged is only added to.
func (b *branch) outlasts(old any) bool {
	switch old := old.(type) {
	case map[string]any:
		return len(old) > 0 && b.object.granular
	case []any: // a null is an object or scalar where there can be one
		return len(old) > 0 && b.list.associative && b.object == nil && b.scalar == nil
	}
	return false
}

// object is value for two objects, of which the first has something in it.
func (w *treeMerger) object(o *objectBranch, old, config map[string]any) (map[string]any, bool) {
	var out map[string]any
	for name, v := range config {
		was, given := old[name]
		now, replaced := w.value(o.at(name), some{was, given}, v)
		if !replaced {
			continue
		}
		if out == nil {
			out = maps.Clone(old)
		}
		out[name] = now
	}
	if out == nil {
		return old, false
	}
	return out, true
}

// list merges the items of two lists by their identity.
func (w *treeMerger) list(l *listBranch, old, config []any) (any, bool) {
	left, okLeft := elements(len(old), func(i int) (fieldpath.PathElement, bool) { return l.identify(old[i]) })
	right, okRight := elements(len(config), func(i int) (fieldpath.PathElement, bool) { return l.identify(config[i]) })
	if !okLeft || !okRight { // not of valid values
		panic("merge of a list with an item twice")
	}
	order := interleave(left, right)
	out := make([]any, len(order))
	other := len(order) != len(old)
	for i, o := range order {
		var was some
		if o.left >= 0 {
			was = some{old[o.left], true}
		}
		if o.left != i {
			other, w.changed = true, true
		}
		if out[i] = was.value; o.right >= 0 {
			fields, isMap := config[o.right].(map[string]any)
			w.hollow = w.hollow || isMap && len(fields) == 0
			item, replaced := w.value(l.items, was, config[o.right])
			out[i], other = item, other || replaced
		}
	}
	if !other {
		return old, false
	}
	return out, true
}

// identical says that two JSON values are equal and of the same Go types.
func identical(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for name, v := range a {
			if other, ok := b[name]; !ok || !identical(v, other) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, identical)
	}
	switch b.(type) {
	case map[string]any, []any: // of which == knows nothing
		return false
	}
	return a == b
}
