package marker

import (
	"reflect"
	"slices"
	"strings"
	"sync"
)

// Gates says which feature gates are on. A gate it does not know counts as on.
type Gates interface {
	Enabled(name string) bool
}

// Rules are the markers as a server with certain feature gates applies them.
type Rules struct {
	gates  Gates
	shapes [modes]sync.Map // reflect.Type -> *shape
}

// New returns the rules under these gates.
func New(gates Gates) *Rules { return &Rules{gates: gates} }

// mode is one way through an object. Each has shapes of its own that hold only
// the fields it has to look at, so that most of an object is never visited.
type mode int

const (
	all     mode = iota // every rule, with the ratcheting of updates
	values              // what is true of a value alone
	changes             // how a value may differ from the one before
	gated               // fields of gates that are off
	modes
)

// member is one field of a struct with what is said of it.
type member struct {
	index   int
	name    string // in JSON; empty for an embedded struct
	gates   []string
	tags    []tag
	union   bool
	descend bool     // something below it is marked
	keys    []string // of its items, where they have some
	unique  bool     // its items differ
}

// tag is one rule: its name, what stands behind the equals sign, and the same as
// a number.
type tag struct {
	name, value string
	number      int
}

// shape is a struct type ready to be walked.
type shape struct {
	members []member
	unions  []int // members of the union, in order
}

func (r *Rules) shapeOf(t reflect.Type, m mode) *shape {
	if s, ok := r.shapes[m].Load(t); ok {
		return s.(*shape)
	}
	s := &shape{}
	for i := range t.NumField() {
		f := t.Field(i)
		c, ok := r.memberOf(t, f, i, m)
		if !ok {
			continue
		}
		if c.union {
			s.unions = append(s.unions, len(s.members))
		}
		s.members = append(s.members, c)
	}
	r.shapes[m].Store(t, s)
	return s
}

// memberOf reads what is said of a field that matters in a mode; false if nothing is.
func (r *Rules) memberOf(t reflect.Type, f reflect.StructField, index int, m mode) (member, bool) {
	c := member{index: index, name: jsonName(f)}
	if !f.IsExported() {
		return c, false
	}
	opaque := false
	if said := byType()[nameOf(t)]; said != nil {
		opaque = r.read(&c, said.fields[f.Name])
	}
	c.forMode(m, f.Type)
	c.descend = !opaque && !c.dead(f.Type, m) && r.marked(f.Type, m, map[reflect.Type]bool{})
	return c, len(c.tags) > 0 || len(c.gates) > 0 || c.union || c.unique || c.descend
}

// dead: an item of a list without keys is the same or another one, so nothing
// inside it can have changed.
func (c *member) dead(t reflect.Type, m mode) bool {
	return m == changes && t.Kind() == reflect.Slice && len(c.keys) == 0
}

// read sorts a field's tags and resolves what depends on gates. It reports
// whether the field's own type is not looked into.
func (r *Rules) read(c *member, tags []string) (opaque bool) {
	customUnique := false
	for _, text := range tags {
		if gates, ok := strings.CutPrefix(text, "@"); ok {
			c.gates = slices.DeleteFunc(strings.Split(gates, ","), r.gates.Enabled)
			continue
		}
		if text = r.resolve(text); text == "" {
			continue
		}
		name, value, _ := strings.Cut(text, "=")
		kind, _, _ := strings.Cut(name, "(")
		switch kind {
		case "listMapKey":
			c.keys = append(c.keys, value)
		case "listType":
			c.unique = c.unique || value != "atomic"
		case "unique":
			c.unique = true
		case "customUnique":
			customUnique = true
		case "unionMember":
			c.union = true
		case "opaqueType":
			opaque = true
		case "subfield", "item", "ifMode", "modeDiscriminator":
			// names of objects are the registry's, the others are checked beside the kind
		default:
			c.tags = append(c.tags, newTag(name, value))
		}
	}
	c.unique = c.unique && !customUnique
	return opaque
}

func newTag(name, value string) tag {
	t := tag{name: name, value: value}
	switch name {
	case "maxItems", "maxLength", "maxBytes", "minimum", "maximum":
		t.number = number(value)
	}
	return t
}

// resolve returns the tag behind a condition on a gate, nothing where the
// condition does not hold.
func (r *Rules) resolve(text string) string {
	condition, inner, ok := strings.Cut(text, ")=")
	if !ok {
		return text
	}
	gate, enabled := strings.CutPrefix(condition, "ifEnabled(")
	if !enabled {
		var disabled bool
		if gate, disabled = strings.CutPrefix(condition, "ifDisabled("); !disabled {
			return text
		}
	}
	if r.gates.Enabled(gate) != enabled {
		return ""
	}
	return inner
}

var transitions = []string{"immutable", "fixed", "update", "monotonic"}

// forMode keeps what a mode has use for.
func (c *member) forMode(m mode, t reflect.Type) {
	isTransition := func(t tag) bool { return slices.Contains(transitions, t.name) }
	switch m {
	case values:
		c.tags = slices.DeleteFunc(c.tags, isTransition)
		c.gates = nil
	case changes:
		c.tags = slices.DeleteFunc(c.tags, func(t tag) bool { return !isTransition(t) })
		c.gates, c.union, c.unique = nil, false, false
	case gated:
		c.tags, c.union, c.unique = nil, false, false
	case all:
		c.gates = nil
	}
	if len(c.tags) == 1 && c.tags[0].name == "optional" && (t.Kind() != reflect.String || !isEnum(t)) {
		c.tags = nil // optional only ends the other checks
	}
}

// marked reports whether a mode finds anything at or below a type.
func (r *Rules) marked(t reflect.Type, m mode, seen map[reflect.Type]bool) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return r.marked(t.Elem(), m, seen)
	case reflect.String:
		return (m == all || m == values) && isEnum(t)
	case reflect.Struct:
		if seen[t] {
			return false
		}
		seen[t] = true
		for i := range t.NumField() {
			f := t.Field(i)
			if !f.IsExported() {
				continue
			}
			c, opaque := member{}, false
			if said := byType()[nameOf(t)]; said != nil {
				opaque = r.read(&c, said.fields[f.Name])
				c.forMode(m, f.Type)
			}
			if len(c.tags) > 0 || len(c.gates) > 0 || c.union || c.unique || !opaque && !c.dead(f.Type, m) && r.marked(f.Type, m, seen) {
				return true
			}
		}
	}
	return false
}

// isEnum reports whether only the values of t are valid: some enumerations say
// what there is, not what may be.
func isEnum(t reflect.Type) bool {
	said := byType()[nameOf(t)]
	return said != nil && len(said.own) > 0 && len(said.values) > 0
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "" && !f.Anonymous {
		return f.Name
	}
	return name
}
