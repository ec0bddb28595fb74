package apply

import (
	"encoding/json"
	"math"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	kjson "sigs.k8s.io/json"

	"proa/internal/apis"
)

// reapply is Apply in the case that most applies are: the configuration names
// exactly the fields that its manager applied before, the object has them all,
// and nobody else owns one that changes. Nothing is taken away then and nothing
// can conflict, so the values are set in a copy of the object. It answers false
// for any other configuration, a faulty one too.
func (m *Manager) reapply(live apis.Object, config *unstructured.Unstructured, manager string) (apis.Object, bool) {
	entries := live.GetManagedFields()
	if m.differ == nil || !m.covers(live, entries) || keepsLastApplied(live, manager) {
		return nil, false
	}
	own := ownEntry(entries, manager, m.subresource)
	if own < 0 {
		return nil, false
	}
	owned, err := m.sets.read(entries[own].FieldsV1.Raw)
	if err != nil {
		return nil, false
	}
	obj := live.DeepCopyObject().(apis.Object)
	s := setter{noStatus: m.filter != nil && m.subresource == ""}
	if !s.object(m.differ.root, owned, config.Object, obj) || s.visited != owned.Size() {
		return nil, false
	}
	if config.GetAPIVersion() != m.version || config.GetKind() != m.kind {
		return nil, false
	}
	diff, ok := m.differ.compare(reflect.ValueOf(live).Elem(), reflect.ValueOf(obj).Elem())
	if !ok || !diff.added.set.Empty() || !diff.removed.set.Empty() {
		return nil, false
	}
	if diff.modified.set.Empty() {
		return obj, true
	}
	for i := range entries {
		if i == own {
			continue
		}
		other, err := m.sets.read(entries[i].FieldsV1.Raw)
		if err != nil || !other.Intersection(&diff.modified.set).Empty() {
			return nil, false
		}
	}
	now := metav1.NewTime(m.clock.Now()).Rfc3339Copy()
	entries = obj.GetManagedFields()
	entries[own].Time = &now
	sortEntries(entries)
	return obj, true
}

// keepsLastApplied says whether an apply has to renew the annotation that
// kubectl's client-side apply left.
func keepsLastApplied(live apis.Object, manager string) bool {
	_, has := live.GetAnnotations()[corev1.LastAppliedConfigAnnotation]
	return has && manager == "kubectl"
}

func ownEntry(entries []metav1.ManagedFieldsEntry, manager, subresource string) int {
	for i := range entries {
		e := &entries[i]
		if e.Operation == metav1.ManagedFieldsOperationApply && e.Manager == manager && e.Subresource == subresource {
			return i
		}
	}
	return -1
}

// setter sets the values of a configuration in a Go struct, as far as they are
// of fields in a set. It counts the members of the set that it has met.
type setter struct {
	visited  int
	noStatus bool // no write here can own the status
}

// object is record for a whole object, whose identity nobody owns.
func (s *setter) object(n *node, owned *fieldpath.Set, config map[string]any, to apis.Object) bool {
	fields := reflect.ValueOf(to).Elem()
	for name, v := range config {
		switch name {
		case "apiVersion", "kind":
			continue
		case "metadata":
			if !s.metadata(n, owned, v, to, fields) {
				return false
			}
			continue
		case "status":
			if s.noStatus && empty(v) { // what a Go client sends of a status that it did not set
				continue
			}
		}
		if !s.field(n, owned, name, v, fields) {
			return false
		}
	}
	return true
}

func (s *setter) metadata(n *node, owned *fieldpath.Set, config any, to apis.Object, fields reflect.Value) bool {
	given, ok := config.(map[string]any)
	f := n.field("metadata")
	if !ok || f == nil {
		return false
	}
	below, ok := owned.Children.Get(f.element)
	for name, v := range given {
		switch name {
		case "name":
			if v != to.GetName() {
				return false
			}
			continue
		case "namespace":
			if v != to.GetNamespace() {
				return false
			}
			continue
		}
		if !ok || !s.field(f.node, below, name, v, field(fields, f.index)) {
			return false
		}
	}
	return true
}

func (n *node) field(name string) *fieldNode {
	for i := range n.fields {
		if *n.fields[i].element.FieldName == name {
			return &n.fields[i]
		}
	}
	return nil
}

// field sets one field of a record.
func (s *setter) field(n *node, owned *fieldpath.Set, name string, config any, record reflect.Value) bool {
	f := n.field(name)
	return f != nil && s.at(f.node, owned, f.element, config, field(record, f.index))
}

// at sets what lies at one element of a path.
func (s *setter) at(n *node, owned *fieldpath.Set, at fieldpath.PathElement, config any, to reflect.Value) bool {
	if config == nil {
		return false
	}
	if owned.Members.Has(at) {
		s.visited++
		if n.shape == leaf {
			return assign(config, to)
		}
		return empty(config) && deref(to).IsValid() // there already
	}
	below, ok := owned.Children.Get(at)
	if !ok {
		return false
	}
	if to = deref(to); !to.IsValid() {
		return false
	}
	switch n.shape {
	case record:
		return s.record(n, below, config, to)
	case mapping:
		return s.mapping(n, below, config, to)
	case keyed, set:
		return s.list(n, below, config, to)
	}
	return false
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

func (s *setter) record(n *node, owned *fieldpath.Set, config any, to reflect.Value) bool {
	given, ok := config.(map[string]any)
	if !ok {
		return false
	}
	for name, v := range given {
		if !s.field(n, owned, name, v, to) {
			return false
		}
	}
	return true
}

func (s *setter) mapping(n *node, owned *fieldpath.Set, config any, to reflect.Value) bool {
	given, ok := config.(map[string]any)
	if !ok || to.IsNil() {
		return false
	}
	for name, v := range given {
		key := reflect.ValueOf(name).Convert(to.Type().Key())
		value := reflect.New(to.Type().Elem()).Elem()
		if before := to.MapIndex(key); before.IsValid() {
			value.Set(before)
		}
		if !s.at(n.elem, owned, fieldpath.PathElement{FieldName: &name}, v, value) {
			return false
		}
		to.SetMapIndex(key, value)
	}
	return true
}

// list sets the items of a list in place. They must come in the order that they
// have in the object: another order would move them.
func (s *setter) list(n *node, owned *fieldpath.Set, config any, to reflect.Value) bool {
	given, ok := config.([]any)
	if !ok {
		return false
	}
	next := 0
	for _, v := range given {
		at, ok := n.identify(v)
		if !ok || !owned.Members.Has(at) {
			return false
		}
		for ; ; next++ {
			if next == to.Len() {
				return false
			}
			if have, ok := elementOf(n, to.Index(next)); ok && have.Equals(at) {
				break
			}
		}
		s.visited++
		if n.shape == keyed && !s.item(n.elem, owned, at, v, to.Index(next)) {
			return false
		}
		next++
	}
	return true
}

func (s *setter) item(n *node, owned *fieldpath.Set, at fieldpath.PathElement, config any, to reflect.Value) bool {
	below, ok := owned.Children.Get(at)
	to = deref(to)
	return ok && n.shape == record && to.IsValid() && s.record(n, below, config, to)
}

// identify is elementOf for an item of a configuration.
func (n *node) identify(config any) (fieldpath.PathElement, bool) {
	if n.shape == set {
		text, ok := config.(string)
		v := value.NewValueInterface(text)
		return fieldpath.PathElement{Value: &v}, ok
	}
	item, ok := config.(map[string]any)
	if !ok {
		return fieldpath.PathElement{}, false
	}
	list := make(value.FieldList, 0, len(n.keys))
	for _, k := range n.keys {
		key, given := item[k.name]
		if !given {
			key = k.def
		}
		switch key.(type) {
		case nil:
			continue
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
