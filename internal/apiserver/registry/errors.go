package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"proa/internal/store"
)

// optimisticLock is what a writer is told whose object changed under it.
const optimisticLock = "the object has been modified; please apply your changes to the latest version and try again"

// status turns what a store transaction or a plugin returned into the error a
// client gets. StatusErrors and the context's errors pass through.
func status(err error, gr schema.GroupResource, name string) error {
	var api apierrors.APIStatus
	var unreadable *store.Unreadable
	switch {
	case err == nil, errors.As(err, &api), errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	case errors.As(err, &unreadable):
		return apierrors.NewInternalError(unreadable)
	case errors.Is(err, store.ErrNotFound):
		return apierrors.NewNotFound(gr, name)
	case errors.Is(err, store.ErrExists):
		return apierrors.NewAlreadyExists(gr, name)
	case errors.Is(err, store.ErrCompacted):
		return apierrors.NewResourceExpired("The resourceVersion for the provided list is too old.")
	case errors.Is(err, store.ErrBehind), errors.Is(err, store.ErrReplaced):
		return apierrors.NewTimeoutError(err.Error(), 1)
	case errors.Is(err, store.ErrClosed):
		return apierrors.NewServiceUnavailable("the server is shutting down")
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrNoSpace):
		return unknown(err.Error())
	}
	return apierrors.NewInternalError(err)
}

func invalid(kind schema.GroupKind, name string, errs field.ErrorList) error {
	return apierrors.NewInvalid(kind, name, errs[:min(len(errs), maxCauses)])
}

func invalidOptions(kind string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
}

func conflict(gr schema.GroupResource, name, format string, args ...any) error {
	return apierrors.NewConflict(gr, name, fmt.Errorf(format, args...))
}

// unknown is an error upstream gives no reason for.
func unknown(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
		Reason: metav1.StatusReasonUnknown, Message: message,
	}}
}

// tooLarge says that a resourceVersion lies in this server's future.
func tooLarge(want, current int64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", want, current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version",
	}}
	return err
}

// forbidden is the error for a request that the authorizer did not allow.
func forbidden(a authorizer.Attributes, reason string) error {
	gr := schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}
	if a.GetSubresource() != "" {
		gr.Resource += "/" + a.GetSubresource()
	}
	var who string
	if u := a.GetUser(); u != nil {
		who = u.GetName()
	}
	msg := fmt.Sprintf("User %q cannot %s resource %q in API group %q", who, a.GetVerb(), gr.Resource, a.GetAPIGroup())
	if ns := a.GetNamespace(); ns != "" {
		msg += fmt.Sprintf(" in the namespace %q", ns)
	} else {
		msg += " at the cluster scope"
	}
	if reason != "" {
		msg += ": " + reason
	}
	return apierrors.NewForbidden(gr, a.GetName(), errors.New(msg))
}

// maxCauses is how many things that are wrong with an object are told. Upstream
// tells them all, at a cost that grows with the square of their number.
const maxCauses = 100
