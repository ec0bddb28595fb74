package chain

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"

	"proa/internal/auth/authtest"
	"proa/internal/configfile"
)

const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n"

// hook is a Webhook entry; more is put into its webhook.
func hook(name, kubeconfig, policy, more string) string {
	return fmt.Sprintf(`- type: Webhook
  name: %s
  webhook:
    timeout: 3s
    subjectAccessReviewVersion: v1
    failurePolicy: %s
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %q}
%s`, name, policy, kubeconfig, more)
}

const builtin = "- {type: Node, name: node}\n- {type: RBAC, name: rbac}\n"

// verbs allows what it lists, as RBAC would.
type verbs []string

func (v verbs) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	for _, verb := range v {
		if verb == a.GetVerb() {
			return authorizer.DecisionAllow, "", nil
		}
	}
	return authorizer.DecisionNoOpinion, "not listed", nil
}

func (v verbs) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(v.Authorize(ctx, a))
}

func (v verbs) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

func load(t *testing.T, text string) (*Chain, error) {
	t.Helper()
	config, err := configfile.Decode[*apiserver.AuthorizationConfiguration]([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{Authorization: config, Data: []byte(text), Node: Unlisted{verbs{}, "unlisted"}, RBAC: Unlisted{verbs{"get", "list"}, "unlisted"}})
}

func mustLoad(t *testing.T, text string) *Chain {
	t.Helper()
	c, err := load(t, text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func ask(t *testing.T, c *Chain, who, verb, resource string) authorizer.Decision {
	t.Helper()
	d, _, _ := c.Authorize(t.Context(), authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: who, Groups: []string{user.AllAuthenticated}}, Verb: verb, Resource: resource, APIVersion: "v1", Namespace: "ns", ResourceRequest: true,
	})
	return d
}

func TestTheFirstToDecideDecides(t *testing.T) {
	reviewer := authtest.NewReviewer(t, func(s authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
		switch s.ResourceAttributes.Resource {
		case "secrets":
			return authorizationv1.SubjectAccessReviewStatus{Denied: true, Reason: "no secrets"}
		case "widgets":
			return authorizationv1.SubjectAccessReviewStatus{Allowed: true}
		case "both":
			return authorizationv1.SubjectAccessReviewStatus{Allowed: true, Denied: true}
		}
		return authorizationv1.SubjectAccessReviewStatus{}
	})
	c := mustLoad(t, head+hook("first", reviewer.Kubeconfig, "Deny", `    matchConditionSubjectAccessReviewVersion: v1
    matchConditions:
    - expression: "has(request.resourceAttributes)"
    - expression: "!('system:serviceaccounts:kube-system' in request.groups) && request.user != 'exempt'"
`)+builtin)
	tests := []struct {
		name, who, verb, resource string
		want                      authorizer.Decision
	}{
		{"the webhook denies what RBAC would allow", "jane", "get", "secrets", authorizer.DecisionDeny},
		{"the webhook allows what RBAC does not", "jane", "delete", "widgets", authorizer.DecisionAllow},
		{"the webhook has no opinion, RBAC allows", "jane", "get", "pods", authorizer.DecisionAllow},
		{"nobody allows", "jane", "delete", "pods", authorizer.DecisionNoOpinion},
		{"allowed and denied at once is denied", "jane", "get", "both", authorizer.DecisionDeny},
		{"a condition that is false passes the webhook by", "exempt", "get", "secrets", authorizer.DecisionAllow},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := ask(t, c, tt.who, tt.verb, tt.resource); got != tt.want {
				t.Errorf("decision is %v, want %v", got, tt.want)
			}
		})
	}
	asked := len(reviewer.Asked())
	ask(t, c, "jane", "get", "secrets")
	if got := len(reviewer.Asked()); got != asked {
		t.Error("the webhook is asked again for what it has answered")
	}
	masters, _, _ := c.Authorize(t.Context(), authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}}, Verb: "get", Resource: "secrets", ResourceRequest: true,
	})
	if masters != authorizer.DecisionAllow {
		t.Errorf("masters: %v", masters)
	}
}

func TestFailurePolicy(t *testing.T) {
	broken := authtest.Webhook(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusNotFound) })
	elsewhere := false // a path of the same server will do
	redirecting := authtest.Webhook(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/elsewhere" {
			elsewhere = true
			return
		}
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})
	failing := "    matchConditionSubjectAccessReviewVersion: v1\n    matchConditions: [{expression: \"request.nonResourceAttributes.path == '/x'\"}]\n"
	tests := []struct {
		name, entry string
		want        authorizer.Decision
	}{
		{"no answer denies", hook("h", broken, "Deny", ""), authorizer.DecisionDeny},
		{"no answer is no opinion", hook("h", broken, "NoOpinion", ""), authorizer.DecisionAllow},
		{"a redirect is not followed", hook("h", redirecting, "Deny", ""), authorizer.DecisionDeny},
		{"a condition that fails denies", hook("h", broken, "Deny", failing), authorizer.DecisionDeny},
		{"a condition that fails is no opinion", hook("h", broken, "NoOpinion", failing), authorizer.DecisionAllow},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := ask(t, mustLoad(t, head+tt.entry+builtin), "jane", "get", "pods"); got != tt.want {
				t.Errorf("decision is %v, want %v", got, tt.want)
			}
		})
	}
	if elsewhere {
		t.Error("a redirect was followed")
	}
}

func TestSelectorsReachTheWebhookAsRequirements(t *testing.T) {
	reviewer := authtest.NewReviewer(t, func(authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
		return authorizationv1.SubjectAccessReviewStatus{Allowed: true}
	})
	c := mustLoad(t, head+hook("h", reviewer.Kubeconfig, "Deny", `    matchConditionSubjectAccessReviewVersion: v1
    matchConditions:
    - expression: "request.resourceAttributes.fieldSelector.requirements.exists(r, r.key == 'spec.nodeName')"
`)+builtin)
	label, err := labels.NewRequirement("app", "in", []string{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = c.Authorize(t.Context(), authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "jane"}, Verb: "list", Resource: "pods", ResourceRequest: true,
		FieldSelectorRequirements: fields.Requirements{{Operator: "=", Field: "spec.nodeName", Value: "n1"}},
		LabelSelectorRequirements: labels.Requirements{*label},
	})
	if err != nil {
		t.Fatal(err)
	}
	asked := reviewer.Asked()
	if len(asked) != 1 {
		t.Fatalf("asked %d times, want once", len(asked))
	}
	f, l := asked[0].ResourceAttributes.FieldSelector, asked[0].ResourceAttributes.LabelSelector
	if f == nil || f.RawSelector != "" || len(f.Requirements) != 1 || f.Requirements[0].Operator != metav1.FieldSelectorOpIn || f.Requirements[0].Values[0] != "n1" {
		t.Errorf("field selector is %+v", f)
	}
	if l == nil || l.RawSelector != "" || len(l.Requirements) != 1 || l.Requirements[0].Key != "app" {
		t.Errorf("label selector is %+v", l)
	}
}

func TestConfigurationIsJudged(t *testing.T) {
	file := authtest.Webhook(t, http.NotFound)
	tests := []struct{ name, text, want string }{
		{"a type that is given twice", head + builtin + "- {type: RBAC, name: again}\n", "Duplicate value"},
		{"an unknown type", head + "- {type: Nobody, name: nobody}\n", "Unsupported value"},
		{"policies without their file", head + "- {type: ABAC, name: abac}\n", "authorization-mode ABAC's authorization policy file not passed"},
		{"another name for RBAC", head + "- {type: RBAC, name: roles}\n", "expected name rbac for authorizer RBAC instead of roles"},
		{"a webhook in the cluster", head + strings.Replace(hook("h", file, "Deny", ""), "{type: KubeConfigFile, kubeConfigFile: \""+file+"\"}", "{type: InClusterConfig}", 1), "Unsupported value"},
		{"conditions without their version", head + hook("h", file, "Deny", "    matchConditions: [{expression: \"true\"}]\n"), "required if match conditions are specified"},
		{"a condition that does not compile", head + hook("h", file, "Deny", "    matchConditionSubjectAccessReviewVersion: v1\n    matchConditions: [{expression: \"request.nothing\"}]\n"), "compilation failed"},
		{"nobody to ask", strings.TrimSuffix(head, "\n") + " []\n", "at least one authorization mode must be defined"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := load(t, tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("err is %v, want one about %q", err, tt.want)
			}
		})
	}
}

func TestReloadKeepsNodeAndRBAC(t *testing.T) {
	denying := authtest.NewReviewer(t, func(authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus {
		return authorizationv1.SubjectAccessReviewStatus{Denied: true}
	})
	c := mustLoad(t, head+builtin)
	for _, bad := range []string{
		head + "- {type: RBAC, name: rbac}\n",
		head + "- {type: Node, name: node}\n",
		head + builtin + "- {type: Webhook, name: h}\n",
		"apiVersion: v1",
	} {
		if err := c.replace(t.Context(), []byte(bad)); err == nil {
			t.Errorf("accepted:\n%s", bad)
		}
		if got := ask(t, c, "jane", "get", "pods"); got != authorizer.DecisionAllow {
			t.Fatalf("decision is %v after a bad file", got)
		}
	}
	if err := c.replace(t.Context(), []byte(head+hook("h", denying.Kubeconfig, "Deny", "")+"- {type: RBAC, name: rbac}\n- {type: Node, name: node}\n")); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, c, "jane", "get", "pods"); got != authorizer.DecisionDeny {
		t.Errorf("decision is %v after the webhook was put first", got)
	}
}

func BenchmarkAuthorize(b *testing.B) {
	c, err := New(Config{
		Authorization: &apiserver.AuthorizationConfiguration{Authorizers: []apiserver.AuthorizerConfiguration{{Type: Node, Name: "node"}, {Type: RBAC, Name: "rbac"}}},
		Node:          Unlisted{verbs{}, "unlisted"}, RBAC: Unlisted{verbs{"get"}, "unlisted"},
	})
	if err != nil {
		b.Fatal(err)
	}
	attrs := &authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "jane"}, Verb: "get", Resource: "pods", ResourceRequest: true}
	b.ReportAllocs()
	for b.Loop() {
		c.Authorize(b.Context(), attrs)
	}
}

// Any text is a condition that is refused or one that can be evaluated.
func FuzzMatchCondition(f *testing.F) {
	for _, seed := range []string{
		"has(request.resourceAttributes) && request.resourceAttributes.namespace == 'a'", "request.groups.exists(g, g.startsWith('x'))",
		"((((((", "'a'.matches('(a+)+$')", "[1,2,3].map(x, [1,2,3].map(y, x*y)).size() > 2", "\x00\xff",
	} {
		f.Add(seed)
	}
	compiler := authorizationcel.NewDefaultCompiler()
	f.Fuzz(func(t *testing.T, text string) {
		matcher, errs := validation.ValidateAndCompileMatchConditions(compiler, []apiserver.WebhookMatchCondition{{Expression: text}})
		if len(errs) > 0 || matcher == nil {
			return
		}
		matcher.Metrics = authorizationcel.NoopMatcherMetrics{}
		matcher.Eval(t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "jane", Groups: []string{"a"}}})
	})
}
