package admission

import (
	"context"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"proa/internal/store"
)

// NamespaceExists refuses whatever lies in a namespace that does not exist, deletes
// included. Off unless enabled.
type NamespaceExists struct{ Store *store.Store }

func (NamespaceExists) Name() string { return "NamespaceExists" }

func (p NamespaceExists) Validate(_ context.Context, a *Attributes) error {
	if a.Namespace == "" || a.of(namespaces) || a.Operation == admissionv1.Connect {
		return nil
	}
	_, err := find[*corev1.Namespace](p.Store.Snapshot(), namespaces, "", a.Namespace)
	return err
}

// NamespaceAutoProvision makes the namespace of a new object where it does not
// exist. Off unless enabled.
type NamespaceAutoProvision struct {
	Store *store.Store
	Make  func(ctx context.Context, name string) error
}

func (NamespaceAutoProvision) Name() string { return "NamespaceAutoProvision" }

func (p NamespaceAutoProvision) Admit(ctx context.Context, a *Attributes) error {
	if a.Operation != admissionv1.Create || a.DryRun || a.Namespace == "" || a.of(namespaces) {
		return nil
	}
	_, err := find[*corev1.Namespace](p.Store.Snapshot(), namespaces, "", a.Namespace)
	if err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return a.forbidden(err)
	}
	if err := p.Make(ctx, a.Namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return a.forbidden(err)
	}
	return nil
}
