package apiextensions

import (
	"regexp"
	"unicode/utf8"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
)

// sound is a schema compiled to answer quickly that a value is certainly valid,
// which nearly every value is. What it does not know (junctors, formats) it
// leaves to the full validation, which also finds the words for what is wrong.
type sound struct {
	unknown  bool // nothing is certain
	kind     string
	nullable bool
	either   bool // an integer or a string

	enum                   []any
	minimum, maximum       *float64
	minLength, maxLength   *int64
	pattern                *regexp.Regexp
	minItems, maxItems     *int64
	minMembers, maxMembers *int64

	required []string
	fields   map[string]*sound
	more     *sound // of other fields; nil: anything
	items    *sound // nil: anything
}

func newSound(s *internal.JSONSchemaProps) *sound {
	if s == nil {
		return &sound{kind: "object"}
	}
	out := &sound{
		kind: s.Type, nullable: s.Nullable, either: s.XIntOrString,
		minimum: s.Minimum, maximum: s.Maximum, minLength: s.MinLength, maxLength: s.MaxLength,
		minItems: s.MinItems, maxItems: s.MaxItems, minMembers: s.MinProperties, maxMembers: s.MaxProperties, required: s.Required,
	}
	junctors := len(s.AllOf) + len(s.AnyOf) + len(s.OneOf) + len(s.PatternProperties) + len(s.Dependencies) + len(s.Definitions)
	out.unknown = s.Not != nil || s.Ref != nil || junctors > 0 || s.UniqueItems || s.MultipleOf != nil ||
		s.ExclusiveMinimum || s.ExclusiveMaximum || s.Format != "" || s.AdditionalItems != nil || s.Type == "" && !s.XIntOrString
	if s.Pattern != "" {
		var err error
		if out.pattern, err = regexp.Compile(s.Pattern); err != nil {
			out.unknown = true
		}
	}
	for _, value := range s.Enum {
		out.enum = append(out.enum, value)
	}
	if len(s.Properties) > 0 {
		out.fields = make(map[string]*sound, len(s.Properties))
	}
	for name := range s.Properties {
		field := s.Properties[name]
		out.fields[name] = newSound(&field)
	}
	if a := s.AdditionalProperties; a != nil && a.Schema != nil {
		out.more = newSound(a.Schema)
	} else if a != nil && !a.Allows {
		out.more = &sound{unknown: true}
	}
	if s.Items != nil && s.Items.Schema != nil {
		out.items = newSound(s.Items.Schema)
	} else if s.Items != nil {
		out.unknown = true
	}
	return out
}

// holds says that a value is certainly valid.
func (s *sound) holds(value any) bool {
	if value == nil {
		return s.nullable && !s.unknown && s.enum == nil
	}
	if s.unknown || s.enum != nil && !s.listed(value) {
		return false
	}
	switch value := value.(type) {
	case string:
		return (s.kind == "string" || s.either) && s.holdsText(value)
	case int64:
		return (s.kind == "integer" || s.kind == "number" || s.either) && s.holdsNumber(float64(value))
	case float64:
		return s.kind == "number" && s.holdsNumber(value)
	case bool:
		return s.kind == "boolean"
	case []any:
		return s.kind == "array" && s.holdsList(value)
	case map[string]any:
		return s.kind == "object" && s.holdsObject(value)
	}
	return false
}

func (s *sound) listed(value any) bool {
	switch value.(type) {
	case string, bool: // of other types there is more than one way to be equal
		for _, allowed := range s.enum {
			if value == allowed {
				return true
			}
		}
	}
	return false
}

func (s *sound) holdsText(text string) bool {
	if s.minLength != nil || s.maxLength != nil {
		n := int64(utf8.RuneCountInString(text))
		if !within(n, s.minLength, s.maxLength) {
			return false
		}
	}
	return s.pattern == nil || s.pattern.MatchString(text)
}

// holdsNumber does not vouch for numbers that float64 cannot tell apart.
func (s *sound) holdsNumber(n float64) bool {
	const exact = 1 << 53
	if s.minimum == nil && s.maximum == nil {
		return true
	}
	return n > -exact && n < exact && (s.minimum == nil || n >= *s.minimum) && (s.maximum == nil || n <= *s.maximum)
}

func within(n int64, low, high *int64) bool {
	return (low == nil || n >= *low) && (high == nil || n <= *high)
}

func (s *sound) holdsList(list []any) bool {
	if !within(int64(len(list)), s.minItems, s.maxItems) {
		return false
	}
	if s.items == nil {
		return true
	}
	for _, item := range list {
		if !s.items.holds(item) {
			return false
		}
	}
	return true
}

func (s *sound) holdsObject(object map[string]any) bool {
	if !within(int64(len(object)), s.minMembers, s.maxMembers) {
		return false
	}
	for _, name := range s.required {
		if _, ok := object[name]; !ok {
			return false
		}
	}
	for name, value := range object {
		field := s.fields[name]
		if field == nil {
			field = s.more
		}
		if field != nil && !field.holds(value) {
			return false
		}
	}
	return true
}
