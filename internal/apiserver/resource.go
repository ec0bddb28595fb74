package apiserver

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
	"proa/internal/apiserver/codec"
	"proa/internal/apiserver/negotiate"
	"proa/internal/apiserver/registry"
	"proa/internal/apiserver/request"
	"proa/internal/apiserver/wire"
)

// call is one request for a resource, resolved against the catalogue.
type call struct {
	s     *Server
	w     http.ResponseWriter
	r     *http.Request
	info  *request.Info
	view  apis.View
	sub   *apis.Subresource // nil: the resource itself
	query url.Values
	req   *registry.Request

	format negotiate.Format
}

var (
	errNoPath       = errors.New("no such path")
	errUnknownPatch = apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "", schema.GroupResource{}, "", "415: Unsupported Media Type", 0, false)
	errNotFound     = apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "", 0, false)
	errNoMethod     = &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
		Message: "the server does not allow this method on the requested resource", Details: &metav1.StatusDetails{},
	}}
)

// serveResource answers a request for a resource or subresource.
func (s *Server) serveResource(w http.ResponseWriter, r *http.Request, info *request.Info) error {
	c, err := s.resolve(w, r, info)
	if err != nil {
		return err
	}
	if opts, err := c.connectOptions(); opts != nil || err != nil {
		if err != nil {
			return err
		}
		return c.connect(opts)
	}
	c.tellDeprecation(r.Context())
	offered := c.s.offer(negotiate.Object(c.custom(), c.tabular()))
	if c.format, err = negotiate.Response(r, offered); err != nil {
		if !c.custom() {
			return offered.Refusal(r, err)
		}
		return err
	}
	return c.dispatch()
}

// resolve finds the resource and checks that the path has a form it serves.
func (s *Server) resolve(w http.ResponseWriter, r *http.Request, info *request.Info) (*call, error) {
	view, ok := s.catalogue.Lookup(info.GVR())
	if !ok || view.Served == nil && view.Unserved || (info.Group == "") != (info.Prefix == "api") {
		return nil, errNoPath
	}
	c := &call{s: s, w: w, r: r, info: info, view: view}
	named := len(info.Parts) > 1
	if info.Namespaced && view.Scope == apis.Cluster || named && !info.Namespaced && view.Scope == apis.Namespaced {
		return nil, errNoPath
	}
	if !served(view, info, named) {
		return nil, errNoPath
	}
	if info.Subresource != "" {
		if c.sub = view.Subresource(info.Subresource); c.sub == nil {
			return nil, errNoPath
		}
	}
	if len(info.Parts) > 3 && info.Subresource != "proxy" {
		return nil, errNoPath
	}
	if r.URL.RawQuery != "" {
		c.query = r.URL.Query()
	}
	c.req = &registry.Request{
		User: userFrom(r.Context()), View: view, Namespace: info.Namespace, Subresource: info.Subresource, UserAgent: cmp.Or(r.UserAgent(), "unknown"),
	}
	if named {
		c.req.Name = info.Parts[1]
	}
	if view.Scope == apis.Cluster {
		c.req.Namespace = ""
	}
	if err := c.checkVerb(named); err != nil {
		return nil, err
	}
	if wrong := path.IsValidPathSegmentName(c.req.Name); len(wrong) > 0 {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: %s", c.req.Name, strings.Join(wrong, ";")))
	}
	return c, nil
}

// served says whether a path of this form exists: below the name of a resource that
// only creates there is nothing, nor across all namespaces what cannot be listed.
func served(view apis.View, info *request.Info, named bool) bool {
	if view.Verbs == nil || info.Subresource != "" {
		return true
	}
	has := func(verb string) bool { return slices.Contains(view.Verbs, verb) }
	if named {
		return has("get") || has("update") || has("patch") || has("delete")
	}
	return info.Namespaced || view.Scope == apis.Cluster || has("list")
}

// checkVerb answers 405 for a verb that the resource, its subresource or the
// path's form does not have.
func (c *call) checkVerb(named bool) error {
	verbs := c.view.Verbs
	if c.sub != nil {
		verbs = c.sub.Verbs
	}
	verb := c.info.Verb
	switch {
	case c.sub != nil && c.info.Subresource == "proxy":
		return nil // any method: it is the proxied server's
	case c.r.Method == http.MethodHead, verb == "":
		return errNoMethod
	case verbs != nil && !slices.Contains(verbs, verb):
		if c.sub != nil && c.custom() || verb == "watch" && c.sub == nil && slices.Contains(verbs, "list") {
			return apierrors.NewMethodNotSupported(c.view.GroupResource(), verb)
		}
		return errNoMethod
	case c.sub != nil:
		return nil
	}
	switch verb {
	case "create":
		if named {
			return errNoMethod
		}
	case "get", "update", "patch", "delete":
		if !named {
			return errNoMethod
		}
	}
	if verb != "list" && verb != "watch" && c.view.Scope == apis.Namespaced && !c.info.Namespaced {
		return errNoMethod
	}
	return nil
}

func (c *call) dispatch() error { return c.traced(c.perform) }

func (c *call) perform() error {
	switch c.info.Verb {
	case "get":
		return c.get()
	case "list":
		return c.list()
	case "watch":
		return c.watch()
	case "create":
		return c.create()
	case "update":
		return c.update()
	case "patch":
		return c.patch()
	case "delete":
		return c.delete()
	case "deletecollection":
		return c.deleteCollection()
	}
	return errNoMethod
}

func (c *call) custom() bool {
	_, ok := c.view.New().(runtime.Unstructured)
	return ok
}

// tabular says that answers can be tables: those of what can be read, and scales.
func (c *call) tabular() bool {
	if c.sub != nil {
		return c.sub.New == nil || c.sub.Scale != nil
	}
	return c.view.Verbs == nil || slices.Contains(c.view.Verbs, "get")
}

// body is the form of request and response bodies.
func (c *call) body() wire.Form { return wire.Body(c.view, c.sub) }

// form is how the response's object is written. What is asked for as metadata
// alone is a variant of its own.
func (c *call) form() *codec.Form {
	body := c.body()
	var convert func(apis.Object) (apis.Object, error)
	if c.view.Served != nil && (c.sub == nil || c.sub.New == nil) {
		convert = body.FromHub
	}
	f := codec.NewForm(body.GroupVersionKind, c.format, convert)
	load := func(obj apis.Object) (apis.Object, error) { return obj, nil }
	if custom := c.view.Custom; custom != nil && (c.sub == nil || c.sub.New == nil) {
		load = custom.Load
		f = f.Variant(custom.State, body.GroupVersionKind, load)
	}
	if c.partial() {
		return f.Variant("metadata "+c.format.AsVersion, c.metaKind("PartialObjectMetadata"), func(obj apis.Object) (apis.Object, error) {
			loaded, err := load(obj)
			if err != nil {
				return nil, err
			}
			return codec.Partial(loaded), nil
		})
	}
	return f
}

func (c *call) partial() bool {
	return c.format.As == "PartialObjectMetadata" || c.format.As == "PartialObjectMetadataList"
}

func (c *call) metaKind(kind string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: metav1.GroupName, Version: c.format.AsVersion, Kind: kind}
}

func (c *call) connectOptions() (runtime.Object, error) {
	if c.sub == nil {
		return nil, nil
	}
	return connectOptions(c.info, c.query)
}

// connect hands a stream or proxied request on once admission let it pass.
func (c *call) connect(opts runtime.Object) error {
	if len(c.query["dryRun"]) > 0 {
		return apierrors.NewBadRequest("dryRun is not supported")
	}
	if websocket.IsWebSocketUpgrade(c.r) {
		if err := c.s.mayUpgrade(c.r, c.info); err != nil {
			return err
		}
	}
	if err := c.s.admitConnect(c, opts); err != nil {
		return err
	}
	return c.s.connect.Serve(c.w, c.r, c.info, opts, func(err error) { c.s.fail(c.w, c.r, err) })
}
