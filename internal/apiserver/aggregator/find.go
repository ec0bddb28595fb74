package aggregator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
)

// collector is whom other servers see when the garbage collector looks for an owner.
var collector = &user.DefaultInfo{
	Name:   serviceaccount.MakeUsername(metav1.NamespaceSystem, "generic-garbage-collector"),
	Groups: append(serviceaccount.MakeGroupNames(metav1.NamespaceSystem), user.AllAuthenticated),
}

var errNotServed = errors.New("no server describes the kind")

// maxObject is how many bytes an object may have.
const maxObject = 8 << 20

// Find reads the metadata of an object that another server keeps, on behalf of the
// garbage collector. It is nil when that server says that there is none; an error
// says nothing about the object.
func (a *Aggregator) Find(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (*metav1.ObjectMeta, bool, error) {
	resource, namespaced, err := a.resourceOf(kind)
	if err != nil {
		return nil, false, err
	}
	b := a.Backend(kind.GroupVersion())
	if b == nil || !b.available {
		return nil, namespaced, fmt.Errorf("%s: service unavailable", kind.GroupVersion())
	}
	path := b.root()
	if namespaced {
		path += "/namespaces/" + url.PathEscape(namespace)
	}
	r, err := a.ask(ctx, http.MethodGet, b, collector, path+"/"+resource+"/"+url.PathEscape(name), http.Header{"Accept": {"application/json"}}, maxObject)
	if err != nil {
		return nil, namespaced, err
	}
	if r.code != http.StatusOK {
		return nil, namespaced, goneOr(r)
	}
	var obj metav1.PartialObjectMetadata
	if err := json.Unmarshal(r.body, &obj); err != nil {
		return nil, namespaced, fmt.Errorf("get %s %s: %w", resource, name, err)
	}
	if obj.UID == "" {
		return nil, namespaced, fmt.Errorf("get %s %s: no object in the answer", resource, name)
	}
	return &obj.ObjectMeta, namespaced, nil
}

// goneOr is nil when an answer is a Status that the object was not found: a path
// that a server does not know is not found either.
func goneOr(r *reply) error {
	var s metav1.Status
	if json.Unmarshal(r.body, &s) == nil && s.Kind == "Status" && r.code == http.StatusNotFound && s.Details != nil && s.Details.Name != "" &&
		apierrors.IsNotFound(&apierrors.StatusError{ErrStatus: s}) {
		return nil
	}
	return fmt.Errorf("http status %d", r.code)
}

// resourceOf finds a kind in what its server has described.
func (a *Aggregator) resourceOf(kind schema.GroupVersionKind) (resource string, namespaced bool, err error) {
	remotes := a.Discovery()
	if remotes == nil {
		return "", false, errNotServed
	}
	for _, r := range remotes.List {
		if r.GroupVersion != kind.GroupVersion() || r.Document == nil {
			continue
		}
		for _, res := range r.Document.Resources {
			if res.ResponseKind != nil && res.ResponseKind.Kind == kind.Kind {
				return res.Resource, res.Scope == apidiscovery.ScopeNamespace, nil
			}
		}
	}
	return "", false, errNotServed
}
