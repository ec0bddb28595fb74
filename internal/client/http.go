package client

import (
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"proa/internal/apis"
)

// NewHTTP returns the transport of a component that runs apart from the server.
// Built-in kinds travel as protobuf unless config says otherwise. The object kinds it
// can read are those of catalogue.
func NewHTTP(config *rest.Config, catalogue *apis.Catalogue) (API, error) {
	c := rest.CopyConfig(config)
	c.GroupVersion = &schema.GroupVersion{}
	c.NegotiatedSerializer = newCodecs()
	if c.ContentType == "" {
		c.ContentType = runtime.ContentTypeProtobuf
		c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	if c.QPS == 0 {
		c.QPS = -1 // the server's fairness limits, not the client
	}
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("http client: %w", err)
	}
	return &httpAPI{client: client, catalogue: catalogue}, nil
}

type httpAPI struct {
	client    *rest.RESTClient
	catalogue *apis.Catalogue
}

// request addresses ref with opts as query parameters. Nil opts: none.
func (h *httpAPI) request(verb string, ref Ref, opts runtime.Object) *rest.Request {
	r := h.client.Verb(verb)
	if ref.Resource.Group == "" {
		r = r.AbsPath("/api", ref.Resource.Version)
	} else {
		r = r.AbsPath("/apis", ref.Resource.Group, ref.Resource.Version)
	}
	r = r.NamespaceIfScoped(ref.Namespace, ref.Namespace != "").Resource(ref.Resource.Resource)
	if ref.Name != "" {
		r = r.Name(ref.Name)
	}
	if ref.Subresource != "" {
		r = r.SubResource(ref.Subresource)
	}
	if opts != nil {
		r = r.SpecificallyVersionedParams(opts, scheme.ParameterCodec, corev1.SchemeGroupVersion)
	}
	return r
}

func (h *httpAPI) object(ctx context.Context, r *rest.Request) (Object, error) {
	obj, err := r.Do(ctx).Get()
	if err != nil {
		return nil, err
	}
	return asObject(obj)
}

func asObject(obj runtime.Object) (Object, error) {
	typed, ok := obj.(Object)
	if !ok {
		return nil, fmt.Errorf("server answered with %T, which is no API object", obj)
	}
	return typed, nil
}

func (h *httpAPI) Get(ctx context.Context, ref Ref, opts metav1.GetOptions) (Object, error) {
	return h.object(ctx, h.request("GET", ref, &opts))
}

func (h *httpAPI) List(ctx context.Context, ref Ref, opts metav1.ListOptions) (*List, error) {
	obj, err := h.request("GET", ref, &opts).Do(ctx).Get()
	if err != nil {
		return nil, err
	}
	listMeta, err := meta.ListAccessor(obj)
	if err != nil {
		return nil, err
	}
	list := &List{
		ResourceVersion:    listMeta.GetResourceVersion(),
		Continue:           listMeta.GetContinue(),
		RemainingItemCount: listMeta.GetRemainingItemCount(),
	}
	err = meta.EachListItem(obj, func(item runtime.Object) error {
		typed, err := asObject(item)
		list.Items = append(list.Items, typed)
		return err
	})
	return list, err
}

func (h *httpAPI) Create(ctx context.Context, ref Ref, obj Object, opts metav1.CreateOptions) (Object, error) {
	answer, err := h.request("POST", ref, &opts).Body(obj).Do(ctx).Get()
	if err != nil {
		return nil, err
	}
	if _, done := answer.(*metav1.Status); done {
		return obj, nil // a binding or an eviction, which nothing keeps
	}
	return asObject(answer)
}

func (h *httpAPI) Update(ctx context.Context, ref Ref, obj Object, opts metav1.UpdateOptions) (Object, error) {
	return h.object(ctx, h.request("PUT", ref, &opts).Body(obj))
}

func (h *httpAPI) Patch(ctx context.Context, ref Ref, pt types.PatchType, data []byte, opts metav1.PatchOptions) (Object, error) {
	return h.object(ctx, h.request("PATCH", ref, &opts).SetHeader("Content-Type", string(pt)).Body(data))
}

// Delete knows no more than the name and the UID of an object that is gone: the
// server answers with a Status then.
func (h *httpAPI) Delete(ctx context.Context, ref Ref, opts metav1.DeleteOptions) (Object, error) {
	obj, err := h.request("DELETE", ref, nil).Body(&opts).Do(ctx).Get()
	if err != nil {
		return nil, err
	}
	if status, isStatus := obj.(*metav1.Status); isStatus {
		return h.gone(ref, status), nil
	}
	return asObject(obj)
}

func (h *httpAPI) gone(ref Ref, status *metav1.Status) Object {
	var obj Object = &unstructured.Unstructured{Object: map[string]any{}}
	if view, known := h.catalogue.Lookup(ref.Resource); known {
		obj = view.New()
	}
	obj.SetNamespace(ref.Namespace)
	obj.SetName(ref.Name)
	if status.Details != nil {
		obj.SetUID(status.Details.UID)
	}
	return obj
}

func (h *httpAPI) DeleteCollection(ctx context.Context, ref Ref, opts metav1.DeleteOptions, list metav1.ListOptions) error {
	return h.request("DELETE", ref, &list).Body(&opts).Do(ctx).Error()
}

func (h *httpAPI) Watch(ctx context.Context, ref Ref, opts metav1.ListOptions) (Watch, error) {
	opts.Watch = true
	stream, err := h.request("GET", ref, &opts).Watch(ctx)
	if err != nil {
		return nil, err
	}
	return &httpWatch{stream: stream}, nil
}

type httpWatch struct {
	stream watch.Interface
	failed error // what ended the stream, told after the events before it
}

// Next returns one event, and with it all others that the decoder has ready.
func (w *httpWatch) Next(ctx context.Context) ([]Event, error) {
	if w.failed != nil {
		return nil, w.failed
	}
	var events []Event
	select {
	case ev, ok := <-w.stream.ResultChan():
		events = w.take(events, ev, ok)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for w.failed == nil {
		select {
		case ev, ok := <-w.stream.ResultChan():
			events = w.take(events, ev, ok)
			continue
		default:
		}
		break
	}
	if len(events) == 0 {
		return nil, w.failed
	}
	return events, nil
}

func (w *httpWatch) take(events []Event, ev watch.Event, ok bool) []Event {
	if !ok {
		w.failed = io.EOF
		return events
	}
	if ev.Type == watch.Error {
		w.failed = apierrors.FromObject(ev.Object)
		return events
	}
	obj, err := asObject(ev.Object)
	if err != nil {
		w.failed = err
		return events
	}
	return append(events, Event{Type: ev.Type, Object: obj})
}

func (w *httpWatch) Stop() { w.stream.Stop() }
