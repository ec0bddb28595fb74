package apply

import (
	"maps"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// A pruner takes fields out of an object in the three steps that
// structured-merge-diff takes: without the fields of the last apply; then the
// object without what is neither left by that nor owned; then the object without
// what is missing in that and was applied last time.
type pruner struct {
	root     *branch
	complete func(*fieldpath.Set) *fieldpath.Set
}

func (p *pruner) prune(merged map[string]any, last, owned *fieldpath.Set) (map[string]any, bool) {
	last = p.complete(last)
	all, ok := p.paths(merged)
	if !ok {
		return nil, false
	}
	left, ok := p.paths(p.root.without(merged, last))
	if !ok {
		return nil, false
	}
	left, ok = p.paths(p.root.without(merged, all.Difference(left.Union(p.complete(owned)))))
	if !ok {
		return nil, false
	}
	object, ok := p.root.without(merged, all.Difference(left).Intersection(last)).(map[string]any)
	return object, ok
}

// paths are the completed fields of an object. It answers false where items of a
// list have lost what told them apart.
func (p *pruner) paths(v any) (*fieldpath.Set, bool) {
	object, ok := v.(map[string]any)
	if !ok {
		return nil, false
	}
	l := treeLister{path: make(fieldpath.Path, 0, 16)}
	ok = l.fields(p.root.object, object)
	return p.complete(&l.set.set), ok
}

// without returns a value without the fields and items of a set. It shares with
// the value what lies beside them. What has lost all its parts is null.
func (b *branch) without(v any, gone *fieldpath.Set) any {
	switch v := v.(type) {
	case map[string]any:
		if b.object.granular && len(v) > 0 {
			return b.object.without(v, gone)
		}
	case []any:
		if b.list.associative && len(v) > 0 {
			return b.list.without(v, gone)
		}
	default:
		return v
	}
	return nil
}

func (o *objectBranch) without(object map[string]any, gone *fieldpath.Set) any {
	out := maps.Clone(object)
	for name, v := range object {
		pe := fieldpath.PathElement{FieldName: &name}
		if gone.Members.Has(pe) {
			delete(out, name)
		} else if below, ok := gone.Children.Get(pe); ok && !below.Empty() {
			out[name] = o.at(name).without(v, below)
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func (l *listBranch) without(list []any, gone *fieldpath.Set) any {
	out := make([]any, 0, len(list))
	for _, item := range list {
		pe, _ := l.identify(item)
		if gone.Members.Has(pe) {
			continue
		}
		if below, ok := gone.Children.Get(pe); ok && !below.Empty() {
			item = l.items.without(item, below)
		}
		out = append(out, item)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// treeLister collects the paths of a JSON value as structured-merge-diff does.
type treeLister struct {
	path fieldpath.Path
	set  sink
}

// value collects what lies at the path. It answers false for a list whose items
// cannot be told apart.
func (w *treeLister) value(b *branch, v any) bool {
	switch v := v.(type) {
	case nil:
		if b.nullIsLeaf() {
			w.set.insert(w.path)
		}
		return true
	case map[string]any:
		if b.object.granular {
			return w.fields(b.object, v)
		}
	case []any:
		if b.list.associative {
			return w.items(b.list, v)
		}
	}
	w.set.insert(w.path)
	return true
}

// nullIsLeaf says that a null is a value of its own: it stands for an object, a
// scalar or a list, the first of these that there can be.
func (b *branch) nullIsLeaf() bool {
	switch {
	case b.object != nil:
		return !b.object.granular
	case b.scalar != nil:
		return true
	}
	return !b.list.associative
}

func (w *treeLister) fields(o *objectBranch, object map[string]any) bool {
	for name, v := range object {
		_, declared := o.fields[name]
		m, isMap := v.(map[string]any)
		if !w.below(fieldpath.PathElement{FieldName: &name}, o.at(name), v, !declared || v == nil || isMap && len(m) == 0) {
			return false
		}
	}
	return true
}

func (w *treeLister) items(l *listBranch, list []any) bool {
	items, ok := elements(len(list), func(i int) (fieldpath.PathElement, bool) { return l.identify(list[i]) })
	for i := 0; ok && i < len(items.all); i++ {
		ok = w.below(items.all[i], l.items, list[i], true)
	}
	return ok
}

// below collects what lies at an element below the path, and that itself if member is set.
func (w *treeLister) below(pe fieldpath.PathElement, b *branch, v any, member bool) bool {
	w.path = append(w.path, pe)
	ok := w.value(b, v)
	if member {
		w.set.insert(w.path)
	}
	w.path = w.path[:len(w.path)-1]
	w.set.leave(len(w.path))
	return ok
}

// fits says that a set goes nowhere below what is a leaf today, or is not in the
// schema any more.
func (b *branch) fits(s *fieldpath.Set) bool {
	fits := true
	s.Children.Iterate(func(pe fieldpath.PathElement) {
		set, _ := s.Children.Get(pe)
		below := b.below(pe)
		fits = fits && below != nil && below.fits(set)
	})
	return fits
}

// below is the branch at an element of a path, nil if there is none.
func (b *branch) below(pe fieldpath.PathElement) *branch {
	switch {
	case pe.FieldName != nil && b.object != nil && b.object.granular:
		return b.object.at(*pe.FieldName)
	case pe.FieldName == nil && b.list != nil && b.list.associative:
		return b.list.items
	}
	return nil
}
