// Package patch computes what an object becomes when a client's patch is merged
// into it: JSON patch, JSON merge patch and strategic merge patch. Server-side
// apply is in package apply, which knows about owners of fields.
package patch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"proa/internal/apis"
	"proa/internal/apiserver/codec/jsonplan"
	"proa/internal/apiserver/wire"
)

// maxOperations bounds a JSON patch, maxCopied what its copy operations may add in bytes.
const (
	maxOperations = 10000
	maxCopied     = 3 * 1024 * 1024
)

func init() { jsonpatch.AccumulatedCopySizeLimit = maxCopied }

// Patch is one patch as a client sent it.
type Patch struct {
	Type types.PatchType // all but the apply types
	Data []byte
	Form wire.Form // the version that the client speaks
	// FieldValidation is Strict, Warn, Ignore or empty for Warn.
	FieldValidation string
}

// Apply returns a new hub object: current, which it does not change, with the
// patch merged in. Errors are StatusErrors.
func (p *Patch) Apply(ctx context.Context, current apis.Object) (apis.Object, error) {
	versioned, err := p.Form.FromHub(current)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if p.Type == types.StrategicMergePatchType {
		versioned, err = p.strategic(ctx, versioned)
	} else {
		versioned, err = p.onJSON(ctx, versioned)
	}
	if err != nil {
		return nil, err
	}
	hub, err := p.Form.ToHub(versioned)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return hub, nil
}

func (p *Patch) onJSON(ctx context.Context, current apis.Object) (apis.Object, error) {
	before, err := encode(current)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if !json.Valid(p.Data) {
		return nil, apierrors.NewBadRequest("invalid JSON patch")
	}
	var after []byte
	var complaints []error
	switch p.Type {
	case types.JSONPatchType:
		after, complaints, err = p.operations(before)
	case types.MergePatchType:
		after, complaints, err = p.merge(before)
	default:
		err = apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch", schema.GroupResource{}, "",
			fmt.Sprintf("unknown Content-Type header for patch: %v", p.Type), 0, true)
	}
	if err != nil {
		return nil, err
	}
	obj, more, err := p.Form.Decode(after, wire.Strict(p.FieldValidation))
	if err == nil {
		err = p.checkKind(obj)
	}
	if err != nil {
		return nil, invalidPatch(string(after), err.Error())
	}
	return obj, p.judge(ctx, string(after), append(complaints, more...))
}

func encode(obj apis.Object) ([]byte, error) {
	if _, ok := obj.(runtime.Unstructured); ok {
		return json.Marshal(obj)
	}
	return jsonplan.Append(nil, obj)
}

// checkKind refuses a patch that makes an object of another kind or version.
func (p *Patch) checkKind(obj apis.Object) error {
	gvk := obj.GetObjectKind().GroupVersionKind()
	if _, custom := obj.(runtime.Unstructured); gvk.Kind == "" && !custom {
		gvk.Kind = p.Form.Kind
	}
	if gvk != p.Form.GroupVersionKind {
		return fmt.Errorf("unable to decode %s: the object is %s", gvk, p.Form.GroupVersionKind)
	}
	return nil
}

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

func (p *Patch) operations(before []byte) (after []byte, complaints []error, err error) {
	if wire.Strict(p.FieldValidation) {
		var ops []operation
		if complaints, err = kjson.UnmarshalStrict(p.Data, &ops); err != nil {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
		for i, c := range complaints {
			complaints[i] = fmt.Errorf("json patch %v", c)
		}
	}
	if err := reasonable(before, p.Data); err != nil {
		return nil, nil, err
	}
	ops, err := jsonpatch.DecodePatch(p.Data)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	if len(ops) > maxOperations {
		return nil, nil, apierrors.NewRequestEntityTooLargeError(
			fmt.Sprintf("The allowed maximum operations in a JSON patch is %d, got %d", maxOperations, len(ops)))
	}
	if after, err = run(ops, before); err != nil {
		return nil, nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	}
	return after, complaints, nil
}

// run applies operations. The library panics over some that lack a value.
func run(ops jsonpatch.Patch, doc []byte) (after []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("an operation cannot be applied: %v", p)
		}
	}()
	return ops.Apply(doc)
}

func (p *Patch) merge(before []byte) (after []byte, complaints []error, err error) {
	if wire.Strict(p.FieldValidation) {
		var fields map[string]any
		if complaints, err = kjson.UnmarshalStrict(p.Data, &fields); err != nil {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
	}
	after, err = mergeObjects(before, p.Data)
	if errors.Is(err, jsonpatch.ErrBadJSONPatch) {
		err = apierrors.NewBadRequest(err.Error())
	}
	return after, complaints, err
}

func (p *Patch) strategic(ctx context.Context, current apis.Object) (apis.Object, error) {
	if p.Form.IsUnstructured() {
		return nil, UnsupportedMediaType(types.JSONPatchType, types.MergePatchType, types.ApplyYAMLPatchType)
	}
	if !json.Valid(p.Data) {
		return nil, apierrors.NewBadRequest("invalid JSON patch")
	}
	before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(current)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	var changes map[string]any
	var complaints []error
	strict := wire.Strict(p.FieldValidation)
	if strict {
		complaints, err = kjson.UnmarshalStrict(p.Data, &changes)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(p.Data, &changes)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if err := mergeable(before, changes); err != nil {
		return nil, err
	}
	shown := fmt.Sprintf("%+v", changes)
	after, err := strategicpatch.StrategicMergeMapPatch(before, changes, p.Form.New())
	if err != nil {
		return nil, mergeError(err)
	}
	obj := p.Form.New()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(after, obj, strict); err != nil {
		unknown, ok := runtime.AsStrictDecodingError(err)
		if !ok {
			return nil, invalidPatch(shown, err.Error())
		}
		complaints = append(complaints, unknown.Errors()...)
	}
	if err := p.checkKind(obj); err != nil {
		return nil, invalidPatch(shown, err.Error())
	}
	return obj, p.judge(ctx, shown, complaints)
}

func mergeError(err error) error {
	switch err {
	case mergepatch.ErrBadJSONDoc, mergepatch.ErrBadPatchFormatForPrimitiveList,
		mergepatch.ErrBadPatchFormatForRetainKeys, mergepatch.ErrBadPatchFormatForSetElementOrderList,
		mergepatch.ErrUnsupportedStrategicMergePatchFormat:
		return apierrors.NewBadRequest(err.Error())
	case mergepatch.ErrNoListOfLists, mergepatch.ErrPatchContentNotMatchRetainKeys:
		return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	}
	return apierrors.NewBadRequest(err.Error()) // upstream's 500: but it is the patch that is wrong
}

// judge turns complaints of strict decoding into warnings, or into an error where that was asked for.
func (p *Patch) judge(ctx context.Context, shown string, complaints []error) error {
	if len(complaints) == 0 {
		return nil
	}
	if p.FieldValidation == metav1.FieldValidationStrict {
		return invalidPatch(shown, runtime.NewStrictDecodingError(complaints).Error())
	}
	for _, c := range complaints {
		wire.Warn(ctx, c.Error())
	}
	return nil
}

func invalidPatch(patch, detail string) error {
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{field.Invalid(field.NewPath("patch"), patch, detail)})
}

// UnsupportedMediaType is the error for a patch type that a resource does not take.
func UnsupportedMediaType(accepted ...types.PatchType) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
		Message: fmt.Sprintf("the body of the request was in an unknown format - accepted media types include: %s", join(accepted)),
	}}
}

func join(accepted []types.PatchType) string {
	var s string
	for i, t := range accepted {
		if i > 0 {
			s += ", "
		}
		s += string(t)
	}
	return s
}
