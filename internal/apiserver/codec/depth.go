package codec

import (
	"bytes"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
)

// maxDepth is how deep messages may be nested, as it is for JSON. Generated decoders
// have no bound of their own, and a stack that overflows ends the process.
const maxDepth = 10_000

var errDepth = errors.New("exceeded max depth")

// nesting says which fields of a message hold messages.
type nesting map[protowire.Number]nesting

var nestings sync.Map // reflect.Type -> nesting

// nestingOf is nil for types that cannot be nested without end, which are most.
func nestingOf(t reflect.Type) nesting {
	if known, ok := nestings.Load(t); ok {
		return known.(nesting)
	}
	n := nester{seen: map[reflect.Type]nesting{}, open: map[reflect.Type]bool{}}
	found := n.message(t)
	if !n.endless {
		found = nil
	}
	nestings.Store(t, found)
	return found
}

type nester struct {
	seen    map[reflect.Type]nesting
	open    map[reflect.Type]bool // those that lead to the one that is looked at
	endless bool
}

func (n *nester) message(t reflect.Type) nesting {
	n.endless = n.endless || n.open[t]
	if known, ok := n.seen[t]; ok {
		return known
	}
	fields := nesting{}
	n.seen[t], n.open[t] = fields, true
	for i := range t.NumField() {
		parts := strings.Split(t.Field(i).Tag.Get("protobuf"), ",")
		if len(parts) < 2 || parts[0] != "bytes" {
			continue
		}
		if number, err := strconv.Atoi(parts[1]); err == nil {
			if below := n.value(t.Field(i).Type); below != nil {
				fields[protowire.Number(number)] = below
			}
		}
	}
	n.open[t] = false
	return fields
}

func (n *nester) value(t reflect.Type) nesting {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		return n.value(t.Elem())
	case reflect.Map: // a list of messages {1 key, 2 value}
		if below := n.value(t.Elem()); below != nil {
			return nesting{2: below}
		}
	case reflect.Struct:
		return n.message(t)
	}
	return nil
}

// checkDepth refuses a protobuf body that is nested too deeply for its type. What has no
// envelope is left to the decoder.
func checkDepth(body []byte, t reflect.Type) error {
	n := nestingOf(t)
	if n == nil {
		return nil
	}
	message, ok := bytes.CutPrefix(body, magic)
	if !ok {
		return nil
	}
	return nesting{2: n}.check(message, 0)
}

// check also refuses what is malformed: generated decoders take more than the format
// allows, and would go on where check cannot.
func (n nesting) check(message []byte, depth int) error {
	if depth > maxDepth {
		return errDepth
	}
	for len(message) > 0 {
		number, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return protowire.ParseError(size)
		}
		message = message[size:]
		if size = protowire.ConsumeFieldValue(number, kind, message); size < 0 {
			return protowire.ParseError(size)
		}
		if below := n[number]; below != nil && kind == protowire.BytesType {
			inner, _ := protowire.ConsumeBytes(message)
			if err := below.check(inner, depth+1); err != nil {
				return err
			}
		}
		message = message[size:]
	}
	return nil
}
