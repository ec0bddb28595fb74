package core

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
)

// Namespaces is the core/v1 namespaces resource. Its spec.finalizers change
// through namespaces/finalize only.
var Namespaces = apis.Resource{
	Version: "v1", Kind: "Namespace", Plural: "namespaces", Short: []string{"ns"}, Scope: apis.Cluster,
	ChecksNameOnUpdate: true,
	New:                apis.New[corev1.Namespace], NewList: apis.NewList[corev1.NamespaceList],
	Verbs:        []string{"create", "delete", "get", "list", "patch", "update", "watch"},
	NoGeneration: true,
	Subresources: []apis.Subresource{
		{
			Name: "finalize", Verbs: []string{"update"},
			PrepareUpdate:  apis.OnUpdate(prepareNamespaceFinalize),
			ValidateUpdate: apis.CheckUpdate(validateNamespaceFinalize),
			Resets:         []string{"status"},
		},
		apis.Writable("status", prepareNamespaceStatus, validateNamespaceStatusUpdate),
	},
	Default: apis.On(defaultNamespace),
	PrepareCreate: apis.On(func(n *corev1.Namespace) {
		defaultNamespace(n) // the name may be known only now
		n.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
		if !slices.Contains(n.Spec.Finalizers, corev1.FinalizerKubernetes) {
			n.Spec.Finalizers = append(n.Spec.Finalizers, corev1.FinalizerKubernetes)
		}
	}),
	PrepareUpdate: apis.OnUpdate(func(n, old *corev1.Namespace) {
		n.Spec.Finalizers = old.Spec.Finalizers
		n.Status = old.Status
	}),
	Validate:     apis.Check(validateNamespace),
	ValidateName: apivalidation.ValidateNamespaceName,
	Fields: apis.Selectable(map[string]func(*corev1.Namespace) string{
		"status.phase": func(n *corev1.Namespace) string { return string(n.Status.Phase) },
		"name":         func(n *corev1.Namespace) string { return n.Name },
	}),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Status", "string", "The status of the namespace"),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(n *corev1.Namespace, now time.Time) []any {
		return []any{n.Name, string(n.Status.Phase), apis.AgeOf(n, now)}
	}),
}

// defaultNamespace labels a namespace with its own name, so that selectors can
// address it.
func defaultNamespace(n *corev1.Namespace) {
	if n.Name != "" {
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		n.Labels[corev1.LabelMetadataName] = n.Name
	}
	if n.Status.Phase == "" {
		n.Status.Phase = corev1.NamespaceActive
	}
}

func prepareNamespaceFinalize(n, old *corev1.Namespace) {
	n.Status = old.Status
}

func prepareNamespaceStatus(n, old *corev1.Namespace) { n.Spec = old.Spec }
