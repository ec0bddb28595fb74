package apply

import (
	"bytes"
	"cmp"
	"encoding/json"
	"math"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	kjson "sigs.k8s.io/json"

	"proa/internal/apis"
	"proa/internal/apiserver/codec/jsonplan"
)

// merge is Apply on Go structs: the configuration is set field by field in a copy
// of the object, and on the way it is noted which fields it names and which of
// them the object lacks or has otherwise. It answers false, with nothing changed,
// for what it leaves to structured-merge-diff: a faulty configuration, a conflict,
// owners in other versions, lists with repeated items.
func (m *Manager) merge(live apis.Object, config *unstructured.Unstructured, manager string, force bool) (apis.Object, bool) {
	if m.custom != nil {
		return m.mergeCustom(live, config, manager, force)
	}
	if m.differ == nil || config.GetAPIVersion() != m.version || config.GetKind() != m.kind {
		return nil, false
	}
	var obj apis.Object
	var owners []owner
	own := -1
	if live == nil {
		obj = m.empty()
	} else {
		var ok bool
		if owners, own, ok = m.owners(live.GetManagedFields(), manager, m.differ.root.fits); !ok {
			return nil, false
		}
		obj = live.DeepCopyObject().(apis.Object)
	}
	w := merger{differ: m.differ, path: make(fieldpath.Path, 0, 16)}
	fields := reflect.ValueOf(obj).Elem()
	if !w.object(config.Object, fields) {
		return nil, false
	}
	named, touched := &w.named.set, &w.touched.set
	changed := w.moved || !touched.Empty()
	if m.filter != nil {
		named, touched = m.filter.Filter(named), m.filter.Filter(touched)
	}
	if own >= 0 {
		pruned, ok := m.prune(fields, owners, own, named, w.hollow)
		if !ok {
			return nil, false
		}
		changed = changed || pruned
	}
	if !yield(owners, own, touched, force) {
		return nil, false
	}
	if _, annotated := obj.GetAnnotations()[corev1.LastAppliedConfigAnnotation]; annotated && manager == "kubectl" {
		return nil, false // the annotation has to follow the configuration
	}
	if changed {
		m.form.Default(obj)
	}
	entries, ok := m.owned(owners, own, named.Difference(stripped), nil, manager, changed)
	if ok {
		obj.SetManagedFields(entries)
	}
	return obj, ok
}

// owner is an entry of managedFields, decoded. What it has lost is not in left.
type owner struct {
	entry *metav1.ManagedFieldsEntry
	set   *fieldpath.Set // shared
	left  *fieldpath.Set
}

// owners decodes entries and finds the one of the applying manager, -1 if there
// is none. A set that does not fit the kind is left to structured-merge-diff.
func (m *Manager) owners(entries []metav1.ManagedFieldsEntry, manager string, fits func(*fieldpath.Set) bool) (owners []owner, own int, ok bool) {
	own = -1
	for i := range entries {
		e := &entries[i]
		if e.APIVersion != m.version || e.FieldsV1 == nil || e.FieldsType != "FieldsV1" {
			return nil, -1, false
		}
		for j := range i {
			if sameOwner(e, &entries[j]) {
				return nil, -1, false
			}
		}
		switch e.Operation {
		case metav1.ManagedFieldsOperationApply:
			if e.Manager == cmp.Or(manager, unnamed) && e.Subresource == m.subresource {
				own = i
			}
		case metav1.ManagedFieldsOperationUpdate:
		default:
			return nil, -1, false
		}
		set, err := m.sets.read(e.FieldsV1.Raw)
		if err != nil || !fits(set.Set) {
			return nil, -1, false
		}
		owners = append(owners, owner{e, set.Set, set.Set})
	}
	return owners, own, len(owners) > 0
}

func sameOwner(a, b *metav1.ManagedFieldsEntry) bool {
	return a.Manager == b.Manager && a.Operation == b.Operation && a.Subresource == b.Subresource
}

// fits says that a set goes nowhere below what is a leaf today.
func (n *node) fits(s *fieldpath.Set) bool {
	fits := true
	s.Children.Iterate(func(pe fieldpath.PathElement) {
		below := n.below(pe)
		set, _ := s.Children.Get(pe)
		fits = fits && below != nil && below.shape != leaf && below.fits(set)
	})
	return fits
}

// yield takes the touched fields from all others. It answers false where that
// would need force.
func yield(owners []owner, own int, touched *fieldpath.Set, force bool) bool {
	if touched.Empty() {
		return true
	}
	for i := range owners {
		if i == own {
			continue
		}
		conflict := owners[i].set.Intersection(touched)
		if conflict.Empty() {
			continue
		}
		if !force {
			return false
		}
		owners[i].left = owners[i].left.Difference(conflict)
	}
	return true
}

// owned returns the entries after an apply. Record is the JSON of mine, nil if it
// is yet to be made.
func (m *Manager) owned(owners []owner, own int, mine *fieldpath.Set, record []byte, manager string, changed bool) ([]metav1.ManagedFieldsEntry, bool) {
	entries := make([]metav1.ManagedFieldsEntry, 0, len(owners)+1)
	now := metav1.NewTime(m.clock.Now()).Rfc3339Copy()
	for i, o := range owners {
		left, raw := o.left, []byte(nil)
		if i == own {
			left, raw = mine, record
		}
		if left.Empty() {
			continue
		}
		e := *o.entry
		if left != o.set && !left.Equals(o.set) {
			if !written(left, &raw) {
				return nil, false
			}
			e.FieldsV1 = &metav1.FieldsV1{Raw: raw}
		}
		if i == own && changed {
			e.Time = &now
		}
		entries = append(entries, e)
	}
	if own < 0 && !mine.Empty() {
		if !written(mine, &record) {
			return nil, false
		}
		e := m.entry(cmp.Or(manager, unnamed), record)
		e.Operation = metav1.ManagedFieldsOperationApply
		if !changed {
			e.Time = nil // as upstream has it
		}
		entries = append(entries, e)
	}
	sortEntries(entries)
	return entries, true
}

// written makes the JSON of a set, if there is none yet.
func written(s *fieldpath.Set, record *[]byte) bool {
	if *record != nil {
		return true
	}
	made, err := s.ToJSON()
	*record = made
	return err == nil
}

// merger sets the values of a configuration in a Go struct.
type merger struct {
	differ  *differ
	path    fieldpath.Path
	named   sink // the fields of the configuration
	touched sink // those of them that the object lacked or had otherwise
	moved   bool // a list's items come in another order now
	hollow  bool // the result is not all on the wire as the configuration has it
}

func (w *merger) enter(pe fieldpath.PathElement) { w.path = append(w.path, pe) }

func (w *merger) leave() {
	w.path = w.path[:len(w.path)-1]
	w.named.leave(len(w.path))
	w.touched.leave(len(w.path))
}

func (w *merger) object(config map[string]any, to reflect.Value) bool {
	for name, v := range config {
		if name == "apiVersion" || name == "kind" {
			continue
		}
		if !w.field(w.differ.root, name, v, to, true) {
			return false
		}
	}
	return true
}

// field sets one field of a record, which the object had if present is set.
func (w *merger) field(n *node, name string, config any, record reflect.Value, present bool) bool {
	f := n.named[name]
	if f == nil {
		return false
	}
	w.enter(f.element)
	present = present && f.at(record).IsValid()
	if !w.value(f.node, config, field(record, f.index), present) {
		return false
	}
	if m, ok := config.(map[string]any); config == nil || ok && len(m) == 0 {
		w.named.insert(w.path)
	}
	w.leave()
	return true
}

// value sets what lies at the path.
func (w *merger) value(n *node, config any, to reflect.Value, present bool) bool {
	switch {
	case config == nil:
		return w.null(n, to, present)
	case n.shape == leaf:
		return w.leaf(n, config, to, present)
	case empty(config):
		return w.empty(n, config, to, present)
	}
	if !present {
		w.touched.insert(w.path)
	}
	if to.Kind() == reflect.Pointer {
		if to.IsNil() {
			to.Set(reflect.New(to.Type().Elem()))
			present = false
		}
		to = to.Elem()
	}
	switch given := config.(type) {
	case map[string]any:
		switch n.shape {
		case record:
			return w.record(n, given, to, present) && (present || w.fresh(n, given, to))
		case mapping:
			return w.mapping(n, given, to)
		}
	case []any:
		if n.shape == keyed || n.shape == set {
			return w.list(n, given, to)
		}
	}
	return false
}

// null leaves alone what is null or absent already.
func (w *merger) null(n *node, to reflect.Value, present bool) bool {
	switch {
	case !present:
		w.touched.insert(w.path)
		return true
	case isNull(to):
		return true
	case n.wire:
		data, err := jsonplan.Append(nil, to.Addr().Interface())
		return err == nil && string(data) == "null"
	}
	return false
}

func (w *merger) leaf(n *node, config any, to reflect.Value, present bool) bool {
	w.named.insert(w.path)
	if !w.valid(n, config) {
		return false
	}
	if present && holds(n, to, config) {
		return true
	}
	w.touched.insert(w.path)
	return assign(config, to)
}

// valid says that the schema allows a value for a leaf.
func (w *merger) valid(n *node, config any) bool {
	if n.scalar == nil {
		_, err := typed.AsTyped(value.NewValueInterface(config), w.differ.schema, n.ref)
		return err == nil
	}
	switch config.(type) {
	case string:
		return *n.scalar == schema.String || *n.scalar == schema.Untyped
	case int64, float64:
		return *n.scalar == schema.Numeric || *n.scalar == schema.Untyped
	case bool:
		return *n.scalar == schema.Boolean || *n.scalar == schema.Untyped
	}
	return false
}

// holds says that a Go value is written as the JSON value config.
func holds(n *node, v reflect.Value, config any) bool {
	if isNull(v) {
		return false
	}
	if !n.wire {
		plain := deref(v)
		switch config := config.(type) {
		case string:
			if plain.Kind() == reflect.String {
				return plain.String() == config
			}
		case bool:
			return plain.Kind() == reflect.Bool && plain.Bool() == config
		case int64:
			if plain.CanInt() {
				return plain.Int() == config
			}
		}
	}
	data, err := jsonplan.Append(make([]byte, 0, 64), v.Addr().Interface())
	if err != nil {
		return false
	}
	if text, ok := config.(string); ok && len(data) == len(text)+2 && string(data[1:len(data)-1]) == text && !bytes.ContainsRune(data, '\\') {
		return data[0] == '"'
	}
	var written any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &written); err != nil {
		return false
	}
	return value.Equals(value.NewValueInterface(written), value.NewValueInterface(config))
}

// empty sets an empty map or list, which takes nothing away.
func (w *merger) empty(n *node, config any, to reflect.Value, present bool) bool {
	if _, ok := config.(map[string]any); ok != (n.shape == record || n.shape == mapping) {
		return false
	}
	made := !present || isNull(to)
	if made {
		w.touched.insert(w.path)
	}
	w.hollow = w.hollow || n.shape == keyed || n.shape == set
	if to.Kind() == reflect.Pointer {
		if to.IsNil() {
			to.Set(reflect.New(to.Type().Elem()))
		}
		to = to.Elem()
	}
	if made && n.shape == record {
		w.fresh(n, nil, to)
	}
	switch {
	case to.Kind() == reflect.Map && to.IsNil():
		to.Set(reflect.MakeMap(to.Type()))
	case to.Kind() == reflect.Slice && to.IsNil():
		to.Set(reflect.MakeSlice(to.Type(), 0, 0))
	}
	return true
}

// fresh notes whether a struct that is new has fields on the wire that the
// configuration does not name. It answers true.
func (w *merger) fresh(n *node, config map[string]any, to reflect.Value) bool {
	for i := range n.fields {
		f := &n.fields[i]
		if _, named := config[*f.element.FieldName]; !named && f.at(to).IsValid() {
			w.hollow = true
		}
	}
	return true
}

func empty(config any) bool {
	switch v := config.(type) {
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

func (w *merger) record(n *node, config map[string]any, to reflect.Value, present bool) bool {
	for name, v := range config {
		if !w.field(n, name, v, to, present) {
			return false
		}
	}
	return true
}

func (w *merger) mapping(n *node, config map[string]any, to reflect.Value) bool {
	if to.IsNil() {
		to.Set(reflect.MakeMapWithSize(to.Type(), len(config)))
	}
	for name, v := range config {
		if v == nil {
			return false
		}
		key := reflect.ValueOf(name).Convert(to.Type().Key())
		before, made := to.MapIndex(key), reflect.New(to.Type().Elem()).Elem()
		if before.IsValid() {
			made.Set(before)
		}
		w.enter(fieldpath.PathElement{FieldName: &name})
		if !w.value(n.elem, v, made, before.IsValid()) {
			return false
		}
		w.named.insert(w.path)
		w.leave()
		to.SetMapIndex(key, made)
	}
	return true
}

// list merges the items of two lists by their identity.
func (w *merger) list(n *node, config []any, to reflect.Value) bool {
	right, ok := elements(len(config), func(i int) (fieldpath.PathElement, bool) { return n.identify(config[i]) })
	if !ok {
		return false
	}
	left, ok := elements(to.Len(), func(i int) (fieldpath.PathElement, bool) { return elementOf(n, to.Index(i)) })
	if !ok {
		return false
	}
	order := interleave(left, right)
	w.arrange(to, order)
	for i, o := range order {
		if o.right < 0 {
			continue
		}
		w.enter(right.all[o.right])
		if !w.value(n.elem, config[o.right], to.Index(i), o.left >= 0) {
			return false
		}
		if at, ok := elementOf(n, to.Index(i)); o.left < 0 && (!ok || !at.Equals(right.all[o.right])) {
			return false // a key that is left out, which the Go type writes
		}
		w.named.insert(w.path)
		w.leave()
	}
	return true
}

// arrange gives a list the items of an order, new ones with nothing in them.
func (w *merger) arrange(to reflect.Value, order []pair) {
	same := len(order) == to.Len()
	for i := 0; same && i < len(order); i++ {
		same = order[i].left == i
	}
	if same {
		return
	}
	w.moved = true
	made := reflect.MakeSlice(to.Type(), len(order), len(order))
	for i, o := range order {
		if o.left >= 0 {
			made.Index(i).Set(to.Index(o.left))
		}
	}
	to.Set(made)
}

// identify is elementOf for an item of a configuration.
func (n *node) identify(config any) (fieldpath.PathElement, bool) {
	if n.shape == set {
		text, ok := config.(string)
		v := value.NewValueInterface(text)
		return fieldpath.PathElement{Value: &v}, ok
	}
	item, ok := config.(map[string]any)
	if !ok || len(item) == 0 { // of defaults alone: pruning by structured-merge-diff may drop it
		return fieldpath.PathElement{}, false
	}
	list := make(value.FieldList, 0, len(n.keys))
	for _, k := range n.keys {
		key, given := item[k.name]
		if !given {
			if key = k.def; key == nil {
				continue
			}
		}
		switch key.(type) {
		case string, bool, int64, int:
			list = append(list, value.Field{Name: k.name, Value: value.NewValueInterface(key)})
		default:
			return fieldpath.PathElement{}, false
		}
	}
	list.Sort()
	return fieldpath.PathElement{Key: &list}, len(list) > 0
}

// assign gives a Go value the meaning of a JSON value, if it has the form for it.
func assign(config any, to reflect.Value) bool {
	if to.Kind() == reflect.Pointer {
		made := reflect.New(to.Type().Elem())
		if !assign(config, made.Elem()) {
			return false
		}
		to.Set(made)
		return true
	}
	if !to.Addr().Type().Implements(jsonUnmarshaler) {
		switch v := config.(type) {
		case string:
			if to.Kind() == reflect.String {
				to.SetString(v)
				return true
			}
		case bool:
			if to.Kind() == reflect.Bool {
				to.SetBool(v)
				return true
			}
		case int64:
			if to.CanInt() && !to.OverflowInt(v) {
				to.SetInt(v)
				return true
			}
		}
	}
	switch to.Kind() {
	case reflect.Struct, reflect.Map, reflect.Slice, reflect.Float64:
		return decode(config, to)
	}
	return false
}

// decode is assign for a value of several parts, which is replaced as a whole.
func decode(config any, to reflect.Value) bool {
	if f, ok := config.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
		return false
	}
	data, err := json.Marshal(config)
	if err != nil {
		return false
	}
	made := reflect.New(to.Type())
	complaints, err := kjson.UnmarshalStrict(data, made.Interface())
	if err != nil || len(complaints) > 0 {
		return false
	}
	to.Set(made.Elem())
	return true
}
