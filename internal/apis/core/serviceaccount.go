package core

import (
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
)

// ServiceAccounts is the core/v1 serviceaccounts resource.
var ServiceAccounts = apis.Resource{
	Version: "v1", Kind: "ServiceAccount", Plural: "serviceaccounts", Short: []string{"sa"},
	ChecksNameOnUpdate: true,
	New:                apis.New[corev1.ServiceAccount], NewList: apis.NewList[corev1.ServiceAccountList],
	NoGeneration: true,
	Subresources: []apis.Subresource{{
		Name: "token", Group: "authentication.k8s.io", Version: "v1", Kind: "TokenRequest",
		New: apis.New[authenticationv1.TokenRequest], Verbs: []string{"create"},
	}},
	PrepareCreate: apis.On(func(sa *corev1.ServiceAccount) { cleanSecretReferences(sa) }),
	PrepareUpdate: apis.OnUpdate(func(sa, _ *corev1.ServiceAccount) { cleanSecretReferences(sa) }),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.AgeColumn,
	},
	Row: apis.Cells(func(sa *corev1.ServiceAccount, now time.Time) []any {
		return []any{sa.Name, apis.AgeOf(sa, now)}
	}),
}

// cleanSecretReferences keeps the name alone: a service account may only refer
// to secrets of its own namespace.
func cleanSecretReferences(sa *corev1.ServiceAccount) {
	for i, ref := range sa.Secrets {
		sa.Secrets[i] = corev1.ObjectReference{Name: ref.Name}
	}
}
