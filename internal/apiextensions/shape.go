package apiextensions

import (
	"slices"
	"time"

	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
)

// shape is a schema reduced to what decides whether pruning and defaulting would
// change a value. It is what makes reads of stored objects cheap: those written
// under the present schema are used as they are.
type shape struct {
	fields    map[string]*shape
	more      *shape   // of fields not in fields; nil: see anyMore and preserve
	anyMore   bool     // there may be more fields, of which nothing inside is kept
	items     *shape   // of a list
	defaulted []string // fields that have a default
	preserve  bool     // unknown fields stay
	nullable  bool
	embedded  bool // has apiVersion, kind and metadata
	embeds    bool // is embedded or has something inside that is
	unique    *uniqueness
	lists     bool // has items that must be unique, or something inside has
}

// uniqueness says what must differ between the items of a list.
type uniqueness struct {
	keys []string // none: the items themselves
}

func newShape(s *structural.Structural) *shape {
	out := &shape{preserve: s.XPreserveUnknownFields, nullable: s.Nullable, embedded: s.XEmbeddedResource}
	if len(s.Properties) > 0 {
		out.fields = make(map[string]*shape, len(s.Properties))
	}
	for name, field := range s.Properties {
		out.fields[name] = newShape(&field)
		if field.Default.Object != nil {
			out.defaulted = append(out.defaulted, name)
		}
	}
	slices.Sort(out.defaulted)
	if a := s.AdditionalProperties; a != nil && a.Structural != nil {
		out.more = newShape(a.Structural)
	} else if a != nil {
		out.anyMore = true
	}
	if s.Items != nil {
		out.items = newShape(s.Items)
	}
	if t := s.XListType; t != nil && (*t == "set" || *t == "map") {
		out.unique = &uniqueness{s.XListMapKeys}
	}
	out.inherit()
	return out
}

// inherit notes what the schemas inside a schema have.
func (s *shape) inherit() {
	s.embeds, s.lists = s.embedded, s.unique != nil
	inside := func(sub *shape) {
		if sub != nil {
			s.embeds, s.lists = s.embeds || sub.embeds, s.lists || sub.lists
		}
	}
	inside(s.more)
	inside(s.items)
	for _, field := range s.fields {
		inside(field)
	}
}

// uniqueItems says that no list inside a value repeats an item that must be
// unique. False may be wrong, true never is.
func (s *shape) uniqueItems(value any) bool {
	if !s.lists {
		return true
	}
	switch value := value.(type) {
	case map[string]any:
		for name, v := range value {
			field := s.fields[name]
			if field == nil {
				field = s.more
			}
			if field != nil && !field.uniqueItems(v) {
				return false
			}
		}
	case []any:
		if s.unique != nil && !s.unique.holds(value) {
			return false
		}
		for _, item := range value {
			if s.items != nil && !s.items.uniqueItems(item) {
				return false
			}
		}
	}
	return true
}

// holds compares the items of short lists of strings, or with string keys.
func (u *uniqueness) holds(list []any) bool {
	if len(list) > 16 || len(u.keys) > 1 {
		return false
	}
	var seen [16]string
	for i, item := range list {
		if len(u.keys) == 1 {
			fields, _ := item.(map[string]any)
			item = fields[u.keys[0]]
		}
		text, ok := item.(string)
		if !ok || slices.Contains(seen[:i], text) {
			return false
		}
		seen[i] = text
	}
	return true
}

// fits says that pruning, and filling in defaults if they are asked for, would
// leave a value as it is. False may be wrong, true never is.
func (s *shape) fits(value any, defaults bool) bool {
	switch value := value.(type) {
	case nil:
		return s.nullable
	case map[string]any:
		return s.fitsObject(value, defaults, s.embedded)
	case []any:
		if s.items == nil {
			return s.preserve || !holdsFields(value)
		}
		for _, item := range value {
			if !s.items.fits(item, defaults) {
				return false
			}
		}
	}
	return true
}

// fitsObject is fits for an object, which may have the fields of a resource.
func (s *shape) fitsObject(object map[string]any, defaults, resource bool) bool {
	if defaults && !s.hasDefaults(object) {
		return false
	}
	for name, value := range object {
		field := s.fields[name]
		if resource && isMeta(name) {
			if field == nil {
				field = s.more
			}
			if value == nil || field != nil && !field.fitsMeta(value, defaults) {
				return false
			}
			continue
		}
		if field == nil {
			field = s.more
		}
		switch {
		case field != nil:
			if !field.fits(value, defaults) {
				return false
			}
		case s.anyMore:
			if holdsFields(value) {
				return false
			}
		case !s.preserve:
			return false
		}
	}
	return true
}

func (s *shape) hasDefaults(object map[string]any) bool {
	for _, name := range s.defaulted {
		if value, ok := object[name]; !ok || value == nil && !s.fields[name].nullable {
			return false
		}
	}
	return true
}

// fitsMeta judges the fields of a resource that are never pruned: only nulls and
// defaults count.
func (s *shape) fitsMeta(value any, defaults bool) bool {
	switch value := value.(type) {
	case nil:
		return false
	case map[string]any:
		if defaults && !s.hasDefaults(value) {
			return false
		}
		for name, value := range value {
			field := s.fields[name]
			if field == nil {
				field = s.more
			}
			if field != nil && !field.fitsMeta(value, defaults) {
				return false
			}
		}
	case []any:
		for _, item := range value {
			if s.items != nil && !s.items.fitsMeta(item, defaults) {
				return false
			}
		}
	}
	return true
}

func isMeta(name string) bool { return name == "apiVersion" || name == "kind" || name == "metadata" }

// holdsFields says whether there is anything in value that pruning could drop.
func holdsFields(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		return len(value) > 0
	case []any:
		return slices.ContainsFunc(value, holdsFields)
	}
	return false
}

// plainMeta says that metadata holds nothing but well-formed fields, so that a
// round trip through ObjectMeta would not change it. False says nothing.
func plainMeta(metadata any) bool {
	m, ok := metadata.(map[string]any)
	if !ok {
		return metadata == nil
	}
	for name, value := range m {
		switch name {
		case "name", "namespace", "generateName", "uid", "resourceVersion":
			if s, ok := value.(string); !ok || s == "" {
				return false
			}
		case "generation":
			if n, ok := value.(int64); !ok || n == 0 {
				return false
			}
		case "creationTimestamp":
			if !plainTime(value) {
				return false
			}
		case "labels", "annotations":
			if !plainStrings(value) {
				return false
			}
		case "finalizers":
			list, ok := value.([]any)
			if !ok || len(list) == 0 {
				return false
			}
			for _, item := range list {
				if _, ok := item.(string); !ok {
					return false
				}
			}
		case "managedFields":
			if !plainEntries(value) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

func plainStrings(value any) bool {
	m, ok := value.(map[string]any)
	for _, item := range m {
		if _, isString := item.(string); !isString {
			return false
		}
	}
	return ok && len(m) > 0
}

func plainTime(value any) bool {
	s, ok := value.(string)
	if !ok || len(s) != len("2006-01-02T15:04:05Z") {
		return false
	}
	_, err := time.Parse("2006-01-02T15:04:05Z", s)
	return err == nil
}

func plainEntries(value any) bool {
	list, ok := value.([]any)
	if !ok || len(list) == 0 {
		return false
	}
	for _, item := range list {
		entry, ok := item.(map[string]any)
		if !ok {
			return false
		}
		for name, value := range entry {
			switch name {
			case "manager", "operation", "apiVersion", "fieldsType", "subresource":
				if s, ok := value.(string); !ok || s == "" {
					return false
				}
			case "time":
				if !plainTime(value) {
					return false
				}
			case "fieldsV1":
				if _, ok := value.(map[string]any); !ok {
					return false
				}
			default:
				return false
			}
		}
	}
	return true
}
