package identity

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Policies of a file allow what the roles do not.
func TestPoliciesOfAFileAllow(t *testing.T) {
	t.Parallel()
	policies := file(t, "policies", `# who may what
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"alice","namespace":"default","resource":"configmaps","readonly":true}}
`)
	tokens := file(t, "tokens", "alice-token,alice,1\nbob-token,bob,2\n")
	s := start(t, "--authorization-mode=Node,RBAC,ABAC", "--authorization-policy-file", policies, "--token-auth-file", tokens)
	list := func(token, namespace string) error {
		_, err := s.bearer(t, token).CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
		return err
	}
	if err := list("alice-token", "default"); err != nil {
		t.Error(err)
	}
	for _, refused := range []error{
		list("alice-token", "kube-system"), list("bob-token", "default"),
		s.bearer(t, "alice-token").CoreV1().ConfigMaps("default").Delete(t.Context(), "kube-root-ca.crt", metav1.DeleteOptions{}),
	} {
		if !apierrors.IsForbidden(refused) || !strings.Contains(refused.Error(), "No policy matched.") {
			t.Error(refused)
		}
	}
}
