package identity

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/auth/authtest"
)

const authorization = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n"

func hookEntry(kubeconfig, more string) string {
	return fmt.Sprintf(`- type: Webhook
  name: warden
  webhook:
    timeout: 3s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: Deny
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %q}
    matchConditions:
    - expression: "has(request.resourceAttributes)"
    - expression: "!('system:serviceaccounts:kube-system' in request.groups) && !request.user.startsWith('system:')"
%s`, kubeconfig, more)
}

const nodeAndRBAC = "- {type: Node, name: node}\n- {type: RBAC, name: rbac}\n"

// A webhook before Node and RBAC, for some users only; the chain is edited while
// the server runs.
func TestAuthorizationConfiguration(t *testing.T) {
	t.Parallel()
	warden := authtest.NewReviewer(t, func(s authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
		return authorizationv1.SubjectAccessReviewStatus{Denied: s.ResourceAttributes.Resource == "secrets", Reason: "the warden says no"}
	})
	config := file(t, "authz.yaml", authorization+hookEntry(warden.Kubeconfig, "")+nodeAndRBAC)
	s := start(t, "--authorization-config", config, "--token-auth-file", file(t, "tokens.csv", "t,jane,1,\"devs\"\n"))
	ctx := t.Context()
	if _, err := s.admin(t).RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "devs"},
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "Group", Name: "devs"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	jane := s.bearer(t, "t")
	if _, err := jane.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{LabelSelector: "app=a", FieldSelector: "metadata.name=x"}); err != nil {
		t.Errorf("what the warden has no opinion on: %v", err)
	}
	asked := warden.Asked()
	if len(asked) == 0 || asked[len(asked)-1].User != "jane" {
		t.Fatalf("the warden was asked %+v", asked)
	}
	a := asked[len(asked)-1].ResourceAttributes
	if a.FieldSelector == nil || len(a.FieldSelector.Requirements) != 1 || a.LabelSelector == nil || len(a.LabelSelector.Requirements) != 1 {
		t.Errorf("selectors as the warden sees them: %+v", a)
	}
	secrets := func() error {
		_, err := jane.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{})
		return err
	}
	if err := secrets(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "the warden says no") {
		t.Errorf("what the warden denies: %v", err)
	}
	review, err := s.admin(t).AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: "jane", Groups: []string{"devs"}, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: "secrets", Namespace: "default", Version: "v1"}},
	}, metav1.CreateOptions{})
	if err != nil || review.Status.Allowed || !review.Status.Denied {
		t.Errorf("SubjectAccessReview: %+v, %v", review.Status, err)
	}
	for _, q := range asked {
		if strings.HasPrefix(q.User, "system:") {
			t.Errorf("the warden was asked about %s, whom a condition leaves out", q.User)
		}
	}

	replace(t, config, authorization+"- {type: Node, name: node}\n") // RBAC cannot go
	eventually(t, func() error {
		if lines := s.metrics(t, "apiserver_authorization_config_controller_automatic_reloads_total"); !strings.Contains(lines, `status="failure"`) {
			return fmt.Errorf("no failed reload is counted: %s", lines)
		}
		return nil
	})
	if err := secrets(); !apierrors.IsForbidden(err) {
		t.Errorf("after a bad file: %v", err)
	}
	replace(t, config, authorization+nodeAndRBAC+hookEntry(warden.Kubeconfig, ""))
	eventually(t, secrets)
	for _, name := range []string{
		`apiserver_authorization_decisions_total{decision="denied",name="warden",type="Webhook"}`,
		`apiserver_authorization_decisions_total{decision="allowed",name="rbac",type="RBAC"}`,
		`apiserver_authorization_webhook_evaluations_total{name="warden",result="success"}`,
		`apiserver_authorization_match_condition_exclusions_total{`,
		`apiserver_authorization_config_controller_last_config_info{`,
	} {
		if s.metrics(t, name) == "" {
			t.Errorf("no metric %s", name)
		}
	}
}

// A webhook that cannot be asked denies, or has no opinion, as its policy says.
func TestAuthorizationWebhookDown(t *testing.T) {
	t.Parallel()
	broken := authtest.Webhook(t, http.NotFound)
	for policy, want := range map[string]bool{"Deny": false, "NoOpinion": true} {
		t.Run(policy, func(t *testing.T) {
			entry := strings.Replace(hookEntry(broken, ""), "failurePolicy: Deny", "failurePolicy: "+policy, 1)
			s := start(t, "--authorization-config", file(t, "authz.yaml", authorization+entry+nodeAndRBAC+"- {type: AlwaysAllow, name: alwaysallow}\n"),
				"--token-auth-file", file(t, "tokens.csv", "t,jane,1\n"))
			_, err := s.bearer(t, "t").CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
			if (err == nil) != want || err != nil && !apierrors.IsForbidden(err) {
				t.Errorf("err is %v", err)
			}
			if fail := s.metrics(t, "apiserver_authorization_webhook_evaluations_fail_open_total"); (fail != "") != want {
				t.Errorf("fail open: %q", fail)
			}
		})
	}
}

// Roles may grant a list of what a selector picks: the Node authorizer does so
// for pods, and reviews answer the same.
func TestAuthorizationWithSelectors(t *testing.T) {
	t.Parallel()
	s := start(t, "--token-auth-file", file(t, "tokens.csv", "n,system:node:n1,1,\"system:nodes\"\n"))
	node, ctx := s.bearer(t, "n"), t.Context()
	if _, err := node.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("all pods: %v, want 403", err)
	}
	if _, err := node.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=n2"}); !apierrors.IsForbidden(err) {
		t.Errorf("another node's pods: %v, want 403", err)
	}
	if _, err := node.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=n1"}); err != nil {
		t.Errorf("its own pods: %v", err)
	}
	ask := func(f *authorizationv1.FieldSelectorAttributes) (authorizationv1.SubjectAccessReviewStatus, error) {
		r, err := s.admin(t).AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:node:n1", Groups: []string{"system:nodes"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: "pods", Version: "v1", FieldSelector: f},
		}}, metav1.CreateOptions{})
		return r.Status, err
	}
	own := []metav1.FieldSelectorRequirement{{Key: "spec.nodeName", Operator: "In", Values: []string{"n1"}}}
	tests := []struct {
		name     string
		selector *authorizationv1.FieldSelectorAttributes
		want     bool
	}{
		{"none", nil, false},
		{"its own, raw", &authorizationv1.FieldSelectorAttributes{RawSelector: "spec.nodeName=n1"}, true},
		{"its own, parsed", &authorizationv1.FieldSelectorAttributes{Requirements: own}, true},
		{"another's", &authorizationv1.FieldSelectorAttributes{RawSelector: "spec.nodeName=n2"}, false},
		{"one that cannot be parsed", &authorizationv1.FieldSelectorAttributes{RawSelector: "spec.nodeName"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := ask(tt.selector); err != nil || got.Allowed != tt.want {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	if _, err := ask(&authorizationv1.FieldSelectorAttributes{RawSelector: "a=b", Requirements: own}); !apierrors.IsInvalid(err) {
		t.Errorf("both forms at once: %v", err)
	}
}
