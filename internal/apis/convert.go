package apis

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
)

// ServedAs is the Served of a version whose Go types have the hub's fields under
// the same names, at most gathered in a struct of their own: what one version
// has as a pointer to a struct, the other may have spread beside its other fields.
// H is the hub's type.
func ServedAs[H, S, SL any, HP interface {
	*H
	Object
}, SP interface {
	*S
	Object
}, SLP interface {
	*SL
	runtime.Object
}](group, version, kind string) Served {
	return Served{
		Group: group, Version: version, Kind: kind,
		New: New[S, SP], NewList: NewList[SL, SLP],
		ToHub: func(obj Object) (Object, error) {
			hub := HP(new(H))
			return hub, convert(hub, obj.DeepCopyObject())
		},
		FromHub: func(obj Object) (Object, error) {
			served := SP(new(S))
			return served, convert(served, obj.DeepCopyObject())
		},
	}
}

// convert moves the fields of one pointer to a struct to another's.
func convert(to, from any) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("convert %T to %T: %v", from, to, r)
		}
	}()
	move(reflect.ValueOf(to).Elem(), reflect.ValueOf(from).Elem())
	return nil
}

func move(to, from reflect.Value) {
	if to.Type() == from.Type() {
		to.Set(from)
		return
	}
	if from.Kind() == reflect.Pointer && to.Kind() != reflect.Pointer { // optional in one version, empty in the other
		if !from.IsNil() {
			move(to, from.Elem())
		}
		return
	}
	switch to.Kind() {
	case reflect.Struct:
		moveFields(to, from)
	case reflect.Pointer:
		if from.Kind() != reflect.Pointer {
			if !from.IsZero() {
				to.Set(reflect.New(to.Type().Elem()))
				move(to.Elem(), from)
			}
		} else if !from.IsNil() {
			to.Set(reflect.New(to.Type().Elem()))
			move(to.Elem(), from.Elem())
		}
	case reflect.Slice:
		if !from.IsNil() {
			to.Set(reflect.MakeSlice(to.Type(), from.Len(), from.Len()))
			for i := range from.Len() {
				move(to.Index(i), from.Index(i))
			}
		}
	case reflect.Map:
		if !from.IsNil() {
			to.Set(reflect.MakeMapWithSize(to.Type(), from.Len()))
			for it := from.MapRange(); it.Next(); {
				item := reflect.New(to.Type().Elem()).Elem()
				move(item, it.Value())
				to.SetMapIndex(it.Key().Convert(to.Type().Key()), item)
			}
		}
	default:
		to.Set(from.Convert(to.Type()))
	}
}

func moveFields(to, from reflect.Value) {
	for i := range to.NumField() {
		name := to.Type().Field(i).Name
		if f := from.FieldByName(name); f.IsValid() {
			move(to.Field(i), f)
			continue
		}
		gather(to.Field(i), from, to.Type())
	}
	for i := range from.NumField() {
		f := from.Type().Field(i)
		if _, known := to.Type().FieldByName(f.Name); !known && isGathered(f.Type) && !from.Field(i).IsNil() {
			moveSpread(to, from.Field(i).Elem())
		}
	}
}

func isGathered(t reflect.Type) bool {
	return t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct
}

// gather fills a struct that from has no field for with fields that from has
// beside its own, if any of them is set.
func gather(field, from reflect.Value, owner reflect.Type) {
	if !isGathered(field.Type()) {
		return
	}
	inner := reflect.New(field.Type().Elem())
	found, set := false, false
	for i := range inner.Elem().NumField() {
		name := inner.Elem().Type().Field(i).Name
		f := from.FieldByName(name)
		if _, elsewhere := owner.FieldByName(name); elsewhere || !f.IsValid() {
			continue
		}
		found = true
		set = set || !f.IsZero()
		move(inner.Elem().Field(i), f)
	}
	if found && set {
		field.Set(inner)
	}
}

// moveSpread puts the fields of a gathered struct beside those of to.
func moveSpread(to, gathered reflect.Value) {
	for i := range gathered.NumField() {
		if f := to.FieldByName(gathered.Type().Field(i).Name); f.IsValid() {
			move(f, gathered.Field(i))
		}
	}
}
