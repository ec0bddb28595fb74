package aggregator

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"proa/internal/apis"
	"proa/internal/client"
)

// Everywhere is the API as u sees it, whoever serves it: what concerns a group version
// of another server goes there, everything else to local. Objects of other servers
// are read as their metadata alone. A server that does not stream lists is asked for
// pages; that a path is unknown to it does not mean that an object is gone.
func (a *Aggregator) Everywhere(local client.API, u user.Info) (client.API, error) {
	remote, err := client.NewHTTP(&rest.Config{
		Host: "https://extension-servers", Transport: &carrier{a, u},
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON, AcceptContentTypes: runtime.ContentTypeJSON},
	}, apis.NewCatalogue())
	if err != nil {
		return nil, err
	}
	return &everywhere{aggregator: a, local: local, remote: remote}, nil
}

type everywhere struct {
	aggregator    *Aggregator
	local, remote client.API
}

// callTime is for one request that is not a watch.
const callTime = time.Minute

// at returns the API that serves what ref names, with the context of a request there.
func (e *everywhere) at(ctx context.Context, ref client.Ref) (client.API, context.Context, context.CancelFunc) {
	if e.aggregator.Backend(ref.Resource.GroupVersion()) == nil {
		return e.local, ctx, func() {}
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	return e.remote, ctx, cancel
}

func (e *everywhere) Get(ctx context.Context, ref client.Ref, opts metav1.GetOptions) (client.Object, error) {
	api, ctx, cancel := e.at(ctx, ref)
	defer cancel()
	obj, err := api.Get(in(ctx, "PartialObjectMetadata", false), ref, opts)
	if api == e.remote && apierrors.IsNotFound(err) && !tellsOfObject(err) {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("get %s %s: %v", ref.Resource.GroupResource(), ref.Name, err))
	}
	return obj, err
}

// tellsOfObject reports whether a server has said that an object was not found, and
// not that it does not know the path.
func tellsOfObject(err error) bool {
	s, ok := err.(apierrors.APIStatus)
	if !ok || s.Status().Details == nil || s.Status().Details.Name == "" {
		return false
	}
	for _, cause := range s.Status().Details.Causes {
		if cause.Type == metav1.CauseTypeUnexpectedServerResponse {
			return false
		}
	}
	return true
}

func (e *everywhere) List(ctx context.Context, ref client.Ref, opts metav1.ListOptions) (*client.List, error) {
	api, ctx, cancel := e.at(ctx, ref)
	defer cancel()
	return api.List(in(ctx, "PartialObjectMetadataList", false), ref, opts)
}

func (e *everywhere) Watch(ctx context.Context, ref client.Ref, opts metav1.ListOptions) (client.Watch, error) {
	if e.aggregator.Backend(ref.Resource.GroupVersion()) == nil {
		return e.local.Watch(ctx, ref, opts)
	}
	if opts.SendInitialEvents != nil {
		// An old server would ignore it, and never say where the state ends.
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", nil)
	}
	return e.remote.Watch(in(ctx, "PartialObjectMetadata", true), ref, opts)
}

func (e *everywhere) Create(ctx context.Context, ref client.Ref, obj client.Object, opts metav1.CreateOptions) (client.Object, error) {
	api, ctx, cancel := e.at(ctx, ref)
	defer cancel()
	return api.Create(ctx, ref, obj, opts)
}

func (e *everywhere) Update(ctx context.Context, ref client.Ref, obj client.Object, opts metav1.UpdateOptions) (client.Object, error) {
	api, ctx, cancel := e.at(ctx, ref)
	defer cancel()
	return api.Update(ctx, ref, obj, opts)
}

func (e *everywhere) Patch(ctx context.Context, ref client.Ref, pt types.PatchType, data []byte, opts metav1.PatchOptions) (client.Object, error) {
	api, ctx, cancel := e.at(ctx, ref)
	defer cancel()
	return api.Patch(in(ctx, "PartialObjectMetadata", false), ref, pt, data, opts)
}

func (e *everywhere) Delete(ctx context.Context, ref client.Ref, opts metav1.DeleteOptions) (client.Object, error) {
	api, ctx, cancel := e.at(ctx, ref)
	defer cancel()
	return api.Delete(ctx, ref, opts)
}

func (e *everywhere) DeleteCollection(ctx context.Context, ref client.Ref, opts metav1.DeleteOptions, list metav1.ListOptions) error {
	api, ctx, cancel := e.at(ctx, ref)
	defer cancel()
	return api.DeleteCollection(ctx, ref, opts, list)
}

// formKey is the context's key for the form that an answer is asked for in.
type formKey struct{}

type wantedForm struct {
	accept  string
	endless bool // a watch
}

func in(ctx context.Context, kind string, endless bool) context.Context {
	accept := "application/json;as=" + kind + ";g=meta.k8s.io;v=v1,application/json"
	return context.WithValue(ctx, formKey{}, wantedForm{accept, endless})
}

// carrier sends requests to the server of their group version, as one user.
type carrier struct {
	aggregator *Aggregator
	user       user.Info
}

// maxAnswer is how many bytes an answer may have that is not a watch.
const maxAnswer = 64 << 20

// RoundTrip implements http.RoundTripper.
func (c *carrier) RoundTrip(r *http.Request) (*http.Response, error) {
	gv := versionOf(r.URL.Path)
	b := c.aggregator.Backend(gv)
	if b == nil || !b.available {
		return nil, fmt.Errorf("%s: service unavailable", gv)
	}
	if b.broken != nil {
		return nil, b.broken
	}
	host, err := c.aggregator.services.Pick(b.spec.Service.Namespace, b.spec.Service.Name, b.port())
	if err != nil {
		return nil, err
	}
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host, out.Host = "https", host, host
	want, _ := r.Context().Value(formKey{}).(wantedForm)
	if want.accept != "" {
		out.Header.Set("Accept", want.accept)
	}
	transport.SetAuthProxyHeaders(out, c.user.GetName(), c.user.GetUID(), c.user.GetGroups(), c.user.GetExtra())
	resp, err := b.transport.RoundTrip(out)
	if err != nil {
		b.close()
		return nil, err
	}
	if !want.endless {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	}
	return resp, nil
}

// versionOf reads the group version of a path that this package's client has made.
func versionOf(path string) schema.GroupVersion {
	parts := strings.SplitN(strings.TrimPrefix(path, "/"), "/", 4)
	switch {
	case len(parts) > 2 && parts[0] == "apis":
		return schema.GroupVersion{Group: parts[1], Version: parts[2]}
	case len(parts) > 1 && parts[0] == "api":
		return schema.GroupVersion{Version: parts[1]}
	}
	return schema.GroupVersion{}
}
