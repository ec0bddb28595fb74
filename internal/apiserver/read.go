package apiserver

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"proa/internal/admission"
	"proa/internal/apiserver/codec"
	"proa/internal/apiserver/connect"
	"proa/internal/apiserver/negotiate"
	"proa/internal/apiserver/registry"
	"proa/internal/apiserver/request"
	"proa/internal/apiserver/table"
	"proa/internal/latency"
	"proa/internal/store"
	"proa/internal/tracing"
)

// decode reads query parameters into options by a conversion of apimachinery's.
func decode[T any](query url.Values, into *T, convert func(*url.Values, *T) error) error {
	if len(query) == 0 {
		return nil
	}
	if err := convert(&query, into); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

func (c *call) get() error {
	if export := c.query["export"]; len(export) > 0 {
		var asked bool
		if err := runtime.Convert_Slice_string_To_bool(&export, &asked, nil); err == nil && asked {
			return apierrors.NewBadRequest("the export parameter, deprecated since v1.14, is no longer supported")
		}
	}
	var opts metav1.GetOptions
	if err := decode(c.query, &opts, func(q *url.Values, o *metav1.GetOptions) error {
		return metav1.Convert_url_Values_To_v1_GetOptions(q, o, nil)
	}); err != nil {
		return err
	}
	item, err := c.s.config.Registry.Get(c.r.Context(), c.req, opts)
	if err != nil {
		return err
	}
	return c.writeItem(http.StatusOK, item)
}

// writeItem writes one object in whatever form was negotiated.
func (c *call) writeItem(code int, item *store.Item) error {
	if c.format.As == "PartialObjectMetadataList" {
		return c.otherForm("not a list (*%s.%s)", c.body().Kind)
	}
	c.auditItem(item)
	_, span := tracing.Start(c.r.Context(), "SerializeObject")
	defer span.End(nil)
	out := newSink(c.w, c.r, code, string(c.format.Media))
	defer out.time.Track(latency.Serialization)()
	var err error
	if c.format.As == "Table" {
		var p *table.Printer
		if p, err = c.printer(); err == nil {
			err = p.Write(out, c.format, metav1.ListMeta{ResourceVersion: item.Object.GetResourceVersion()}, []*store.Item{item})
		}
	} else {
		err = c.form().WriteItem(out, item)
	}
	return out.finish(err)
}

// otherForm is the 406 for metadata of one object where there are many, or of many
// where there is one.
func (c *call) otherForm(is, kind string) error {
	group, _, _ := strings.Cut(c.body().Group, ".")
	if group == "" {
		group = "core"
	}
	return negotiate.Unfit(fmt.Sprintf("you requested %s, but the requested object is "+is, c.format.As, group, kind))
}

// finish completes a body. Once a part of it is out an error can only be told by
// cutting the connection.
func (s *sink) finish(err error) error {
	if err == nil {
		err = s.Close()
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		return nil
	}
	if s.Started() {
		panic(http.ErrAbortHandler)
	}
	s.release()
	return err
}

func (c *call) printer() (*table.Printer, error) {
	include, err := table.Include(c.query)
	if err != nil {
		return nil, err
	}
	full := *c
	full.format.As = ""
	resource := c.view.Resource
	if c.sub != nil && c.sub.Scale != nil {
		resource = registry.Scales
		if c.custom() {
			resource = registry.CustomScales
		}
	}
	return &table.Printer{
		Resource: resource, Version: c.format.AsVersion, Include: include, Form: full.form(), Now: c.s.config.Clock.Now(),
	}, nil
}

// listOptions reads the options of a list or watch. A name in the path counts as
// a field selector.
func (c *call) listOptions() (metav1.ListOptions, error) {
	var opts metav1.ListOptions
	if err := decode(c.query, &opts, func(q *url.Values, o *metav1.ListOptions) error {
		return metav1.Convert_url_Values_To_v1_ListOptions(q, o, nil)
	}); err != nil {
		return opts, err
	}
	if c.req.Name == "" {
		return opts, nil
	}
	if opts.FieldSelector == "" {
		opts.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, c.req.Name).String()
		return opts, nil
	}
	sel, err := fields.ParseSelector(opts.FieldSelector)
	if err != nil {
		return opts, apierrors.NewBadRequest(err.Error())
	}
	if name, ok := sel.RequiresExactMatch(metav1.ObjectNameField); !ok || name != c.req.Name {
		return opts, apierrors.NewBadRequest("fieldSelector metadata.name doesn't match requested name")
	}
	return opts, nil
}

func (c *call) list() error {
	opts, err := c.listOptions()
	if err != nil {
		return err
	}
	list, err := c.s.config.Registry.List(c.r.Context(), c.req, opts)
	if opts.ResourceVersion == "" && opts.Continue == "" {
		c.countConsistent(list, err)
	}
	if err != nil {
		return err
	}
	return c.writeList(listMeta(list), list.Items)
}

// countConsistent counts a list of the newest state. One that asked for what it cannot
// have is none, and computed kinds are never old.
func (c *call) countConsistent(list *registry.ItemList, err error) {
	var through registry.ThroughError
	fallback := errors.As(err, &through) || err == nil && list.Through
	switch {
	case err == nil && list.Revision == 0, err != nil && statusOf(err).Code < http.StatusInternalServerError:
		return
	}
	c.s.metrics.consistent.WithLabelValues(c.info.Group, c.info.Resource,
		strconv.FormatBool(err == nil), strconv.FormatBool(fallback)).Inc()
}

func listMeta(list *registry.ItemList) metav1.ListMeta {
	meta := metav1.ListMeta{Continue: list.Continue, RemainingItemCount: list.Remaining}
	if list.Revision > 0 { // computed kinds have none
		meta.ResourceVersion = strconv.FormatInt(list.Revision, 10)
	}
	return meta
}

func (c *call) writeList(meta metav1.ListMeta, items []*store.Item) error {
	if c.format.As == "PartialObjectMetadata" {
		return c.otherForm("a list (*%s.%s)", c.listKind(c.body().Kind))
	}
	c.auditList(meta, items)
	_, span := tracing.Start(c.r.Context(), "SerializeObject")
	defer span.End(nil)
	out := newSink(c.w, c.r, http.StatusOK, string(c.format.Media))
	defer out.time.Track(latency.Serialization)()
	if c.format.As == "Table" {
		p, err := c.printer()
		if err == nil {
			err = p.Write(out, c.format, meta, items)
		}
		return out.finish(err)
	}
	f := c.form()
	l := codec.List{Kind: f.Kind.GroupVersion().WithKind(c.listKind(f.Kind.Kind)), Meta: meta, ItemKinds: c.partial()}
	return out.finish(f.WriteList(out, l, items))
}

// listKind is the kind of a list of kind, which definitions may choose freely.
func (c *call) listKind(kind string) string {
	if custom := c.view.Custom; custom != nil && !c.partial() {
		return custom.ListKind
	}
	return kind + "List"
}

func connectOptions(info *request.Info, query url.Values) (runtime.Object, error) {
	return connect.Options(info, query)
}

// admitConnect shows a connect request to the admission plugins.
func (s *Server) admitConnect(c *call, opts runtime.Object) error {
	if _, logs := opts.(*corev1.PodLogOptions); logs || s.config.Admission == nil {
		return nil // to read a log is a get
	}
	a := &admission.Attributes{
		Operation: admissionv1.Connect, Resource: c.view.Resource, Served: c.view.Served, Subresource: c.info.Subresource,
		Namespace: c.req.Namespace, Name: c.req.Name, Options: opts, User: c.req.User,
	}
	if err := s.config.Admission.Admit(c.r.Context(), a); err != nil {
		return err
	}
	return s.config.Admission.Validate(c.r.Context(), a)
}
