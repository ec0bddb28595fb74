package apiserver

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"

	"proa/internal/apis"
	"proa/internal/apiserver/codec"
	"proa/internal/apiserver/negotiate"
	"proa/internal/apiserver/wire"
	"proa/internal/store"
)

// atOnce is how much of a body is given room before it has come.
const atOnce = 64 << 10

// readBody reads a request body up to the limit; more is a 413 Status.
func (c *call) readBody() ([]byte, error) {
	limit, announced := c.s.config.MaxBody, c.r.ContentLength
	if announced > limit {
		return nil, tooLarge(limit)
	}
	if announced == 0 {
		return nil, nil
	}
	var b bytes.Buffer
	if announced > 0 {
		b.Grow(int(min(announced, atOnce)) + bytes.MinRead)
	}
	if _, err := b.ReadFrom(io.LimitReader(c.r.Body, limit+1)); err != nil {
		if ended := c.r.Context().Err(); ended != nil {
			return nil, ended
		}
		return nil, apierrors.NewBadRequest(fmt.Sprintf("read the request body: %v", err))
	}
	if int64(b.Len()) > limit {
		return nil, tooLarge(limit)
	}
	return b.Bytes(), nil
}

func tooLarge(limit int64) error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", limit))
}

// readObject decodes the request body into a hub object, or into the
// subresource's own kind.
func (c *call) readObject(fieldValidation string) (apis.Object, error) {
	m, err := negotiate.Body(c.r.Header.Get("Content-Type"), c.s.bodies(c.custom())...)
	if err != nil {
		return nil, err
	}
	data, err := c.readBody()
	if err != nil {
		return nil, err
	}
	body := c.body()
	if err := codec.CheckQuantities(data, m, body.New()); err != nil {
		return nil, err
	}
	var obj apis.Object
	var complaints []string
	if body.IsUnstructured() {
		obj, complaints, err = codec.DecodeCustom(data, m, body, fieldValidation)
	} else {
		obj, complaints, err = c.decodeBody(data, m, body, fieldValidation)
	}
	if err != nil {
		return nil, err
	}
	if err := codec.CheckExponents(obj, data, m); err != nil {
		return nil, err
	}
	c.auditRequest(obj)
	wire.Warn(c.r.Context(), complaints...)
	if c.sub != nil && c.sub.New != nil {
		return obj, nil
	}
	hub, err := body.ToHub(obj)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return hub, nil
}

// decodeBody reads a body in its version or one that a subresource accepts beside it.
func (c *call) decodeBody(data []byte, m negotiate.Media, body wire.Form, fieldValidation string) (apis.Object, []string, error) {
	obj, complaints, err := codec.Decode(data, m, body.GroupVersionKind, body.New(), fieldValidation)
	if err == nil || c.sub == nil {
		return obj, complaints, err
	}
	for _, other := range c.sub.Accepts {
		kind := schema.GroupVersionKind{Group: other.Group, Version: other.Version, Kind: other.Kind}
		if served, complaints, err := codec.Decode(data, m, kind, other.New(), fieldValidation); err == nil {
			obj, err := other.ToHub(served)
			return obj, complaints, err
		}
	}
	return nil, nil, err
}

func (c *call) create() error {
	var opts metav1.CreateOptions
	if err := decode(c.query, &opts, func(q *url.Values, o *metav1.CreateOptions) error {
		return metav1.Convert_url_Values_To_v1_CreateOptions(q, o, nil)
	}); err != nil {
		return err
	}
	if errs := metav1validation.ValidateCreateOptions(&opts); len(errs) > 0 { // said before what is wrong with the body
		return apierrors.NewInvalid(metav1.SchemeGroupVersion.WithKind("CreateOptions").GroupKind(), "", errs)
	}
	obj, err := c.readObject(opts.FieldValidation)
	if err != nil {
		return err
	}
	item, err := c.s.config.Registry.Create(c.r.Context(), c.req, obj, opts)
	if err != nil {
		return err
	}
	if item == nil {
		return c.writeStatus(&metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated})
	}
	return c.writeItem(http.StatusCreated, item)
}

func (c *call) writeStatus(status *metav1.Status) error {
	return c.writeStatusAs(int(status.Code), status)
}

// writeStatusAs writes a Status that need not tell its code.
func (c *call) writeStatusAs(code int, status *metav1.Status) error {
	c.s.auditStatus(c.r, status)
	f := c.format
	f.As = ""
	return c.s.writeObject(c.w, c.r, f, code, codec.StatusKind, status)
}

func (c *call) update() error {
	var opts metav1.UpdateOptions
	if err := decode(c.query, &opts, func(q *url.Values, o *metav1.UpdateOptions) error {
		return metav1.Convert_url_Values_To_v1_UpdateOptions(q, o, nil)
	}); err != nil {
		return err
	}
	if errs := metav1validation.ValidateUpdateOptions(&opts); len(errs) > 0 {
		return apierrors.NewInvalid(metav1.SchemeGroupVersion.WithKind("UpdateOptions").GroupKind(), "", errs)
	}
	obj, err := c.readObject(opts.FieldValidation)
	if err != nil {
		return err
	}
	item, created, err := c.s.config.Registry.Update(c.r.Context(), c.req, obj, opts)
	if err != nil {
		return err
	}
	return c.writeItem(codeOf(created), item)
}

func codeOf(created bool) int {
	if created {
		return http.StatusCreated
	}
	return http.StatusOK
}

func (c *call) patch() error {
	kind, err := c.patchType()
	if err != nil {
		return err
	}
	data, err := c.readBody()
	if err != nil {
		return err
	}
	if kind == types.ApplyCBORPatchType {
		kind = types.ApplyYAMLPatchType
		if data, err = codec.JSONOf(data); err != nil {
			return err
		}
	}
	c.auditPatch(data)
	form := negotiate.JSON
	if kind == types.ApplyYAMLPatchType {
		form = negotiate.YAML
	}
	if err := codec.CheckQuantities(data, form, c.view.New()); err != nil {
		return err
	}
	if err := codec.CheckPatch(data, form, c.view.New()); err != nil {
		return err
	}
	var opts metav1.PatchOptions
	if err := decode(c.query, &opts, func(q *url.Values, o *metav1.PatchOptions) error {
		return metav1.Convert_url_Values_To_v1_PatchOptions(q, o, nil)
	}); err != nil {
		return err
	}
	item, created, err := c.s.config.Registry.Patch(c.r.Context(), c.req, kind, data, opts)
	if err != nil {
		return err
	}
	return c.writeItem(codeOf(created), item)
}

func (c *call) patchType() (types.PatchType, error) {
	accepted := []types.PatchType{types.JSONPatchType, types.MergePatchType, types.StrategicMergePatchType, types.ApplyYAMLPatchType}
	if c.custom() {
		accepted = []types.PatchType{types.JSONPatchType, types.MergePatchType, types.ApplyYAMLPatchType}
	}
	if c.s.cbor {
		accepted = append(accepted, types.ApplyCBORPatchType)
	}
	got, _, _ := strings.Cut(c.r.Header.Get("Content-Type"), ";")
	for _, t := range accepted {
		if got == string(t) {
			return t, nil
		}
	}
	if !c.custom() {
		return "", errUnknownPatch
	}
	return "", negotiate.UnsupportedMedia(accepted)
}

// deleteOptions come from the body or, without one, from the query.
func (c *call) deleteOptions() (metav1.DeleteOptions, error) {
	var opts metav1.DeleteOptions
	data, err := c.readBody()
	if err != nil {
		return opts, err
	}
	if len(data) == 0 {
		return opts, decode(c.query, &opts, func(q *url.Values, o *metav1.DeleteOptions) error {
			return metav1.Convert_url_Values_To_v1_DeleteOptions(q, o, nil)
		})
	}
	own := schema.GroupVersionKind{Group: c.info.Group, Version: c.info.Version, Kind: "DeleteOptions"}
	kind := own
	if c.custom() {
		kind.Group, kind.Version = "", "v1"
	}
	err = codec.DecodeOptions(data, c.r.Header.Get("Content-Type"), kind, own, &opts, c.s.bodies(false))
	return opts, err
}

// unsafeDeletion is the gate of deleting what cannot be read (KEP-3926).
const unsafeDeletion = "AllowUnsafeMalformedObjectDeletion"

// unsafeDelete puts on record that a request would delete what cannot be read, or
// takes the option away where the gate is off.
func (c *call) unsafeDelete(opts *metav1.DeleteOptions) {
	asked := &opts.IgnoreStoreReadErrorWithClusterBreakingPotential
	switch {
	case !c.s.config.Features.Enabled(unsafeDeletion):
		*asked = nil
	case *asked != nil && **asked:
		audit.AddAuditAnnotation(c.r.Context(), "apiserver.k8s.io/unsafe-delete-ignore-read-error", "")
	}
}

func (c *call) delete() error {
	opts, err := c.deleteOptions()
	if err != nil {
		return err
	}
	c.unsafeDelete(&opts)
	item, removed, err := c.s.config.Registry.Delete(c.r.Context(), c.req, opts)
	if err != nil {
		return err
	}
	code := http.StatusOK
	if !removed && opts.OrphanDependents != nil && !*opts.OrphanDependents { //nolint:staticcheck // what old clients ask for
		code = http.StatusAccepted
	}
	if item == nil || removed && !returnsObject(c.body().GroupVersion().WithResource(c.view.Plural)) {
		return c.writeStatusAs(code, deletedStatus(c.view, item, c.req.Name, code))
	}
	return c.writeItem(code, item)
}

// returnsDeleted are the kinds whose delete answers with the object that is gone;
// the others answer with a Status.
var returnsDeleted = map[schema.GroupResource]bool{
	{Resource: "persistentvolumeclaims"}: true, {Resource: "persistentvolumes"}: true, {Resource: "pods"}: true,
	{Resource: "podtemplates"}: true, {Resource: "resourcequotas"}: true, {Resource: "serviceaccounts"}: true, {Resource: "services"}: true,
	{Group: "storage.k8s.io", Resource: "csidrivers"}: true, {Group: "storage.k8s.io", Resource: "csinodes"}: true,
	{Group: "storage.k8s.io", Resource: "storageclasses"}: true, {Group: "storage.k8s.io", Resource: "volumeattachments"}: true,
	{Group: "storage.k8s.io", Resource: "volumeattributesclasses"}: true,
	{Group: "resource.k8s.io", Resource: "deviceclasses"}:          true, {Group: "resource.k8s.io", Resource: "resourceclaims"}: true,
	{Group: "resource.k8s.io", Resource: "resourceclaimtemplates"}: true, {Group: "resource.k8s.io", Resource: "resourceslices"}: true,
	{Group: "resource.k8s.io", Resource: "devicetaintrules"}: true, {Group: "resource.k8s.io", Resource: "resourcepoolstatusrequests"}: true,
}

// returnsObject says whether a delete in a version answers with the object. That
// of device taint rules does not since they are stable.
func returnsObject(gvr schema.GroupVersionResource) bool {
	return returnsDeleted[gvr.GroupResource()] && (gvr.Resource != "devicetaintrules" || gvr.Version != "v1")
}

func deletedStatus(view apis.View, item *store.Item, name string, code int) *metav1.Status {
	if item == nil { // it could not be read
		return &metav1.Status{Status: metav1.StatusSuccess, Details: &metav1.StatusDetails{Name: name, Kind: view.Kind}, Code: int32(code)}
	}
	return &metav1.Status{Status: metav1.StatusSuccess, Details: &metav1.StatusDetails{
		Name: name, Group: view.Group, Kind: view.Plural, UID: item.Object.GetUID(),
	}}
}

func (c *call) deleteCollection() error {
	list, err := c.listOptions()
	if err != nil {
		return err
	}
	opts, err := c.deleteOptions()
	if err != nil {
		return err
	}
	if !c.s.config.Features.Enabled(unsafeDeletion) {
		opts.IgnoreStoreReadErrorWithClusterBreakingPotential = nil
	}
	deleted, err := c.s.config.Registry.DeleteCollection(c.r.Context(), c.req, opts, list)
	if err != nil {
		return err
	}
	return c.writeList(listMeta(deleted), deleted.Items)
}
