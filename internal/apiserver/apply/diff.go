package apply

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"proa/internal/apiserver/codec/jsonplan"
	"proa/internal/store/sharing"
)

// A differ compares two Go structs of one kind as structured-merge-diff compares
// their typed values, an order of magnitude faster: the merge schema and the Go
// type are brought together once, into a tree of nodes, and no object is turned
// into a generic value. Types whose wire form the schema does not describe (raw
// extensions, deduced types) have no differ.
type differ struct {
	root   *node
	schema *schema.Schema
	ref    schema.TypeRef
}

type shape int

const (
	leaf    shape = iota // a scalar, or an atomic struct, map or list
	record               // a struct
	mapping              // a map with string keys
	keyed                // a list whose items have keys
	set                  // a list of distinct scalars
)

type node struct {
	shape  shape
	fields []fieldNode // of a record
	elem   *node       // of the others
	keys   []keyField  // of a keyed list's items, sorted by name
	wire   bool        // a leaf compared by its JSON form

	named  map[string]*fieldNode // fields by name
	ref    schema.TypeRef        // of a leaf
	scalar *schema.Scalar        // of a leaf that is one
}

type fieldNode struct {
	index     []int
	element   fieldpath.PathElement
	omitempty bool
	omitzero  bool
	node      *node
}

type keyField struct {
	name  string
	index []int
	omit  bool
	def   any // nil: a key that is absent is left out
}

// newDiffer fails for types that it cannot do justice to.
func newDiffer(t reflect.Type, s *schema.Schema, ref schema.TypeRef) (*differ, error) {
	c := &compiler{schema: s, done: map[compiled]*node{}}
	root, err := c.compile(t, ref)
	if err != nil {
		return nil, err
	}
	return &differ{root, s, ref}, nil
}

type compiled struct {
	t        reflect.Type
	name     string
	relation schema.ElementRelationship
}

func compiledAs(t reflect.Type, ref schema.TypeRef) compiled {
	key := compiled{t: t, name: *ref.NamedType}
	if ref.ElementRelationship != nil {
		key.relation = *ref.ElementRelationship
	}
	return key
}

type compiler struct {
	schema *schema.Schema
	done   map[compiled]*node
}

var (
	jsonMarshaler   = reflect.TypeFor[json.Marshaler]()
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
)

func (c *compiler) compile(t reflect.Type, ref schema.TypeRef) (*node, error) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if ref.NamedType != nil {
		if n, ok := c.done[compiledAs(t, ref)]; ok {
			return n, nil
		}
	}
	atom, ok := c.schema.Resolve(ref)
	if !ok {
		return nil, fmt.Errorf("no schema for %s", t)
	}
	n := &node{ref: ref, scalar: atom.Scalar}
	if ref.NamedType != nil {
		c.done[compiledAs(t, ref)] = n
	}
	marshals := t.Implements(jsonMarshaler) || reflect.PointerTo(t).Implements(jsonMarshaler)
	switch {
	case atom.Scalar != nil && atom.Map == nil && atom.List == nil:
		n.wire = marshals
		return n, nil
	case marshals || atom.Scalar != nil || (atom.Map == nil) == (atom.List == nil):
		return nil, fmt.Errorf("%s has no single form", t)
	case atom.Map != nil && t.Kind() == reflect.Struct:
		return n, c.record(n, t, atom.Map)
	case atom.Map != nil && t.Kind() == reflect.Map && t.Key().Kind() == reflect.String:
		return n, c.mapping(n, t, atom.Map)
	case atom.List != nil && t.Kind() == reflect.Slice:
		return n, c.list(n, t, atom.List)
	}
	return nil, fmt.Errorf("%s does not fit its schema", t)
}

func (c *compiler) mapping(n *node, t reflect.Type, m *schema.Map) (err error) {
	if m.ElementRelationship == schema.Atomic {
		return nil
	}
	if len(m.Fields) > 0 {
		return fmt.Errorf("%s has declared keys", t)
	}
	n.shape = mapping
	n.elem, err = c.compile(t.Elem(), m.ElementType)
	return err
}

func (c *compiler) list(n *node, t reflect.Type, l *schema.List) (err error) {
	if l.ElementRelationship != schema.Associative {
		return nil
	}
	if n.elem, err = c.compile(t.Elem(), l.ElementType); err != nil {
		return err
	}
	if len(l.Keys) == 0 {
		n.shape = set
		if t.Elem().Kind() != reflect.String {
			return fmt.Errorf("set of %s", t.Elem())
		}
		return nil
	}
	n.shape = keyed
	atom, _ := c.schema.Resolve(l.ElementType)
	for _, name := range l.Keys {
		k, found := keyOf(t.Elem(), name)
		if !found || atom.Map == nil {
			return fmt.Errorf("key %s of %s", name, t)
		}
		if f, ok := atom.Map.FindField(name); ok {
			k.def = f.Default
		}
		n.keys = append(n.keys, k)
	}
	return nil
}

// keyOf finds the field of a list's item that has a name on the wire.
func keyOf(t reflect.Type, name string) (keyField, bool) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return keyField{}, false
	}
	for _, f := range reflect.VisibleFields(t) {
		if tag, opts, _ := strings.Cut(f.Tag.Get("json"), ","); tag == name {
			return keyField{name: name, index: f.Index, omit: strings.Contains(opts, "omitempty")}, true
		}
	}
	return keyField{}, false
}

func (c *compiler) record(n *node, t reflect.Type, m *schema.Map) error {
	if m.ElementRelationship == schema.Atomic {
		return nil
	}
	n.shape = record
	if err := c.fields(n, t, m, nil); err != nil {
		return err
	}
	n.named = make(map[string]*fieldNode, len(n.fields))
	for i := range n.fields {
		n.named[*n.fields[i].element.FieldName] = &n.fields[i]
	}
	return nil
}

func (c *compiler) fields(n *node, t reflect.Type, m *schema.Map, prefix []int) error {
	for i := range t.NumField() {
		f := t.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		index := append(append([]int{}, prefix...), i)
		if name == "-" || f.Name == "TypeMeta" || f.Name == "ManagedFields" {
			continue
		}
		if name == "" && f.Anonymous {
			if f.Type.Kind() != reflect.Struct {
				return fmt.Errorf("%s embeds %s", t, f.Type)
			}
			if err := c.fields(n, f.Type, m, index); err != nil {
				return err
			}
			continue
		}
		ref := m.ElementType
		if sf, ok := m.FindField(name); ok {
			ref = sf.Type
		} else if ref == (schema.TypeRef{}) {
			return fmt.Errorf("field %s of %s is not in the schema", name, t)
		}
		sub, err := c.compile(f.Type, ref)
		if err != nil {
			return err
		}
		n.fields = append(n.fields, fieldNode{
			index: index, element: fieldpath.PathElement{FieldName: &name},
			omitempty: strings.Contains(opts, "omitempty"), omitzero: strings.Contains(opts, "omitzero"), node: sub,
		})
	}
	return nil
}

// differences are the paths at which two objects differ.
type differences struct {
	removed, modified, added sink
	path                     fieldpath.Path
	failed                   bool   // the objects have no well-formed comparison
	without                  string // a field of metadata that is not compared
}

// sink is a set that is filled in the order of a walk: it holds on to the nested
// sets along the current path.
type sink struct {
	set  fieldpath.Set
	open []*fieldpath.Set // open[i] is the set below the path's first i+1 elements
}

func (s *sink) insert(path fieldpath.Path) {
	last := len(path) - 1
	for i := len(s.open); i < last; i++ {
		s.open = append(s.open, s.at(i).Children.Descend(path[i]))
	}
	s.at(last).Members.Insert(path[last])
}

func (s *sink) at(depth int) *fieldpath.Set {
	if depth == 0 {
		return &s.set
	}
	return s.open[depth-1]
}

// leave closes what lies below a path of this length.
func (s *sink) leave(length int) {
	if len(s.open) > length {
		s.open = s.open[:length]
	}
}

// compare compares two structs of the differ's type; both exist.
func (d *differ) compare(old, obj reflect.Value) (*differences, bool) {
	diff := &differences{path: make(fieldpath.Path, 0, 16)}
	diff.walk(d.root, old, obj)
	return diff, !diff.failed
}

// isNull says that a value exists on the wire but is null there, or not at all.
func isNull(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
		return v.IsNil()
	}
	return false
}

func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Struct:
		return false
	case reflect.Map, reflect.Slice:
		return v.Len() == 0
	}
	return v.IsZero()
}

// at returns a field as it is on the wire: the zero Value when it is left out.
func (f *fieldNode) at(parent reflect.Value) reflect.Value {
	if !parent.IsValid() {
		return parent
	}
	v := field(parent, f.index)
	if f.omitempty && isEmpty(v) || f.omitzero && v.IsZero() {
		return reflect.Value{}
	}
	return v
}

func field(v reflect.Value, index []int) reflect.Value {
	if len(index) == 1 {
		return v.Field(index[0])
	}
	return v.FieldByIndex(index)
}

// walk compares two values of which at least one exists; an absent one is the zero Value.
func (d *differences) walk(n *node, old, obj reflect.Value) {
	if n.shape == leaf || length(n, old) == 0 && length(n, obj) == 0 {
		d.leaf(n, old, obj)
		return
	}
	lhs, rhs := deref(old), deref(obj)
	switch n.shape {
	case record:
		for i := range n.fields {
			f := &n.fields[i]
			before, after := f.at(lhs), f.at(rhs)
			if len(d.path) == 0 && f.node.shape == record && *f.element.FieldName != "metadata" && sameWire(before, after) {
				continue // most writes change the spec or the status, not both
			}
			d.child(f.element, f.node, before, after)
		}
	case mapping:
		d.mapping(n, lhs, rhs)
	case keyed, set:
		if !sameWire(lhs, rhs) {
			d.list(n, lhs, rhs)
		}
	}
	d.presence(old, obj)
}

func (d *differences) presence(old, obj reflect.Value) bool {
	switch {
	case !old.IsValid():
		d.added.insert(d.path)
	case !obj.IsValid():
		d.removed.insert(d.path)
	default:
		return true
	}
	return false
}

func (d *differences) leaf(n *node, old, obj reflect.Value) {
	if d.presence(old, obj) && !same(n, old, obj) {
		d.modified.insert(d.path)
	}
}

func same(n *node, old, obj reflect.Value) bool {
	if isNull(old) != isNull(obj) {
		return false
	}
	a, b := old.Interface(), obj.Interface()
	if !n.wire {
		return equality.Semantic.DeepEqual(a, b)
	}
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && string(x) == string(y)
}

// sameWire says that two values are the same on the wire, so that there is no
// difference below. False says nothing.
func sameWire(a, b reflect.Value) bool {
	if !a.IsValid() || !b.IsValid() || !a.CanAddr() || !b.CanAddr() {
		return false
	}
	x, y := a.Addr().Interface(), b.Addr().Interface()
	if sharing.Equal(x, y) {
		return true
	}
	t := texts.Get().(*[2][]byte)
	defer texts.Put(t)
	var errA, errB error
	t[0], errA = jsonplan.Append(t[0][:0], x)
	t[1], errB = jsonplan.Append(t[1][:0], y)
	return errA == nil && errB == nil && bytes.Equal(t[0], t[1])
}

var texts = sync.Pool{New: func() any { return new([2][]byte) }}

func deref(v reflect.Value) reflect.Value {
	if v.Kind() == reflect.Pointer {
		return v.Elem() // the zero Value of a nil pointer
	}
	return v
}

// length counts what a value has on the wire.
func length(n *node, v reflect.Value) (count int) {
	if v = deref(v); !v.IsValid() {
		return 0
	}
	if n.shape != record {
		return v.Len()
	}
	for i := range n.fields {
		if n.fields[i].at(v).IsValid() {
			return 1
		}
	}
	return 0
}

func (d *differences) child(pe fieldpath.PathElement, n *node, old, obj reflect.Value) {
	if !old.IsValid() && !obj.IsValid() {
		return
	}
	d.path = append(d.path, pe)
	d.walk(n, old, obj)
	d.path = d.path[:len(d.path)-1]
	d.added.leave(len(d.path))
	d.removed.leave(len(d.path))
	d.modified.leave(len(d.path))
}

func (d *differences) mapping(n *node, old, obj reflect.Value) {
	visit := func(m, other reflect.Value, skip bool) {
		if !m.IsValid() {
			return
		}
		for it := m.MapRange(); it.Next(); {
			key := it.Key().String()
			var o reflect.Value
			if other.IsValid() {
				o = other.MapIndex(it.Key())
			}
			pe := fieldpath.PathElement{FieldName: &key}
			switch {
			case !skip:
				d.child(pe, n.elem, it.Value(), o)
			case !o.IsValid():
				d.child(pe, n.elem, o, it.Value())
			}
		}
	}
	visit(old, obj, false)
	visit(obj, old, true)
}

// list compares the items of two lists by their identity.
func (d *differences) list(n *node, old, obj reflect.Value) {
	before, after := d.items(n, old), d.items(n, obj)
	for i := range before.items {
		e := &before.items[i]
		d.child(e.element, n.elem, e.value, after.find(e.element))
	}
	for i := range after.items {
		if e := &after.items[i]; !before.find(e.element).IsValid() {
			d.child(e.element, n.elem, reflect.Value{}, e.value)
		}
	}
}

type item struct {
	element fieldpath.PathElement
	value   reflect.Value
}

// index finds the items of a list by identity. A map pays for long lists only.
type index struct {
	items []item
	names map[string]int
}

const shortList = 16

func (x *index) find(e fieldpath.PathElement) reflect.Value {
	if x.names != nil {
		if i, ok := x.names[e.String()]; ok {
			return x.items[i].value
		}
		return reflect.Value{}
	}
	for i := range x.items {
		if x.items[i].element.Equals(e) {
			return x.items[i].value
		}
	}
	return reflect.Value{}
}

func (d *differences) items(n *node, list reflect.Value) (x index) {
	if !list.IsValid() {
		return x
	}
	count := list.Len()
	x.items = make([]item, 0, count)
	if count > shortList {
		x.names = make(map[string]int, count)
	}
	for i := range count {
		v := list.Index(i)
		e, ok := elementOf(n, v)
		if !ok || x.find(e).IsValid() { // no identity, or one that is taken
			d.failed = true
			return index{}
		}
		if x.names != nil {
			x.names[e.String()] = i
		}
		x.items = append(x.items, item{e, v})
	}
	return x
}

func elementOf(n *node, v reflect.Value) (fieldpath.PathElement, bool) {
	if n.shape == set {
		val := value.NewValueInterface(v.String())
		return fieldpath.PathElement{Value: &val}, true
	}
	if v = deref(v); !v.IsValid() {
		return fieldpath.PathElement{}, false
	}
	list := make(value.FieldList, 0, len(n.keys))
	for _, k := range n.keys {
		key, present := scalar(v.FieldByIndex(k.index))
		if !present || k.omit && v.FieldByIndex(k.index).IsZero() {
			key = k.def
		}
		if key != nil {
			list = append(list, value.Field{Name: k.name, Value: value.NewValueInterface(key)})
		}
	}
	list.Sort()
	return fieldpath.PathElement{Key: &list}, len(list) > 0
}

func scalar(v reflect.Value) (any, bool) {
	switch v = deref(v); v.Kind() {
	case reflect.String:
		return v.String(), true
	case reflect.Int, reflect.Int32, reflect.Int64:
		return v.Int(), true
	case reflect.Bool:
		return v.Bool(), true
	}
	return nil, false
}
