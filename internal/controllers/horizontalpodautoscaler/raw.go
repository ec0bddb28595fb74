package horizontalpodautoscaler

import (
	"context"
	"net/url"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Raw reads a path of the API, as JSON; its errors are *apierrors.StatusError.
// The groups of custom and external metrics have a resource per metric, so there
// are no kinds for a typed client to know.
type Raw func(ctx context.Context, path string, query url.Values) ([]byte, error)

// NewRaw returns a Raw that reads over HTTP.
func NewRaw(access *rest.Config) (Raw, error) {
	access = rest.CopyConfig(access)
	access.GroupVersion, access.NegotiatedSerializer = &schema.GroupVersion{}, scheme.Codecs.WithoutConversion()
	c, err := rest.UnversionedRESTClientFor(access)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, path string, query url.Values) ([]byte, error) {
		if len(query) > 0 {
			path += "?" + query.Encode()
		}
		return c.Get().RequestURI(path).DoRaw(ctx)
	}, nil
}
