package validatingadmissionpolicy

import (
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis/builtin"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func rule(group, resource string) admissionregistrationv1.NamedRuleWithOperations {
	return admissionregistrationv1.NamedRuleWithOperations{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{"*"},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{resource}},
	}}
}

func TestTypeChecking(t *testing.T) {
	deployments, statefulSets := rule("apps", "deployments"), rule("apps", "statefulsets")
	for _, tt := range []struct {
		name       string
		rules      []admissionregistrationv1.NamedRuleWithOperations
		params     *admissionregistrationv1.ParamKind
		variables  []admissionregistrationv1.Variable
		expression string
		message    string
		want       string // in the warning
		at         string
		notAbout   string
	}{
		{name: "a field that is there", rules: []admissionregistrationv1.NamedRuleWithOperations{deployments}, expression: "object.spec.replicas > 1 && oldObject.metadata.name == request.name"},
		{name: "a field that is not there", rules: []admissionregistrationv1.NamedRuleWithOperations{deployments}, expression: "object.spec.replicaz > 1",
			at: "spec.validations[0].expression", want: "apps/v1, Kind=Deployment: ERROR: <input>:1:12: undefined field 'replicaz'"},
		{name: "a field of one of two kinds", rules: []admissionregistrationv1.NamedRuleWithOperations{deployments, statefulSets}, expression: "object.spec.serviceName != ''",
			at: "spec.validations[0].expression", want: "apps/v1, Kind=Deployment: ERROR", notAbout: "StatefulSet"},
		{name: "a wrong type", rules: []admissionregistrationv1.NamedRuleWithOperations{deployments}, expression: "object.spec.replicas == 'one'",
			at: "spec.validations[0].expression", want: "found no matching overload for '_==_' applied to '(int, string)'"},
		{name: "a message", rules: []admissionregistrationv1.NamedRuleWithOperations{deployments}, expression: "true", message: "object.spec.nothing",
			at: "spec.validations[0].messageExpression", want: "undefined field 'nothing'"},
		{name: "a variable", rules: []admissionregistrationv1.NamedRuleWithOperations{deployments}, variables: []admissionregistrationv1.Variable{{Name: "n", Expression: "object.spec.replicas"}},
			expression: "variables.n == 'one'", at: "spec.validations[0].expression", want: "applied to '(int, string)'"},
		{name: "parameters", rules: []admissionregistrationv1.NamedRuleWithOperations{deployments}, params: &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
			expression: "params.dat.x == 'y'", at: "spec.validations[0].expression", want: "undefined field 'dat'"},
		{name: "parameters of an unknown kind", rules: []admissionregistrationv1.NamedRuleWithOperations{deployments}, params: &admissionregistrationv1.ParamKind{APIVersion: "x/v1", Kind: "X"},
			expression: "params.anything == object.spec.replicas"},
		{name: "any kind", rules: []admissionregistrationv1.NamedRuleWithOperations{rule("*", "*")}, expression: "object.nothing == 1"},
		{name: "an unknown kind", rules: []admissionregistrationv1.NamedRuleWithOperations{rule("example.com", "x")}, expression: "object.nothing == 1"},
		{name: "the authorizer", rules: []admissionregistrationv1.NamedRuleWithOperations{deployments}, expression: "authorizer.requestResource.check('get').allowed()"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			warnings := checker{builtin.Catalogue()}.check(&admissionregistrationv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: tt.rules}, ParamKind: tt.params, Variables: tt.variables,
				Validations: []admissionregistrationv1.Validation{{Expression: tt.expression, MessageExpression: tt.message}},
			})
			if tt.want == "" {
				if len(warnings) > 0 {
					t.Errorf("warnings %v", warnings)
				}
				return
			}
			if len(warnings) != 1 || warnings[0].FieldRef != tt.at || !strings.Contains(warnings[0].Warning, tt.want) {
				t.Fatalf("warnings %q, want %s: %s", warnings, tt.at, tt.want)
			}
			if tt.notAbout != "" && strings.Contains(warnings[0].Warning, tt.notAbout) {
				t.Errorf("warning about %s: %s", tt.notAbout, warnings[0].Warning)
			}
		})
	}
}

func TestStatusFollowsTheSpec(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		stop := w.Start(func(c controllers.Config) []controllertest.Runner {
			return []controllertest.Runner{New(c, w.Catalogue)}
		})
		defer stop()
		fail := admissionregistrationv1.Fail
		w.Create(&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy:    &fail,
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{rule("apps", "deployments")}},
			Validations:      []admissionregistrationv1.Validation{{Expression: "object.spec.replicaz > 1"}},
		}})
		w.Settle()
		p := controllertest.Get[*admissionregistrationv1.ValidatingAdmissionPolicy](w, "p")
		if p.Status.ObservedGeneration != 1 || len(p.Status.TypeChecking.ExpressionWarnings) != 1 {
			t.Fatalf("status %+v", p.Status)
		}
		controllertest.Change(w, "p", func(p *admissionregistrationv1.ValidatingAdmissionPolicy) {
			p.Spec.Validations[0].Expression = "object.spec.replicas > 1"
		})
		w.Settle()
		p = controllertest.Get[*admissionregistrationv1.ValidatingAdmissionPolicy](w, "p")
		if p.Status.ObservedGeneration != 2 || p.Generation != 2 || len(p.Status.TypeChecking.ExpressionWarnings) != 0 {
			t.Fatalf("generation %d, status %+v", p.Generation, p.Status)
		}
	})
}
