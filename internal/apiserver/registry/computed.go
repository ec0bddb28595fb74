package registry

import (
	"sort"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"proa/internal/apis"
	"proa/internal/store"
)

// Source answers reads of a kind that is computed when asked for, not stored.
type Source interface {
	// Get returns one object; its error is an API status.
	Get(namespace, name string) (apis.Object, error)
	// List returns the objects of one namespace, of all when it is empty.
	List(namespace string) []apis.Object
}

// Serve adds a kind that s computes to the catalogue. It is called while the
// server is put together, before the first request.
func (r *Registry) Serve(resource *apis.Resource, s Source) error {
	r.sources[resource.GroupResource()] = s
	return r.catalogue.Add(resource)
}

func (q *Request) computed(obj apis.Object) *store.Item {
	return store.NewItem(store.Key{Resource: q.resource(), Namespace: obj.GetNamespace(), Name: obj.GetName()}, obj)
}

func (r *Registry) getComputed(q *Request, s Source) (*store.Item, error) {
	obj, err := s.Get(q.namespace(), q.Name)
	if err != nil {
		return nil, err
	}
	return q.computed(obj), nil
}

// listComputed lists a computed kind in key order. What is computed has no
// revision to go on from, so a limit makes no pages.
func (r *Registry) listComputed(q *Request, s Source, sel *selector) *ItemList {
	list := &ItemList{}
	for _, obj := range s.List(sel.namespace) {
		if sel.matches(obj) {
			list.Items = append(list.Items, q.computed(obj))
		}
	}
	sort.Slice(list.Items, func(i, j int) bool {
		a, b := list.Items[i].Key, list.Items[j].Key
		return a.Namespace < b.Namespace || a.Namespace == b.Namespace && a.Name < b.Name
	})
	return list
}

// watchComputed refuses to follow what has no revisions.
func (r *Registry) watchComputed(q *Request) error {
	if r.sources[q.resource()] == nil {
		return nil
	}
	return apierrors.NewMethodNotSupported(q.resource(), "watch")
}
