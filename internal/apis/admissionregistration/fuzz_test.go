package admissionregistration

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

// FuzzExpressions judges policies with any expression where one can be.
func FuzzExpressions(f *testing.F) {
	for _, e := range []string{
		"object.spec.replicas > 5", "true", "", "variables.a == 1", "authorizer.group('').resource('pods').check('get').allowed()", "object.metadata.?name.orValue('a')", "[1,2].all(x, x > 0)",
		"'a'.matches('(')", "((((((((((1))))))))))", "!!!!true", "params.x", "Object{spec: Object.spec{a: 1}}", "\x00", "a.b[", "quantity('1').isGreaterThan(quantity('2'))", "url('x').getHost()", "{1: {2: {}}}",
	} {
		f.Add(e, e)
	}
	f.Fuzz(func(t *testing.T, expression, other string) {
		if len(expression)+len(other) > 400 {
			return // longer ones only take longer
		}
		p := &admissionregistrationv1.ValidatingAdmissionPolicy{Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			ParamKind:       &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "a", Expression: other}},
			Variables:       []admissionregistrationv1.Variable{{Name: "a", Expression: other}},
			Validations:     []admissionregistrationv1.Validation{{Expression: expression, MessageExpression: other}},
			AuditAnnotations: []admissionregistrationv1.AuditAnnotation{{
				Key: "a", ValueExpression: expression,
			}},
		}}
		p.Name = "p"
		r := &ValidatingAdmissionPolicies
		r.Default(p)
		r.Validate(t.Context(), p)
	})
}
