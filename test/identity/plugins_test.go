package identity

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	authorizationv1beta1 "k8s.io/api/authorization/v1beta1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/auth/authtest"
)

// kubectl runs a program of the user's that logs in at an issuer, and the server
// takes the token that it brings.
func TestKubectlLogsInWithACredentialPlugin(t *testing.T) {
	t.Parallel()
	issuer := authtest.NewIssuer(t)
	s := start(t, "--authentication-config", file(t, "authn.yaml", authentication+"jwt:\n"+jwtEntry(issuer, "corp:")))
	calls := file(t, "calls", "")
	token := file(t, "token", issuer.Token(t, claims(2)))
	plugin := file(t, "login", fmt.Sprintf("#!/bin/sh\necho \"$KUBERNETES_EXEC_INFO\" >> %s\n"+
		`printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%%s"}}' "$(cat %s)"`+"\n", calls, token))
	if err := os.Chmod(plugin, 0o700); err != nil {
		t.Fatal(err)
	}
	kubeconfig := file(t, "kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:%d", insecure-skip-tls-verify: true}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
users:
- name: u
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: %q, interactiveMode: Never, provideClusterInfo: true}
`, s.port, plugin))
	whoami := func() (string, error) {
		out, err := exec.CommandContext(t.Context(), binary, "kubectl", "--kubeconfig", kubeconfig, "auth", "whoami", "-o", "json").CombinedOutput()
		return string(out), err
	}
	eventually(t, func() error { // the server reads the issuer's keys first
		out, err := whoami()
		if err != nil || !strings.Contains(out, `"username": "corp:jane"`) || !strings.Contains(out, `"corp:dev"`) {
			return fmt.Errorf("kubectl says %s, %w", out, err)
		}
		return nil
	})
	if info, err := os.ReadFile(calls); err != nil || !strings.Contains(string(info), `"kind":"ExecCredential"`) || !strings.Contains(string(info), fmt.Sprint(s.port)) {
		t.Errorf("the plugin is told %s, %v", info, err)
	}
	replace(t, token, issuer.Token(t, claims(1))) // too low
	if out, err := whoami(); err == nil || !strings.Contains(out, "must be logged in") {
		t.Errorf("with a token that is refused kubectl says %s, %v", out, err)
	}
}

// An authorization webhook may speak v1beta1, by flag or by file.
func TestAuthorizationWebhookOfV1beta1(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	asked := map[string]authorizationv1beta1.SubjectAccessReview{}
	hook := authtest.Webhook(t, func(w http.ResponseWriter, r *http.Request) {
		var review authorizationv1beta1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		mu.Lock()
		if review.Spec.User == "jane" && review.Spec.ResourceAttributes != nil {
			asked[review.Spec.ResourceAttributes.Resource] = review
		}
		mu.Unlock()
		if a := review.Spec.ResourceAttributes; a != nil {
			review.Status.Allowed, review.Status.Denied = a.Resource == "configmaps", a.Resource == "secrets"
		}
		review.Status.Reason, review.Status.EvaluationError = "so it is", "a key was missing"
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(review)
	})
	inFile := strings.NewReplacer("subjectAccessReviewVersion: v1", "subjectAccessReviewVersion: v1beta1", "failurePolicy: Deny", "failurePolicy: Deny").Replace(hookEntry(hook, ""))
	for name, flags := range map[string][]string{
		"by flag": {"--authorization-mode=Node,RBAC,Webhook", "--authorization-webhook-config-file", hook, "--authorization-webhook-version=v1beta1"},
		"by file": {"--authorization-config", file(t, "authz.yaml", authorization+nodeAndRBAC+inFile)},
	} {
		t.Run(name, func(t *testing.T) {
			clear(asked)
			s := start(t, append(flags, "--token-auth-file", file(t, "tokens.csv", "t,jane,1,\"devs\"\n"))...)
			core := s.bearer(t, "t").CoreV1()
			if _, err := core.ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); err != nil {
				t.Errorf("what it allows: %v", err)
			}
			if _, err := core.Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "so it is") {
				t.Errorf("what it denies: %v", err)
			}
			if _, err := core.Pods("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("what it has no opinion on: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, resource := range []string{"configmaps", "secrets", "pods"} {
				if q := asked[resource]; q.APIVersion != "authorization.k8s.io/v1beta1" || q.Kind != "SubjectAccessReview" || len(q.Spec.Groups) == 0 || q.Spec.Groups[0] != "devs" || q.Spec.ResourceAttributes.Verb != "list" {
					t.Errorf("of %s it was asked %+v", resource, q)
				}
			}
		})
	}
}

// A policy asks the authorizers with selectors, which they are shown parsed.
func TestPoliciesAskWithSelectors(t *testing.T) {
	t.Parallel()
	warden := authtest.NewReviewer(t, func(q authorizationv1.SubjectAccessReviewSpec) (s authorizationv1.SubjectAccessReviewStatus) {
		a := q.ResourceAttributes
		if a.Resource != "pods" || a.FieldSelector == nil || a.LabelSelector == nil {
			return s
		}
		f, l := a.FieldSelector.Requirements, a.LabelSelector.Requirements
		s.Allowed = len(f) == 1 && f[0].Key == "spec.nodeName" && f[0].Operator == "In" && len(f[0].Values) == 1 && f[0].Values[0] == "n1" &&
			len(l) == 1 && l[0].Key == "app" && l[0].Operator == "In" && len(l[0].Values) == 2
		return s
	})
	s := start(t, "--authorization-config", file(t, "authz.yaml", authorization+hookEntry(warden.Kubeconfig, "")+nodeAndRBAC),
		"--token-auth-file", file(t, "tokens.csv", "t,jane,1\n"))
	s.allow(t, "jane", rbacv1.PolicyRule{Verbs: []string{"create"}, APIGroups: []string{""}, Resources: []string{"configmaps"}})
	registration := s.admin(t).AdmissionregistrationV1()
	if _, err := registration.ValidatingAdmissionPolicies().Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "selectors"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
				Operations: []admissionregistrationv1.OperationType{"CREATE"},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}}}},
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "asks", Expression: "has(object.data)"}},
			Validations: []admissionregistrationv1.Validation{{
				Expression: "authorizer.group('').resource('pods').namespace('default').fieldSelector(object.data.fields).labelSelector(object.data.labels).check('list').allowed()",
				Message:    "may not list those pods",
			}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := registration.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "selectors"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "selectors", ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	create := func(fields, labels string) error {
		_, err := s.bearer(t, "t").CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "c"}, Data: map[string]string{"fields": fields, "labels": labels},
		}, metav1.CreateOptions{})
		return err
	}
	refused := func(err error) bool { return err != nil && strings.Contains(err.Error(), "may not list those pods") }
	eventually(t, func() error {
		if err := create("spec.nodeName=n2", "app in (a, b)"); !refused(err) {
			return fmt.Errorf("the policy is not in force: %w", err)
		}
		return nil
	})
	if err := create("spec.nodeName=n1", "app in (a, b)"); err != nil {
		t.Errorf("the pods that the warden allows: %v", err)
	}
	for fields, labels := range map[string]string{"spec.nodeName=n1": "app", "": "app in (a, b)", "spec.nodeName": "app in (a, b)", "metadata.name=n1": "app in (a, b)"} {
		if err := create(fields, labels); !refused(err) {
			t.Errorf("fields %q, labels %q: %v", fields, labels, err)
		}
	}
}
