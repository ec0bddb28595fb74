package apis

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// New and NewList make zero objects: `New: apis.New[corev1.Pod]`.
func New[T any, P interface {
	*T
	Object
}]() Object {
	return P(new(T))
}

// NewList is New for list types.
func NewList[T any, P interface {
	*T
	runtime.Object
}]() runtime.Object {
	return P(new(T))
}

// On adapts a function of one hub type to Default and PrepareCreate.
func On[T Object](f func(T)) func(Object) {
	return func(obj Object) { f(obj.(T)) }
}

// OnUpdate adapts a function of one hub type to PrepareUpdate.
func OnUpdate[T Object](f func(obj, old T)) func(obj, old Object) {
	return func(obj, old Object) { f(obj.(T), old.(T)) }
}

// Check adapts a function of one hub type to Validate.
func Check[T Object](f func(T) field.ErrorList) func(context.Context, Object) field.ErrorList {
	return func(_ context.Context, obj Object) field.ErrorList { return f(obj.(T)) }
}

// CheckUpdate adapts a function of one hub type to ValidateUpdate.
func CheckUpdate[T Object](f func(obj, old T) field.ErrorList) func(ctx context.Context, obj, old Object) field.ErrorList {
	return func(_ context.Context, obj, old Object) field.ErrorList { return f(obj.(T), old.(T)) }
}

// Selectable adapts functions of one hub type to Fields.
func Selectable[T Object](of map[string]func(T) string) map[string]func(Object) string {
	out := make(map[string]func(Object) string, len(of))
	for name, f := range of {
		out[name] = func(obj Object) string { return f(obj.(T)) }
	}
	return out
}

// Cells adapts a function of one hub type to Row.
func Cells[T Object](f func(obj T, now time.Time) []any) func(Object, time.Time) []any {
	return func(obj Object, now time.Time) []any { return f(obj.(T), now) }
}

// Stamped adapts a function of one hub type to Stamp. Old is the zero T on create.
func Stamped[T Object](f func(obj, old T, now metav1.Time)) func(obj, old Object, now time.Time) {
	return func(obj, old Object, now time.Time) {
		var before T
		if old != nil {
			before = old.(T)
		}
		f(obj.(T), before, metav1.NewTime(now))
	}
}

// Warn adapts a function of one hub type to Warnings. Old is the zero T on create.
func Warn[T Object](f func(obj, old T) []string) func(obj, old Object) []string {
	return func(obj, old Object) []string {
		var before T
		if old != nil {
			before = old.(T)
		}
		return f(obj.(T), before)
	}
}

// Writable is the status-like subresource of a kind: get, patch and update.
func Writable[T Object](name string, prepare func(obj, old T), validate func(obj, old T) field.ErrorList) Subresource {
	s := Subresource{Name: name, Verbs: []string{"get", "patch", "update"}, PrepareUpdate: OnUpdate(prepare)}
	if validate != nil {
		s.ValidateUpdate = CheckUpdate(validate)
	}
	return s
}

// Status is the status subresource of kinds whose metadata cannot be written
// through it.
func Status[T Object](prepare func(obj, old T), validate func(obj, old T) field.ErrorList) Subresource {
	s := Writable("status", func(obj, old T) {
		metav1.ResetObjectMetaForStatus(obj, old)
		prepare(obj, old)
	}, validate)
	s.Resets = []string{"metadata", "spec"}
	return s
}

// Resetting is a subresource that cannot change the fields named.
func Resetting(s Subresource, fields ...string) Subresource {
	s.Resets = fields
	return s
}

// Scalable is the scale subresource of a kind.
func Scalable[T Object](replicas func(T) **int32, status func(T) int32, selector func(T) string) Subresource {
	return Subresource{
		Name: "scale", Group: "autoscaling", Version: "v1", Kind: "Scale",
		New:   newScale,
		Verbs: []string{"get", "patch", "update"},
		Scale: &Scale{
			Replicas: func(obj Object) int32 {
				if n := *replicas(obj.(T)); n != nil {
					return *n
				}
				return 0
			},
			SetReplicas:    func(obj Object, n int32) { *replicas(obj.(T)) = &n },
			StatusReplicas: func(obj Object) int32 { return status(obj.(T)) },
			Selector:       func(obj Object) string { return selector(obj.(T)) },
		},
	}
}
