package core

import (
	corev1 "k8s.io/api/core/v1"

	"proa/internal/apis"
)

// Bindings is the core/v1 bindings resource: create only, never stored. It and
// pods/binding put a pod on a node.
var Bindings = apis.Resource{
	Version: "v1", Kind: "Binding", Plural: "bindings",
	New:   apis.New[corev1.Binding],
	Verbs: []string{"create"},
}
