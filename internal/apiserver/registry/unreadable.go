package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"proa/internal/apis"
	"proa/internal/store"
)

// unsafeDelete is the verb of who may remove objects that cannot be read.
const unsafeDelete = "unsafe-delete-ignore-read-errors"

func unreadable(err error) bool {
	var u *store.Unreadable
	return errors.As(err, &u)
}

// collect reads a page. It fails when there is anything on it that cannot be read,
// selected or not: who lists must not take it for absent.
func (r *Registry) collect(p *page, q *Request, sel *selector) (*ItemList, error) {
	lost := p.unreadable(q, sel)
	if len(lost) > 0 && !p.through && p.snapshot.Revision() == r.store.Revision() && r.store.Reread(q.resource()) {
		p.snapshot = r.store.Snapshot()
		lost = p.unreadable(q, sel)
	}
	list := p.collect(q, sel)
	if list.Continue != "" {
		last := list.Items[len(list.Items)-1].Key
		for i, u := range lost {
			if u.Key.Namespace > last.Namespace || u.Key.Namespace == last.Namespace && u.Key.Name > last.Name {
				lost = lost[:i]
				break
			}
		}
	}
	if len(lost) > 0 {
		return nil, storeReadError(q.resource(), lost)
	}
	return list, nil
}

func (p *page) unreadable(q *Request, sel *selector) []*store.Unreadable {
	lost := p.snapshot.Unreadable(q.resource(), sel.namespace, p.after)
	if sel.name == "" || sel.namespace == "" && q.View.Scope != apis.Cluster {
		return lost
	}
	for _, u := range lost {
		if u.Key.Name == sel.name {
			return []*store.Unreadable{u}
		}
	}
	return nil
}

// storeReadError names what could not be read, up to a hundred objects (KEP-3926).
func storeReadError(gr schema.GroupResource, lost []*store.Unreadable) error {
	const named = 100
	tooMany := len(lost) >= named
	lost = lost[:min(len(lost), named)]
	causes := make([]metav1.StatusCause, 0, len(lost)+1)
	for _, u := range lost {
		causes = append(causes, metav1.StatusCause{
			Type: metav1.CauseTypeUnexpectedServerResponse, Field: u.Place, Message: u.Error(),
		})
	}
	if tooMany {
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseTypeTooMany, Message: "too many errors, the list is truncated"})
	}
	message := fmt.Sprintf("failed to read one or more %s from the storage: %v", gr, lost[0])
	if len(lost) > 1 {
		message = fmt.Sprintf("%s (and %d more)", message, len(lost)-1)
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
		Reason: metav1.StatusReasonStoreReadError, Message: message,
		Details: &metav1.StatusDetails{Group: gr.Group, Kind: gr.Resource, Name: "list", Causes: causes},
	}}
}

// deleteUnreadable removes an object that cannot be read, whatever its finalizers
// and admission would say: nobody can know.
func (r *Registry) deleteUnreadable(ctx context.Context, q *Request, dryRun bool) error {
	if err := r.mayDeleteUnreadable(ctx, q); err != nil {
		return err
	}
	r.store.Reread(q.resource())
	item := store.NewItem(q.key(), nil)
	err := r.write(ctx, "Delete etcd3", dryRun, func(tx *store.Tx) error { return tx.DeleteUnreadable(q.key()) }, &item)
	if errors.Is(err, store.ErrReadable) {
		return conflict(q.resource(), q.Name, "StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, "+
			"AdditionalErrorMsg: unsafe deletion is not allowed because the object is decodable from storage", r.store.Place(q.key()))
	}
	return status(err, q.resource(), q.Name)
}

func (r *Registry) mayDeleteUnreadable(ctx context.Context, q *Request) error {
	if r.authorizer == nil {
		return nil
	}
	refused := func(format string, args ...any) error {
		return apierrors.NewForbidden(q.resource(), q.Name, fmt.Errorf(format, args...))
	}
	if q.Subresource != "" {
		return refused("ignoreStoreReadErrorWithClusterBreakingPotential delete option is not allowed on a subresource or non-resource request")
	}
	decision, reason, err := r.authorizer.Authorize(ctx, authorization(q, unsafeDelete, q.Name))
	switch {
	case err != nil:
		return refused("error while checking permission for %q, %w", unsafeDelete, err)
	case decision != authorizer.DecisionAllow:
		return refused("not permitted to do %q, reason: %s", unsafeDelete, reason)
	}
	return nil
}
