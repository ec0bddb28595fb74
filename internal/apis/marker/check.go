package marker

import (
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate checks obj, a pointer to a struct, against the tags of its types. Old
// is nil on create. What an update does not touch is not looked at again, as
// upstream's ratcheting has it. Tags that need more than the value beside them
// (union discriminators, item rules) are left to the kind's own validation.
func (r *Rules) Validate(obj, old any) field.ErrorList {
	v := reflect.ValueOf(obj).Elem()
	alone := check{rules: r, mode: values}
	alone.structure(nil, v, reflect.Value{})
	if old == nil {
		return alone.errs
	}
	c := check{rules: r, mode: changes}
	if len(alone.errs) > 0 { // what is wrong may have been wrong before
		c.mode = all
	}
	c.structure(nil, v, reflect.ValueOf(old).Elem())
	return c.errs
}

type check struct {
	rules *Rules
	mode  mode
	errs  field.ErrorList
}

func (c *check) add(e *field.Error) { c.errs = append(c.errs, e) }

// place is where a value stands; it becomes a path when there is an error to report.
type place struct {
	parent *place
	name   string
	key    string
	index  int // -1 for a field or a key
}

func (p *place) path() *field.Path {
	switch {
	case p == nil:
		return nil
	case p.index >= 0:
		return p.parent.path().Index(p.index)
	case p.name == "":
		return p.parent.path().Key(p.key)
	case p.parent == nil:
		return field.NewPath(p.name)
	}
	return p.parent.path().Child(p.name)
}

// structure checks the fields of a struct. Old is the zero Value for one that
// was not there before.
func (c *check) structure(at *place, v, old reflect.Value) {
	s := c.rules.shapeOf(v.Type(), c.mode)
	c.union(at, s, v, old)
	for i := range s.members {
		m := &s.members[i]
		var before reflect.Value
		if old.IsValid() {
			before = old.Field(m.index)
		}
		if m.name == "" {
			c.member(at, m, v.Field(m.index), before)
			continue
		}
		c.member(&place{parent: at, name: m.name, index: -1}, m, v.Field(m.index), before)
	}
}

// union checks that exactly one of a struct's alternatives is set.
func (c *check) union(at *place, s *shape, v, old reflect.Value) {
	if len(s.unions) == 0 {
		return
	}
	set := 0
	changed := !old.IsValid()
	for _, i := range s.unions {
		m := &s.members[i]
		is := !unset(v.Field(m.index))
		if is {
			set++
		}
		changed = changed || is == unset(old.Field(m.index))
	}
	if !changed || set == 1 {
		return
	}
	var choices, chosen []string
	for _, i := range s.unions {
		m := &s.members[i]
		choices = append(choices, "`"+m.name+"`")
		if !unset(v.Field(m.index)) {
			chosen = append(chosen, m.name)
		}
	}
	if set == 0 {
		c.add(field.Invalid(at.path(), "", "must specify one of: "+strings.Join(choices, ", ")).WithOrigin("union"))
		return
	}
	c.add(field.Invalid(at.path(), "{"+strings.Join(chosen, ", ")+"}", "must specify exactly one of: "+strings.Join(choices, ", ")).WithOrigin("union"))
}

// member checks one field: what ends the check first, then the value, then what
// is in it. One that an update leaves alone is passed over.
func (c *check) member(at *place, m *member, v, old reflect.Value) {
	if (len(m.tags) > 0 || m.unique) && old.IsValid() && equal(v, old) {
		return
	}
	if len(m.tags) > 0 && !c.first(at, m, v, old) {
		return
	}
	if (v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.IsNil() {
		return
	}
	if m.unique && v.Kind() == reflect.Slice {
		c.duplicates(at, m, v)
	}
	for _, t := range m.tags {
		c.apply(at, t, v, old)
	}
	if m.descend {
		c.inside(at, m, v, old)
	}
}

// apply checks one tag, which may be about every item or key.
func (c *check) apply(at *place, t tag, v, old reflect.Value) {
	switch t.name {
	case "eachVal":
		inner := each(t)
		for i := range v.Len() {
			c.value(&place{parent: at, index: i}, inner, v.Index(i), reflect.Value{})
		}
	case "eachKey":
		inner := each(t)
		for _, key := range sortedKeys(v) {
			c.value(at, inner, key, reflect.Value{})
		}
	default:
		c.value(at, t, v, old)
	}
}

func each(t tag) tag {
	name, value, _ := strings.Cut(t.value, "=")
	return newTag(name, value)
}

// first runs the checks that end a field's validation: whether it may change,
// how long it may be, whether it must or may be there. It reports whether to go on.
func (c *check) first(at *place, m *member, v, old reflect.Value) bool {
	before := len(c.errs)
	optional, fixed := false, false
	for _, t := range m.tags {
		switch t.name {
		case "optional":
			optional = true
		case "immutable":
			if old.IsValid() {
				c.add(field.Invalid(at.path(), nil, "field is immutable").WithOrigin("immutable"))
			}
		case "fixed":
			fixed = old.IsValid()
		case "update":
			if old.IsValid() {
				c.update(at, m, t.value, v, old)
			}
		case "maxItems":
			if v.Kind() == reflect.Slice && v.Len() > t.number {
				c.add(field.TooMany(at.path(), v.Len(), t.number).WithOrigin("maxItems"))
			}
		case "required":
			if unset(v) {
				c.add(field.Required(at.path(), ""))
			}
		case "forbidden":
			if !unset(v) {
				c.add(field.Forbidden(at.path(), ""))
			}
		}
	}
	return len(c.errs) == before && !fixed && !(optional && unset(v))
}

// update checks one rule about how a field may change; it is known to have changed.
func (c *check) update(at *place, m *member, rule string, v, old reflect.Value) {
	refuse := func(what string) { c.add(field.Invalid(at.path(), nil, what).WithOrigin("update")) }
	switch rule {
	case "NoSet":
		if unset(old) && !unset(v) {
			refuse("field cannot be set once created")
		}
	case "NoUnset":
		if !unset(old) && unset(v) {
			refuse("field cannot be cleared once set")
		}
	case "NoModify":
		if !unset(old) && !unset(v) {
			refuse("field cannot be modified once set")
		}
	case "NoAddItem":
		for i := range v.Len() {
			if !m.find(old, v.Index(i)).IsValid() {
				c.add(field.Forbidden(at.path().Index(i), "item may not be added").WithOrigin("update"))
			}
		}
	case "NoRemoveItem":
		for i := range old.Len() {
			if !m.find(v, old.Index(i)).IsValid() {
				c.add(field.Forbidden(at.path(), "item may not be removed").WithOrigin("update"))
			}
		}
	}
}

// inside goes into what a field holds.
func (c *check) inside(at *place, m *member, v, old reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return
		}
		var before reflect.Value
		if old.IsValid() && !old.IsNil() {
			before = old.Elem()
		}
		c.inside(at, m, v.Elem(), before)
	case reflect.Struct:
		c.structure(at, v, old)
	case reflect.String:
		if !old.IsValid() || v.String() != old.String() {
			c.enum(at, v)
		}
	case reflect.Slice:
		for i := range v.Len() {
			c.item(&place{parent: at, index: i}, m, v.Index(i), m.findIn(old, v.Index(i)))
		}
	case reflect.Map:
		for _, key := range sortedKeys(v) {
			var before reflect.Value
			if old.IsValid() {
				before = old.MapIndex(key)
			}
			c.item(&place{parent: at, key: key.String(), index: -1}, m, v.MapIndex(key), before)
		}
	}
}

// item checks what a list or map holds. Without keys the same item was found by
// being the same.
func (c *check) item(at *place, m *member, v, old reflect.Value) {
	if old.IsValid() && len(m.keys) == 0 && equal(v, old) {
		return
	}
	c.inside(at, m, v, old)
}

func (c *check) enum(at *place, v reflect.Value) {
	if !isEnum(v.Type()) {
		return
	}
	known := byType()[nameOf(v.Type())].values
	for _, value := range known {
		if v.String() == value {
			return
		}
	}
	c.add(field.NotSupported(at.path(), v.String(), known))
}

func (c *check) duplicates(at *place, m *member, list reflect.Value) {
	for i := range list.Len() {
		for j := range i {
			if m.same(list.Index(i), list.Index(j)) {
				c.add(field.Duplicate(at.path().Index(i), list.Index(i).Interface()))
				break
			}
		}
	}
}

func number(s string) int {
	var n int
	if _, err := fmt.Sscan(s, &n); err != nil {
		panic("marker: " + s + " is no number")
	}
	return n
}
