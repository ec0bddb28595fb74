package registry

import (
	"errors"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
	"proa/internal/store"
)

var definitions = schema.GroupResource{Group: apiextensionsv1.GroupName, Resource: "customresourcedefinitions"}

// load returns an item's object in the version and under the schema of the
// request's view. It is shared and must not be changed.
func (q *Request) load(item *store.Item) (apis.Object, error) {
	if c := q.View.Custom; c != nil {
		return c.Load(item.Object)
	}
	return item.Object, nil
}

// stored returns what the store keeps of an object of the request's view.
func (q *Request) stored(obj apis.Object) (apis.Object, error) {
	if c := q.View.Custom; c != nil {
		return c.Store(obj)
	}
	return obj, nil
}

// outdated says that an item would be stored otherwise today, in another version
// or with other defaults: a write that changes nothing else migrates it.
func (q *Request) outdated(item *store.Item) bool {
	c := q.View.Custom
	return c != nil && !c.Stored(item.Object)
}

// defined refuses to create a custom resource whose definition goes or is gone.
// As part of the transaction it leaves no moment in which an object could outlive
// its definition.
func (q *Request) defined(tx *store.Tx) error {
	c := q.View.Custom
	if c == nil {
		return nil
	}
	item, err := tx.Get(store.Key{Resource: definitions, Name: c.Definition})
	if err != nil {
		return apierrors.NewNotFound(q.resource(), q.Name)
	}
	crd, ok := item.Object.(*apiextensionsv1.CustomResourceDefinition)
	if !ok || crd.UID != c.UID {
		return apierrors.NewNotFound(q.resource(), q.Name)
	}
	if crd.DeletionTimestamp != nil {
		return apierrors.NewForbidden(q.resource(), q.Name, errors.New("create not allowed while custom resource definition is terminating"))
	}
	return nil
}

// deleteDefinition marks a definition as terminating; it stays until all objects
// of its kind are deleted.
func (r *Registry) deleteDefinition(tx *store.Tx, existing *store.Item, crd *apiextensionsv1.CustomResourceDefinition) (*store.Item, bool, error) {
	now := r.now()
	crd.DeletionTimestamp = &now
	if !apihelpers.CRDHasFinalizer(crd, apiextensionsv1.CustomResourceCleanupFinalizer) {
		crd.Finalizers = append(crd.Finalizers, apiextensionsv1.CustomResourceCleanupFinalizer)
	}
	apihelpers.SetCRDCondition(crd, apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionTrue, LastTransitionTime: now,
		Reason: "InstanceDeletionPending", Message: "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
	})
	item, err := tx.Put(existing.Key, crd)
	return item, false, err
}
