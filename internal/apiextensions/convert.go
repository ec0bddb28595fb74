package apiextensions

import (
	"fmt"
	"maps"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"proa/internal/apis"
	"proa/internal/store/backend"
)

// converter turns objects of one version of a definition into another. Neither
// what it gets nor what it returns is to be changed.
type converter interface {
	convert(u *unstructured.Unstructured, to *version) (*unstructured.Unstructured, error)
	// load is convert for an object as it is stored.
	load(u *unstructured.Unstructured, to *version) (*unstructured.Unstructured, error)
	// prepare converts many stored objects that load will be asked for.
	prepare(objs []apis.Object, to *version)
}

func newConverter(d *definition, services backend.Resolver) (converter, error) {
	c := d.object.Spec.Conversion
	if c == nil || c.Strategy == apiextensionsv1.NoneConverter {
		return renaming{}, nil
	}
	if c.Strategy == apiextensionsv1.WebhookConverter && c.Webhook != nil && c.Webhook.ClientConfig != nil {
		return newWebhookConverter(d, services)
	}
	return nil, fmt.Errorf("unknown conversion strategy %q for CRD %s", c.Strategy, d.object.Name)
}

// renaming is the conversion None: only apiVersion changes.
type renaming struct{}

func (renaming) convert(u *unstructured.Unstructured, to *version) (*unstructured.Unstructured, error) {
	want := to.kind.GroupVersion().String()
	if u.GetAPIVersion() == want {
		return u, nil
	}
	object := maps.Clone(u.Object)
	object["apiVersion"] = want
	return &unstructured.Unstructured{Object: object}, nil
}

func (r renaming) load(u *unstructured.Unstructured, to *version) (*unstructured.Unstructured, error) {
	return r.convert(u, to)
}

func (renaming) prepare([]apis.Object, *version) {}

// convert implements apis.Custom.Convert.
func (d *definition) convert(obj apis.Object, to string) (apis.Object, error) {
	target := d.versions[to]
	if target == nil {
		// Not a NotRegisteredError: whoever owns fields in a version that is gone makes an apply fail, as upstream's.
		return nil, fmt.Errorf("request to convert CR to an invalid group/version: %s", d.kind(to).GroupVersion())
	}
	return d.converter.convert(obj.(*unstructured.Unstructured), target)
}
