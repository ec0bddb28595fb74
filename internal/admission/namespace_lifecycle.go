package admission

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/store"
)

// NamespaceLifecycle keeps objects out of namespaces that do not exist or are
// going away, and the namespaces of the system from being deleted.
type NamespaceLifecycle struct{ Store *store.Store }

func (NamespaceLifecycle) Name() string { return "NamespaceLifecycle" }

var localReviews = schema.GroupResource{Group: authorizationv1.GroupName, Resource: "localsubjectaccessreviews"}

func (p NamespaceLifecycle) Admit(_ context.Context, a *Attributes) error {
	if a.of(namespaces) {
		if a.Operation == admissionv1.Delete && immortal(a.Name) {
			return apierrors.NewForbidden(namespaces, a.Name, fmt.Errorf("this namespace may not be deleted"))
		}
		return nil
	}
	// whether a namespace exists is not told to those who only ask what they may do
	if a.Namespace == "" || a.Operation == admissionv1.Delete || a.of(localReviews) {
		return nil
	}
	return p.check(p.Store.Snapshot(), a)
}

// Commit looks again when the object is written, so that no object slips into a
// namespace whose deletion has begun meanwhile.
func (p NamespaceLifecycle) Commit(tx *store.Tx, a *Attributes) error {
	if a.Operation != admissionv1.Create || a.Namespace == "" || a.of(namespaces) {
		return nil
	}
	err := p.check(tx, a)
	if apierrors.IsNotFound(err) && p.check(p.Store.Snapshot(), a) == nil {
		return nil // it was made meanwhile: the transaction runs again
	}
	return err
}

func (NamespaceLifecycle) check(r reader, a *Attributes) error {
	ns, err := find[*corev1.Namespace](r, namespaces, "", a.Namespace)
	if err != nil {
		return err
	}
	if a.Operation != admissionv1.Create || ns.DeletionTimestamp == nil && ns.Status.Phase != corev1.NamespaceTerminating {
		return nil
	}
	refused := a.forbidden(fmt.Errorf("unable to create new content in namespace %s because it is being terminated", a.Namespace))
	refused.ErrStatus.Details.Causes = append(refused.ErrStatus.Details.Causes, metav1.StatusCause{
		Type:    corev1.NamespaceTerminatingCause,
		Message: fmt.Sprintf("namespace %s is being terminated", a.Namespace),
		Field:   "metadata.namespace",
	})
	return refused
}

func immortal(name string) bool {
	return name == metav1.NamespaceDefault || name == metav1.NamespaceSystem || name == metav1.NamespacePublic
}
