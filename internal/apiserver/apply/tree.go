package apply

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// A branch is a type of a merge schema, compiled for JSON values: what a node is
// for Go structs, it is for custom resources.
type branch struct {
	scalar *schema.Scalar // nil: it is never a scalar
	object *objectBranch  // nil: it is never a map
	list   *listBranch    // nil: it is never a list
}

type objectBranch struct {
	granular bool
	fields   map[string]*branch
	more     *branch // of other names; nil: there are none
}

type listBranch struct {
	associative bool
	items       *branch
	keys        []itemKey // none: of a set of scalars
}

type itemKey struct {
	name string
	def  any // nil: a key that is absent is left out
}

// newBranch compiles a type and everything below it.
func newBranch(s *schema.Schema, ref schema.TypeRef) (*branch, error) {
	return (&branches{schema: s, done: map[compiled]*branch{}}).compile(ref)
}

type branches struct {
	schema *schema.Schema
	done   map[compiled]*branch
}

func (c *branches) compile(ref schema.TypeRef) (b *branch, err error) {
	if ref == (schema.TypeRef{}) {
		return nil, nil
	}
	b = &branch{}
	if ref.NamedType != nil {
		key := compiledAs(nil, ref)
		if known, ok := c.done[key]; ok {
			return known, nil
		}
		c.done[key] = b
	}
	atom, ok := c.schema.Resolve(ref)
	if !ok {
		return nil, fmt.Errorf("no schema for %v", ref)
	}
	b.scalar = atom.Scalar
	if m := atom.Map; m != nil {
		b.object = &objectBranch{granular: m.ElementRelationship != schema.Atomic, fields: make(map[string]*branch, len(m.Fields))}
		for i := range m.Fields {
			if b.object.fields[m.Fields[i].Name], err = c.compile(m.Fields[i].Type); err != nil {
				return nil, err
			}
		}
		if b.object.more, err = c.compile(m.ElementType); err != nil {
			return nil, err
		}
	}
	if l := atom.List; l != nil {
		b.list = &listBranch{associative: l.ElementRelationship == schema.Associative}
		if b.list.items, err = c.compile(l.ElementType); err != nil {
			return nil, err
		}
		items, _ := c.schema.Resolve(l.ElementType)
		for _, name := range l.Keys {
			k := itemKey{name: name}
			if items.Map != nil {
				f, _ := items.Map.FindField(name)
				k.def = f.Default
			}
			b.list.keys = append(b.list.keys, k)
		}
	}
	return b, nil
}

// at returns the branch of a name, nil if there must be none.
func (o *objectBranch) at(name string) *branch {
	if b, ok := o.fields[name]; ok {
		return b
	}
	return o.more
}

// valid says that a value is of the branch's type and its lists have no repeated
// items.
func (b *branch) valid(v any) bool {
	if b == nil {
		return false
	}
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		if b.object == nil {
			return false
		}
		for name, v := range v {
			if !b.object.at(name).valid(v) {
				return false
			}
		}
		return true
	case []any:
		return b.list != nil && b.list.valid(v)
	case string:
		return b.scalar != nil && (*b.scalar == schema.String || *b.scalar == schema.Untyped)
	case int64, float64:
		return b.scalar != nil && (*b.scalar == schema.Numeric || *b.scalar == schema.Untyped)
	case bool:
		return b.scalar != nil && (*b.scalar == schema.Boolean || *b.scalar == schema.Untyped)
	}
	return false
}

func (l *listBranch) valid(list []any) bool {
	for i, v := range list {
		if !l.items.valid(v) || l.associative && (!l.identified(v) || len(list) <= shortList && l.repeated(list[:i], v)) {
			return false
		}
	}
	if !l.associative || len(list) <= shortList {
		return true
	}
	_, ok := elements(len(list), func(i int) (fieldpath.PathElement, bool) { return l.identify(list[i]) })
	return ok
}

// identified says that an item can be told from others.
func (l *listBranch) identified(item any) bool {
	if len(l.keys) == 0 {
		return isScalar(item)
	}
	fields, ok := item.(map[string]any)
	if !ok {
		return false
	}
	found := false
	for _, k := range l.keys {
		v, given := fields[k.name]
		if given && !isScalar(v) {
			return false
		}
		found = found || given || k.def != nil
	}
	return found
}

func isScalar(v any) bool {
	switch v.(type) {
	case string, int64, float64, bool:
		return true
	}
	return false
}

// repeated says that an item has the identity of another; all have one.
func (l *listBranch) repeated(list []any, item any) bool {
	return slices.ContainsFunc(list, func(other any) bool { return l.same(other, item) })
}

func (l *listBranch) same(a, b any) bool {
	if len(l.keys) == 0 {
		return equal(a, b)
	}
	x, _ := a.(map[string]any)
	y, _ := b.(map[string]any)
	for _, k := range l.keys {
		if !equal(k.of(x), k.of(y)) {
			return false
		}
	}
	return true
}

// of returns the key of an item, nil if it has none.
func (k *itemKey) of(item map[string]any) any {
	if v, given := item[k.name]; given {
		return v
	}
	return k.def
}

// identify is the element of a path that stands for an item.
func (l *listBranch) identify(item any) (fieldpath.PathElement, bool) {
	if !l.identified(item) {
		return fieldpath.PathElement{}, false
	}
	if len(l.keys) == 0 {
		v := value.NewValueInterface(item)
		return fieldpath.PathElement{Value: &v}, true
	}
	fields := item.(map[string]any)
	list := make(value.FieldList, 0, len(l.keys))
	for i := range l.keys {
		if v := l.keys[i].of(fields); v != nil {
			list = append(list, value.Field{Name: l.keys[i].name, Value: value.NewValueInterface(v)})
		}
	}
	list.Sort()
	return fieldpath.PathElement{Key: &list}, true
}

// equal compares JSON values. Numbers are the same whatever type they have.
func equal(a, b any) bool {
	switch a := a.(type) {
	case nil:
		return b == nil
	case string:
		b, ok := b.(string)
		return ok && a == b
	case bool:
		b, ok := b.(bool)
		return ok && a == b
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for name, v := range a {
			if other, ok := b[name]; !ok || !equal(v, other) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, equal)
	case int64:
		if b, ok := b.(int64); ok {
			return a == b
		}
	case int: // a default of the schema
		return equal(int64(a), b)
	}
	if b, ok := b.(int); ok {
		return equal(a, int64(b))
	}
	x, okX := float(a)
	y, okY := float(b)
	return okX && okY && x == y
}

func float(v any) (float64, bool) {
	switch v := v.(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

// some is a JSON value that may be absent.
type some struct {
	value any
	given bool
}

// tree compares two valid JSON values of which at least one is given.
func (d *differences) tree(b *branch, old, obj some) {
	x, isMapX := old.value.(map[string]any)
	y, isMapY := obj.value.(map[string]any)
	l, isListL := old.value.([]any)
	r, isListR := obj.value.([]any)
	if len(x) > 0 && reflect.ValueOf(x).Pointer() == reflect.ValueOf(y).Pointer() {
		return // what a merge left alone
	}
	switch {
	case old.value != nil && obj.value != nil && (isMapX != isMapY || isListL != isListR):
		d.parts(b, old.value, true)
		d.parts(b, obj.value, false)
	case b.object != nil && b.object.granular && len(x)+len(y) > 0:
		d.object(b.object, x, y)
		d.mark(old, obj)
	case b.list != nil && b.list.associative && len(l)+len(r) > 0:
		if !old.given || !obj.given || !equal(l, r) {
			d.associative(b.list, l, r)
		}
		if d.mark(old, obj) && (old.value == nil || obj.value == nil) && b.kinds() > 1 {
			d.modified.insert(d.path)
		}
	default:
		if d.mark(old, obj) && !equal(old.value, obj.value) {
			d.modified.insert(d.path)
		}
	}
}

// parts compares one side of a value that is of another kind on the other side.
func (d *differences) parts(b *branch, v any, old bool) {
	m, isMap := v.(map[string]any)
	l, isList := v.([]any)
	switch {
	case isMap && b.object.granular && len(m) > 0:
		if old {
			d.object(b.object, m, nil)
		} else {
			d.object(b.object, nil, m)
		}
	case isList && b.list.associative && len(l) > 0:
		if old {
			d.associative(b.list, l, nil)
		} else {
			d.associative(b.list, nil, l)
		}
	default:
		d.modified.insert(d.path)
	}
}

func (b *branch) kinds() (n int) {
	for _, has := range [...]bool{b.scalar != nil, b.object != nil, b.list != nil} {
		if has {
			n++
		}
	}
	return n
}

// mark records that a value came or went, and answers true for neither.
func (d *differences) mark(old, obj some) bool {
	switch {
	case !old.given:
		d.added.insert(d.path)
	case !obj.given:
		d.removed.insert(d.path)
	default:
		return true
	}
	return false
}

func (d *differences) below(pe fieldpath.PathElement, b *branch, old, obj some) {
	d.path = append(d.path, pe)
	d.tree(b, old, obj)
	d.path = d.path[:len(d.path)-1]
	d.added.leave(len(d.path))
	d.removed.leave(len(d.path))
	d.modified.leave(len(d.path))
}

// object compares the fields of two objects, but for the one that is left out
// below metadata.
func (d *differences) object(o *objectBranch, old, obj map[string]any) {
	meta := len(d.path) == 1 && d.without != "" && *d.path[0].FieldName == "metadata"
	for name, v := range old {
		if meta && name == d.without {
			continue
		}
		now, given := obj[name]
		if given && isScalar(v) && isScalar(now) && equal(v, now) {
			continue
		}
		d.below(fieldpath.PathElement{FieldName: &name}, o.at(name), some{v, true}, some{now, given})
	}
	for name, v := range obj {
		if _, known := old[name]; !known && !(meta && name == d.without) {
			d.below(fieldpath.PathElement{FieldName: &name}, o.at(name), some{}, some{v, true})
		}
	}
}

func (d *differences) associative(b *listBranch, old, obj []any) {
	identify := func(list []any) func(int) (fieldpath.PathElement, bool) {
		return func(i int) (fieldpath.PathElement, bool) { return b.identify(list[i]) }
	}
	before, ok := elements(len(old), identify(old))
	after, okAfter := elements(len(obj), identify(obj))
	if !ok || !okAfter {
		d.failed = true
		return
	}
	for i, pe := range before.all {
		var now some
		if j := after.find(pe); j >= 0 {
			now = some{obj[j], true}
		}
		d.below(pe, b.items, some{old[i], true}, now)
	}
	for i, pe := range after.all {
		if before.find(pe) < 0 {
			d.below(pe, b.items, some{}, some{obj[i], true})
		}
	}
}

// outline writes what decides which fields the creator of a JSON value owns, as
// walk does for Go structs. The value is valid.
func (w *shapeWriter) outline(b *branch, v any) {
	switch v := v.(type) {
	case map[string]any:
		if b.object.granular && len(v) > 0 {
			w.outlineFields(b.object, v)
			return
		}
	case []any:
		if b.list.associative {
			w.outlineItems(b.list, v)
			return
		}
	}
	w.buf = append(w.buf, 0)
}

func (w *shapeWriter) outlineFields(o *objectBranch, object map[string]any) {
	w.buf = binary.AppendUvarint(append(w.buf, 'm'), uint64(len(object)))
	start := len(w.keys)
	for name := range object {
		w.keys = append(w.keys, name)
	}
	names := w.keys[start:]
	slices.Sort(names)
	for _, name := range names {
		w.text(name)
		w.outline(o.at(name), object[name])
	}
	w.keys = w.keys[:start]
}

func (w *shapeWriter) outlineItems(l *listBranch, list []any) {
	w.buf = binary.AppendUvarint(append(w.buf, 'l'), uint64(len(list)))
	for _, item := range list {
		if len(l.keys) == 0 {
			w.key(item)
			continue
		}
		fields := item.(map[string]any)
		for i := range l.keys {
			w.key(l.keys[i].of(fields))
		}
		w.outline(l.items, item)
	}
}

// key writes a scalar that is part of an identity, or that there is none.
func (w *shapeWriter) key(v any) {
	switch v := v.(type) {
	case nil:
		w.buf = append(w.buf, 0)
	case string:
		w.buf = append(w.buf, 's')
		w.text(v)
	default:
		w.buf = fmt.Appendf(append(w.buf, 'v'), "%T%v;", v, v)
	}
}
