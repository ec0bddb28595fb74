package registry

import (
	"bytes"
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"proa/internal/apis"
	"proa/internal/apiserver/codec"
	"proa/internal/apiserver/codec/jsonplan"
	"proa/internal/apiserver/patch"
	"proa/internal/apiserver/wire"
	"proa/internal/store"
)

// Patch merges a client's patch, in the version its view serves, into an object.
// Only an apply makes an object that does not exist.
func (r *Registry) Patch(ctx context.Context, q *Request, pt types.PatchType, data []byte, opts metav1.PatchOptions) (*store.Item, bool, error) {
	if err := invalidOptions("PatchOptions", metav1validation.ValidatePatchOptions(&opts, pt)); err != nil {
		return nil, false, err
	}
	sub, err := r.subresource(q, "patch")
	if err != nil {
		return nil, false, err
	}
	if sub != nil && sub.Scale != nil {
		return r.patchScale(ctx, q, sub, pt, data, opts)
	}
	e := &edit{
		options:       &metav1.UpdateOptions{DryRun: opts.DryRun, FieldManager: opts.FieldManager, FieldValidation: opts.FieldValidation},
		createOptions: &metav1.CreateOptions{DryRun: opts.DryRun, FieldManager: opts.FieldManager, FieldValidation: opts.FieldValidation},
		dryRun:        isDryRun(opts.DryRun), sub: sub,
	}
	if pt == types.ApplyYAMLPatchType {
		e.create = sub == nil
		e.object = r.applier(q, data, &opts)
	} else {
		e.object = patcher(q, pt, data, opts.FieldValidation)
		e.record = r.recorder(q, opts.FieldManager)
	}
	return r.edit(ctx, q, e)
}

// patcher makes the new state by one of the three plain patch types.
func patcher(q *Request, pt types.PatchType, data []byte, directive string) func(context.Context, apis.Object) (apis.Object, error) {
	p := &patch.Patch{Type: pt, Data: data, Form: wire.Of(q.View), FieldValidation: directive}
	return func(ctx context.Context, old apis.Object) (apis.Object, error) {
		obj, err := p.Apply(ctx, old)
		if err != nil {
			return nil, err
		}
		if pt == types.JSONPatchType { // it can move anything to where a quantity belongs
			if err := codec.CheckScales(obj); err != nil {
				return nil, err
			}
		}
		if err := inNamespace(q, obj); err != nil {
			return nil, err
		}
		return obj, named(q, obj)
	}
}

// applier makes the new state by server-side apply (KEP-555).
func (r *Registry) applier(q *Request, data []byte, opts *metav1.PatchOptions) func(context.Context, apis.Object) (apis.Object, error) {
	return func(ctx context.Context, old apis.Object) (apis.Object, error) {
		config, err := readApply(ctx, data, opts.FieldValidation)
		if err != nil {
			return nil, err
		}
		m, err := r.managers.For(q.View, q.Subresource)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		obj, err := applied(m.Apply(old, config, opts.FieldManager, opts.Force != nil && *opts.Force))
		if err != nil {
			return nil, err
		}
		if err := inNamespace(q, obj); err != nil {
			return nil, err
		}
		return obj, named(q, obj)
	}
}

// applied gives the error of an apply its Status.
func applied(obj apis.Object, err error) (apis.Object, error) {
	if _, ok := err.(apierrors.APIStatus); ok || err == nil {
		return obj, err
	}
	return nil, unknown(err.Error())
}

// readApply reads an apply configuration. Duplicate keys are an error in Strict
// and a warning in Warn; unknown fields have no owner and always are an error, by the merge.
func readApply(ctx context.Context, data []byte, directive string) (*unstructured.Unstructured, error) {
	config := &unstructured.Unstructured{Object: map[string]any{}}
	if object, ok := jsonplan.DecodeObject(data); ok {
		config.Object = object
		return config, nil
	}
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) { // most clients send JSON, which reads much faster
		if complaints, err := kjson.UnmarshalStrict(data, &config.Object); err == nil && (len(complaints) == 0 || !wire.Strict(directive)) {
			return config, nil
		}
		config.Object = map[string]any{}
	}
	if err := yaml.Unmarshal(data, &config.Object); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	if !wire.Strict(directive) {
		return config, nil
	}
	if err := yaml.UnmarshalStrict(data, &map[string]any{}); err != nil {
		if directive == metav1.FieldValidationStrict {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("error strict decoding patch: %v", err))
		}
		wire.Warn(ctx, err.Error())
	}
	return config, nil
}
