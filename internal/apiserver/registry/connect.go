package registry

import (
	"context"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"proa/internal/store"
)

// Connect finds the object that a streaming subresource (exec, attach,
// portforward, proxy, log) is about, once admission lets the caller through.
// Options are the subresource's, nil when it has none.
func (r *Registry) Connect(ctx context.Context, q *Request, options runtime.Object) (*store.Item, error) {
	if q.View.Subresource(q.Subresource) == nil {
		return nil, apierrors.NewNotFound(q.resource(), q.Name)
	}
	item, err := r.store.Get(q.key())
	if err != nil {
		return nil, status(err, q.resource(), q.Name)
	}
	attrs := r.attributes(q, admissionv1.Connect, nil, nil, options, false)
	if err := r.admission.Admit(ctx, attrs); err != nil {
		return nil, status(err, q.resource(), q.Name)
	}
	if err := r.admission.Validate(ctx, attrs); err != nil {
		return nil, status(err, q.resource(), q.Name)
	}
	return item, nil
}
