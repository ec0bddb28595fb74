package marker

import (
	"reflect"
	"slices"
)

// Drop clears the fields of obj, a pointer to a struct, whose gates are off. A
// gate that old, the stored object, already uses keeps its fields: who has them
// can still update the object. Old is nil on create.
func (r *Rules) Drop(obj, old any) {
	found := &use{rules: r}
	found.visit(reflect.ValueOf(obj).Elem(), false)
	if len(found.gates) == 0 {
		return
	}
	kept := &use{rules: r}
	if old != nil {
		kept.visit(reflect.ValueOf(old).Elem(), false)
	}
	drop := &use{rules: r, kept: kept.gates}
	drop.visit(reflect.ValueOf(obj).Elem(), true)
}

// use finds, or clears, fields of gates that are off.
type use struct {
	rules *Rules
	gates []string // that are off and in use
	kept  []string // whose fields stay
}

// visit reports whether it cleared a field of v itself.
func (u *use) visit(v reflect.Value, clear bool) (cleared bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() && u.visit(v.Elem(), clear) && leaves[v.Type().Elem()] && v.Elem().IsZero() {
			v.SetZero()
		}
	case reflect.Slice:
		for i := range v.Len() {
			u.visit(v.Index(i), clear)
		}
	case reflect.Struct:
		s := u.rules.shapeOf(v.Type(), gated)
		for i := range s.members {
			cleared = u.field(&s.members[i], v.Field(s.members[i].index), clear) || cleared
		}
	}
	return cleared
}

func (u *use) field(m *member, v reflect.Value, clear bool) (cleared bool) {
	if len(m.gates) > 0 && !v.IsZero() {
		gate := m.gates[0]
		if !slices.Contains(u.gates, gate) {
			u.gates = append(u.gates, gate)
		}
		if clear && !slices.Contains(u.kept, gate) {
			v.SetZero()
			return true
		}
	}
	if m.descend {
		u.visit(v, clear)
	}
	return false
}
