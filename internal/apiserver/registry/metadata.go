package registry

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"

	"github.com/google/uuid"

	"proa/internal/apis"
	"proa/internal/apiserver/codec/jsonplan"
	"proa/internal/store/sharing"
)

// wipe clears what only the server sets.
func wipe(obj apis.Object) {
	obj.SetCreationTimestamp(metav1.Time{})
	obj.SetUID("")
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	obj.SetSelfLink("")
}

func (r *Registry) now() metav1.Time {
	return metav1.NewTime(r.clock.Now()).Rfc3339Copy()
}

func newUID() types.UID { return types.UID(uuid.NewString()) }

// inNamespace makes the object's namespace the request's, or says why it cannot.
func inNamespace(q *Request, obj apis.Object) error {
	want := q.namespace()
	switch have := obj.GetNamespace(); {
	case have == want:
	case have == "" || want == "":
		obj.SetNamespace(want)
	default:
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	return nil
}

// named refuses an object whose name is not the one in the path.
func named(q *Request, obj apis.Object) error {
	switch obj.GetName() {
	case q.Name:
		return nil
	case "":
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must be provided", q.Name))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", obj.GetName(), q.Name))
}

const (
	generatedLength = 5
	alphanums       = "bcdfghjklmnpqrstvwxz2456789" // no vowels, no look-alikes
)

// generateName appends five random characters, cutting base so that the name stays within 63.
func generateName(base string) string {
	base = base[:min(len(base), 63-generatedLength)]
	var suffix [generatedLength]byte
	for i := range suffix {
		suffix[i] = alphanums[rand.IntN(len(alphanums))]
	}
	return base + string(suffix[:])
}

const (
	duplicateOwners             = ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: %v"
	duplicateOwnersAfterMutated = ".metadata.ownerReferences contains duplicate entries after mutating admission happens; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: %v"
)

// dedupOwners drops owner references that say the same twice, with a warning.
func dedupOwners(ctx context.Context, obj apis.Object, message string) {
	refs := obj.GetOwnerReferences()
	if len(refs) < 2 {
		return
	}
	var kept []metav1.OwnerReference
	var duplicates []string
	for _, ref := range refs {
		if contains(kept, ref) {
			duplicates = append(duplicates, string(ref.UID))
		} else {
			kept = append(kept, ref)
		}
	}
	if len(duplicates) > 0 {
		warning.AddWarning(ctx, "", fmt.Sprintf(message, strings.Join(duplicates, ", ")))
		obj.SetOwnerReferences(kept)
	}
}

func contains(refs []metav1.OwnerReference, ref metav1.OwnerReference) bool {
	for i := range refs {
		if refs[i].UID == ref.UID && equality.Semantic.DeepEqual(refs[i], ref) {
			return true
		}
	}
	return false
}

// manager names who a write is recorded for in managedFields.
func (q *Request) manager(fieldManager string) string {
	if fieldManager != "" {
		return fieldManager
	}
	name, _, _ := strings.Cut(cmp.Or(q.UserAgent, programOf(q.User)), "/")
	return printable(name)
}

func printable(s string) string {
	var b strings.Builder
	for _, c := range s {
		if !unicode.IsPrint(c) {
			continue
		}
		if b.Len()+utf8.RuneLen(c) > metav1validation.FieldManagerMaxLength {
			break
		}
		b.WriteRune(c)
	}
	return b.String()
}

// segment is the least a name must be: one segment of a path.
func segment(name string, prefix bool) []string {
	if prefix {
		return path.IsValidPathSegmentPrefix(name)
	}
	return path.IsValidPathSegmentName(name)
}

func nameValidator(v apis.View) validation.ValidateNameFunc {
	if v.ValidateName != nil && !isStrict(v) {
		return v.ValidateName
	}
	return validation.NameIsDNSSubdomain
}

func isStrict(v apis.View) bool { return v.Served != nil && v.Served.Strict }

// validate returns what is wrong with an object to be created.
func validate(ctx context.Context, v apis.View, obj apis.Object) field.ErrorList {
	var errs field.ErrorList
	if !v.ChecksMeta {
		errs = validation.ValidateObjectMetaAccessor(metaOf(obj), v.Scope == apis.Namespaced, nameValidator(v), field.NewPath("metadata"))
		errs = append(errs, validateFinalizers(v, obj)...)
	}
	check := v.Validate
	if v.Served != nil && v.Served.Validate != nil {
		check = v.Served.Validate
	}
	if check != nil {
		errs = append(errs, check(ctx, obj)...)
	}
	return once(v.Resource, errs)
}

// validateFinalizers wants a domain in the name of every finalizer but those of
// the API itself.
func validateFinalizers(v apis.View, obj apis.Object) field.ErrorList {
	if v.Custom != nil || v.AnyFinalizer && !isStrict(v) {
		return nil
	}
	var errs field.ErrorList
	for i, name := range obj.GetFinalizers() {
		switch name {
		case string(corev1.FinalizerKubernetes), metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents:
			continue
		}
		if !strings.Contains(name, "/") {
			at := field.NewPath("metadata", "finalizers").Index(i)
			errs = append(errs, field.Invalid(at, name, "name is neither a standard finalizer name nor is it fully qualified"))
		}
	}
	return errs
}

// once drops errors that were found twice, but of kinds that tell them.
func once(r *apis.Resource, errs field.ErrorList) field.ErrorList {
	if r.ChecksMeta || r.Custom != nil {
		return errs
	}
	kept, seen := errs[:0:0], map[string]bool{}
	for _, e := range errs {
		if text := e.Error(); !seen[text] {
			seen[text] = true
			kept = append(kept, e)
		}
	}
	return kept
}

// validateUpdate returns what is wrong with an object that replaces old.
func validateUpdate(ctx context.Context, v apis.View, sub *apis.Subresource, obj, old apis.Object) field.ErrorList {
	at, meta := field.NewPath("metadata"), metaOf(obj)
	errs := validation.ValidateObjectMetaAccessor(meta, v.Scope == apis.Namespaced, segment, at)
	changes := validation.ValidateObjectMetaAccessorUpdate(meta, old, at)
	errs = append(errs, changes...)
	if v.Custom != nil {
		errs = append(errs, changes...) // upstream's validation of custom resources looks again
	}
	if v.ChecksNameOnUpdate && sub == nil {
		errs = append(errs, validation.ValidateObjectMetaAccessor(meta, v.Scope == apis.Namespaced, nameValidator(v), at)...)
	}
	if sub == nil {
		errs = append(errs, validateFinalizers(v, obj)...)
	}
	check := v.ValidateUpdate
	switch {
	case sub != nil && sub.Scale == nil:
		check = sub.ValidateUpdate
	case v.Served != nil && v.Served.ValidateUpdate != nil:
		check = v.Served.ValidateUpdate
	}
	if check != nil {
		errs = append(errs, check(ctx, obj, old)...)
	}
	return once(v.Resource, errs)
}

// change says how two states of an object differ.
type change struct {
	any  bool // at all, times in managedFields aside
	spec bool // in more than metadata and status
}

func difference(r *apis.Resource, obj, old apis.Object) change {
	var c change
	if u, ok := obj.(*unstructured.Unstructured); ok {
		c = unstructuredDifference(u, old.(*unstructured.Unstructured))
		c.spec = c.spec || c.any && r.Subresource("status") == nil // the status is as good as any field
	} else {
		c = structDifference(reflect.ValueOf(obj).Elem(), reflect.ValueOf(old).Elem())
	}
	if r.AnnotationsCount && !maps.Equal(obj.GetAnnotations(), old.GetAnnotations()) ||
		r.LabelsCount && !maps.Equal(obj.GetLabels(), old.GetLabels()) {
		c.spec = true
	}
	c.any = c.any || c.spec || !sameMeta(obj, old)
	return c
}

// fieldIndex holds, for one Go type, which top-level fields are neither TypeMeta nor ObjectMeta.
type fieldIndex struct{ spec, status []int }

var fieldIndexes sync.Map // reflect.Type -> fieldIndex

func indexOf(t reflect.Type) fieldIndex {
	if found, ok := fieldIndexes.Load(t); ok {
		return found.(fieldIndex)
	}
	var idx fieldIndex
	for i := range t.NumField() {
		switch t.Field(i).Name {
		case "TypeMeta", "ObjectMeta":
		case "Status":
			idx.status = append(idx.status, i)
		default:
			idx.spec = append(idx.spec, i)
		}
	}
	fieldIndexes.Store(t, idx)
	return idx
}

func structDifference(obj, old reflect.Value) (c change) {
	idx := indexOf(obj.Type())
	differs := func(fields []int) bool {
		for _, i := range fields {
			a, b := obj.Field(i).Addr().Interface(), old.Field(i).Addr().Interface()
			if obj.Field(i).Kind() == reflect.Struct && sameJSON(a, b) || sharing.Equal(a, b) {
				continue
			}
			if !equality.Semantic.DeepEqual(a, b) {
				return true
			}
		}
		return false
	}
	c.spec = differs(idx.spec)
	c.any = c.spec || differs(idx.status)
	return c
}

var texts = sync.Pool{New: func() any { return new([2][]byte) }}

// sameJSON tells that two structs are the same on the wire, which takes a fifth
// of the time of a semantic comparison. False says nothing.
func sameJSON(a, b any) bool {
	if sharing.Equal(a, b) {
		return true
	}
	t := texts.Get().(*[2][]byte)
	defer texts.Put(t)
	var errA, errB error
	t[0], errA = jsonplan.Append(t[0][:0], a)
	t[1], errB = jsonplan.Append(t[1][:0], b)
	return errA == nil && errB == nil && bytes.Equal(t[0], t[1])
}

func unstructuredDifference(obj, old *unstructured.Unstructured) (c change) {
	for _, pair := range [2][2]map[string]any{{obj.Object, old.Object}, {old.Object, obj.Object}} {
		for name, value := range pair[0] {
			other, ok := pair[1][name]
			if name == "metadata" || ok && sameValue(value, other) {
				continue
			}
			c.any = true
			if name != "status" {
				c.spec = true
			}
		}
	}
	return c
}

// sameMeta compares everything in metadata that a write may change.
func sameMeta(obj, old apis.Object) bool {
	return obj.GetName() == old.GetName() && obj.GetNamespace() == old.GetNamespace() &&
		obj.GetUID() == old.GetUID() && obj.GetGeneration() == old.GetGeneration() &&
		obj.GetGenerateName() == old.GetGenerateName() &&
		maps.Equal(obj.GetLabels(), old.GetLabels()) &&
		maps.Equal(obj.GetAnnotations(), old.GetAnnotations()) &&
		slices.Equal(obj.GetFinalizers(), old.GetFinalizers()) &&
		equality.Semantic.DeepEqual(obj.GetOwnerReferences(), old.GetOwnerReferences()) &&
		obj.GetDeletionTimestamp().Equal(old.GetDeletionTimestamp()) &&
		equality.Semantic.DeepEqual(obj.GetDeletionGracePeriodSeconds(), old.GetDeletionGracePeriodSeconds()) &&
		sameManaged(obj, old)
}

// sameManagers compares managedFields without their times.
func sameManagers(a, b []metav1.ManagedFieldsEntry) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		x, y := a[i], b[i]
		x.Time, y.Time = nil, nil
		if !reflect.DeepEqual(x, y) {
			return false
		}
	}
	return true
}
