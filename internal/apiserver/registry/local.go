package registry

import (
	"context"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/apis"
	"proa/internal/apiserver/wire"
	"proa/internal/client"
	"proa/internal/store"
)

// As returns the in-process transport: the request path as user u, authorized
// but neither encoded nor decoded. The user agent names the field manager of its
// writes; without one it is the program that upstream runs as this user.
func (r *Registry) As(u user.Info, userAgent ...string) client.API {
	l := &local{registry: r, user: u, userAgent: programOf(u)}
	if len(userAgent) > 0 {
		l.userAgent = userAgent[0]
	}
	return l
}

type local struct {
	registry  *Registry
	user      user.Info
	userAgent string
}

// programOf is the name of the program that upstream runs as a user: controllers
// share one, each with a service account of its own.
func programOf(u user.Info) string {
	if u == nil {
		return ""
	}
	name := u.GetName()
	last := name[strings.LastIndexByte(name, ':')+1:]
	switch {
	case strings.HasPrefix(name, "system:node:"):
		return "kubelet"
	case strings.HasPrefix(name, serviceaccount.ServiceAccountUsernamePrefix+metav1.NamespaceSystem+":"):
		return "kube-controller-manager"
	case name == user.APIServerUser:
		return "kube-apiserver"
	}
	return last
}

// request finds what a reference names and checks that the user may do it.
func (l *local) request(ctx context.Context, ref client.Ref, verb string) (*Request, error) {
	q, err := l.find(ref)
	if err != nil {
		return nil, err
	}
	return q, l.registry.authorize(ctx, q, verb, q.Name)
}

// selection is request for list and watch, whose selectors authorizers may
// consider: a selector for one name counts as naming it (KEP-4601).
func (l *local) selection(ctx context.Context, ref client.Ref, verb string, opts *metav1.ListOptions) (*Request, error) {
	q, err := l.find(ref)
	if err != nil {
		return nil, err
	}
	attrs := authorization(q, verb, q.Name)
	if sel, err := fields.ParseSelector(opts.FieldSelector); err != nil {
		attrs.FieldSelectorParsingErr = err
	} else {
		attrs.FieldSelectorRequirements = sel.Requirements()
		if name, ok := sel.RequiresExactMatch(metav1.ObjectNameField); ok && attrs.Name == "" {
			attrs.Name = name
		}
	}
	if sel, err := labels.Parse(opts.LabelSelector); err != nil {
		attrs.LabelSelectorParsingErr = err
	} else {
		attrs.LabelSelectorRequirements, _ = sel.Requirements()
	}
	return q, l.registry.decide(ctx, attrs)
}

func (l *local) find(ref client.Ref) (*Request, error) {
	view, ok := l.registry.catalogue.Lookup(ref.Resource)
	if !ok {
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: 404, Reason: metav1.StatusReasonNotFound,
			Message: "the server could not find the requested resource",
			Details: &metav1.StatusDetails{Group: ref.Resource.Group, Kind: ref.Resource.Resource},
		}}
	}
	return &Request{User: l.user, UserAgent: l.userAgent, View: view, Namespace: ref.Namespace, Name: ref.Name, Subresource: ref.Subresource}, nil
}

// object returns an item in the version that the caller asked for, without TypeMeta.
func (q *Request) object(item *store.Item) (client.Object, error) {
	if item == nil {
		return nil, nil
	}
	if q.Subresource == "scale" {
		return item.Object, nil
	}
	if q.View.Served == nil {
		obj, err := q.load(item)
		return obj, status(err, q.resource(), q.Name)
	}
	obj, err := wire.Of(q.View).FromHub(item.Object)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return wire.Bare(obj), nil
}

// hub returns a caller's object in the hub version.
func (q *Request) hub(obj client.Object) (apis.Object, error) {
	sub := q.View.Subresource(q.Subresource)
	if c := q.View.Custom; c != nil && (sub == nil || sub.New == nil) {
		if _, err := c.Coerce(obj, false); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if q.View.Served == nil || sub != nil && sub.New != nil {
		return wire.Bare(obj), nil
	}
	hub, err := wire.Of(q.View).ToHub(obj)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return hub, nil
}

func (l *local) Get(ctx context.Context, ref client.Ref, opts metav1.GetOptions) (client.Object, error) {
	q, err := l.request(ctx, ref, "get")
	if err != nil {
		return nil, err
	}
	item, err := l.registry.Get(ctx, q, opts)
	if err != nil {
		return nil, err
	}
	return q.object(item)
}

func (l *local) List(ctx context.Context, ref client.Ref, opts metav1.ListOptions) (*client.List, error) {
	q, err := l.selection(ctx, ref, "list", &opts)
	if err != nil {
		return nil, err
	}
	found, err := l.registry.List(ctx, q, opts)
	if err != nil {
		return nil, err
	}
	list := &client.List{
		Items:           make([]client.Object, len(found.Items)),
		ResourceVersion: strconv.FormatInt(found.Revision, 10), Continue: found.Continue, RemainingItemCount: found.Remaining,
	}
	for i, item := range found.Items {
		if list.Items[i], err = q.object(item); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func (l *local) Watch(ctx context.Context, ref client.Ref, opts metav1.ListOptions) (client.Watch, error) {
	q, err := l.selection(ctx, ref, "watch", &opts)
	if err != nil {
		return nil, err
	}
	w, err := l.registry.Watch(ctx, q, opts)
	if err != nil {
		return nil, err
	}
	return &localWatch{source: w, q: q}, nil
}

type localWatch struct {
	source *Watch
	q      *Request
	batch  []client.Event
}

func (w *localWatch) Next(ctx context.Context) ([]client.Event, error) {
	events, err := w.source.Next(ctx)
	if err != nil {
		return nil, err
	}
	w.batch = w.batch[:0]
	for _, e := range events {
		obj, err := w.q.object(e.Item)
		if err != nil {
			return nil, err
		}
		w.batch = append(w.batch, client.Event{Type: e.Type, Object: obj})
	}
	return w.batch, nil
}

func (w *localWatch) Stop() { w.source.Stop() }

func (l *local) Create(ctx context.Context, ref client.Ref, obj client.Object, opts metav1.CreateOptions) (client.Object, error) {
	q, err := l.request(ctx, ref, "create")
	if err != nil {
		return nil, err
	}
	if obj, err = q.hub(obj); err != nil {
		return nil, err
	}
	item, err := l.registry.Create(ctx, q, obj, opts)
	if err != nil {
		return nil, err
	}
	return q.object(item)
}

func (l *local) Update(ctx context.Context, ref client.Ref, obj client.Object, opts metav1.UpdateOptions) (client.Object, error) {
	q, err := l.request(ctx, ref, "update")
	if err != nil {
		return nil, err
	}
	if obj, err = q.hub(obj); err != nil {
		return nil, err
	}
	item, _, err := l.registry.Update(ctx, q, obj, opts)
	if err != nil {
		return nil, err
	}
	return q.object(item)
}

func (l *local) Patch(ctx context.Context, ref client.Ref, pt types.PatchType, data []byte, opts metav1.PatchOptions) (client.Object, error) {
	q, err := l.request(ctx, ref, "patch")
	if err != nil {
		return nil, err
	}
	item, _, err := l.registry.Patch(ctx, q, pt, data, opts)
	if err != nil {
		return nil, err
	}
	return q.object(item)
}

func (l *local) Delete(ctx context.Context, ref client.Ref, opts metav1.DeleteOptions) (client.Object, error) {
	q, err := l.request(ctx, ref, "delete")
	if err != nil {
		return nil, err
	}
	item, _, err := l.registry.Delete(ctx, q, opts)
	if err != nil {
		return nil, err
	}
	return q.object(item)
}

func (l *local) DeleteCollection(ctx context.Context, ref client.Ref, opts metav1.DeleteOptions, list metav1.ListOptions) error {
	q, err := l.request(ctx, ref, "deletecollection")
	if err != nil {
		return err
	}
	_, err = l.registry.DeleteCollection(ctx, q, opts, list)
	return err
}
