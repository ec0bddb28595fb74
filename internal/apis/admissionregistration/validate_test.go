package admissionregistration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"proa/internal/apis"
)

// read makes an object of a resource, defaulted.
func read(t *testing.T, r *apis.Resource, manifest string) apis.Object {
	t.Helper()
	obj := r.New()
	if err := yaml.UnmarshalStrict([]byte(manifest), obj); err != nil {
		t.Fatalf("%v in\n%s", err, manifest)
	}
	obj.SetName("p")
	r.Default(obj)
	return obj
}

// firstLines are the messages of errors, of CEL's complaints the first line.
func firstLines(errs field.ErrorList) []string {
	var all []string
	for _, e := range errs {
		first, _, _ := strings.Cut(e.Error(), "\n")
		all = append(all, first)
	}
	return all
}

func TestValidation(t *testing.T) {
	const (
		policyRules = "matchConstraints: {resourceRules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}]}"
		hook        = "webhooks: [{name: a.example.com, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: 'https://x'}, %s}]"
		rule        = "rules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [%s]}]"
	)
	hooked := func(s string) string { return fmt.Sprintf(hook, s) }
	ruled := func(s string) string { return hooked(fmt.Sprintf(rule, s)) }
	policy := func(s string) string { return fmt.Sprintf("spec: {%s, %s}", policyRules, s) }
	mutating := func(s string) string {
		return policy("reinvocationPolicy: Never, mutations: [" + s + "]")
	}
	for _, tt := range []struct {
		name     string
		resource *apis.Resource
		manifest string
		want     []string
	}{
		{"a webhook's name has three parts", &ValidatingWebhookConfigurations, "webhooks: [{name: a.b, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: 'https://x'}}]",
			[]string{`webhooks[0].name: Invalid value: "a.b": should be a domain with at least three segments separated by dots`}},
		{"what has no default is required", &MutatingWebhookConfigurations, "webhooks: [{name: a.b.c}]", []string{
			`webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun`,
			`webhooks[0].clientConfig: Required value: exactly one of url or service is required`,
			`webhooks[0].admissionReviewVersions: Required value: must specify one of v1, v1beta1`,
		}},
		{"names are told apart", &MutatingWebhookConfigurations, strings.Replace(hooked(""), "webhooks: [", "webhooks: ["+strings.TrimSuffix(strings.TrimPrefix(hooked(""), "webhooks: ["), "]")+", ", 1),
			[]string{`webhooks[1].name: Duplicate value: "a.example.com"`}},
		{"values are from their lists", &MutatingWebhookConfigurations, hooked("failurePolicy: Maybe, matchPolicy: Near, timeoutSeconds: 31, reinvocationPolicy: Often"), []string{
			`webhooks[0].failurePolicy: Unsupported value: "Maybe": supported values: "Fail", "Ignore"`,
			`webhooks[0].matchPolicy: Unsupported value: "Near": supported values: "Equivalent", "Exact"`,
			`webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds`,
			`webhooks[0].reinvocationPolicy: Unsupported value: "Often": supported values: "IfNeeded", "Never"`,
		}},
		{"side effects are none", &ValidatingWebhookConfigurations, strings.Replace(hooked(""), "None", "Some", 1),
			[]string{`webhooks[0].sideEffects: Unsupported value: "Some": supported values: "None", "NoneOnDryRun"`}},
		{"a version is one that this server speaks", &ValidatingWebhookConfigurations, strings.Replace(hooked(""), "[v1]", "[v9, v9]", 1), []string{
			`webhooks[0].admissionReviewVersions[1]: Invalid value: "v9": duplicate version`,
			`webhooks[0].admissionReviewVersions: Invalid value: ["v9","v9"]: must include at least one of v1, v1beta1`,
		}},
		{"a url is plain https", &ValidatingWebhookConfigurations, strings.Replace(hooked(""), "https://x", "http://u:p@/x?q#f", 1), []string{
			`webhooks[0].clientConfig.url: Invalid value: "http": 'https' is the only allowed URL scheme; desired format: https://host[/path]`,
			`webhooks[0].clientConfig.url: Invalid value: "": host must be specified; desired format: https://host[/path]`,
			`webhooks[0].clientConfig.url: Invalid value: "u:p": user information is not permitted in the URL`,
			`webhooks[0].clientConfig.url: Invalid value: "f": fragments are not permitted in the URL`,
			`webhooks[0].clientConfig.url: Invalid value: "q": query parameters are not permitted in the URL`,
		}},
		{"a rule is complete", &ValidatingWebhookConfigurations, hooked("rules: [{}]"), []string{
			`webhooks[0].rules[0].operations: Required value`, `webhooks[0].rules[0].apiGroups: Required value`,
			`webhooks[0].rules[0].apiVersions: Required value`, `webhooks[0].rules[0].resources: Required value`,
		}},
		{"wildcards stand alone", &ValidatingWebhookConfigurations, hooked("rules: [{apiGroups: ['*', a], apiVersions: ['*', b], operations: ['*', CREATE], resources: ['*/*', c]}]"), []string{
			`webhooks[0].rules[0].operations: Invalid value: ["*","CREATE"]: if '*' is present, must not specify other operations`,
			`webhooks[0].rules[0].apiGroups: Invalid value: ["*","a"]: if '*' is present, must not specify other API groups`,
			`webhooks[0].rules[0].apiVersions: Invalid value: ["*","b"]: if '*' is present, must not specify other API versions`,
			`webhooks[0].rules[0].resources: Invalid value: ["*/*","c"]: if '*/*' is present, must not specify other resources`,
		}},
		{"subresources are not covered twice", &ValidatingWebhookConfigurations, ruled("pods/*, pods/status, '*/scale', a/scale"), []string{
			`webhooks[0].rules[0].resources[1]: Invalid value: "pods/status": if 'pods/*' is present, must not specify pods/status`,
			`webhooks[0].rules[0].resources[3]: Invalid value: "a/scale": if '*/scale' is present, must not specify a/scale`,
		}},
		{"resources are not covered twice", &ValidatingWebhookConfigurations, ruled("'*', pods"), []string{
			`webhooks[0].rules[0].resources: Invalid value: ["*","pods"]: if '*' is present, must not specify other resources without subresources`,
		}},
		{"match conditions compile", &MutatingWebhookConfigurations, hooked("matchConditions: [{name: a, expression: 'object.'}, {name: a, expression: '1'}, {expression: 'params.x == 1'}]"), []string{
			`webhooks[0].matchConditions[0].expression: Invalid value: "object.": compilation failed: ERROR: <input>:1:8: Syntax error: no viable alternative at input '.'`,
			`webhooks[0].matchConditions[1].expression: Invalid value: "1": must evaluate to bool but got int`,
			`webhooks[0].matchConditions[1].name: Duplicate value: "a"`,
			`webhooks[0].matchConditions[2].expression: Invalid value: "params.x == 1": compilation failed: ERROR: <input>:1:1: undeclared reference to 'params' (in container '')`,
			`webhooks[0].matchConditions[2].name: Required value`,
		}},
		{"a policy says when and what", &ValidatingAdmissionPolicies, "spec: {}", []string{
			`spec.matchConstraints: Required value`,
			`spec.validations: Required value: validations or auditAnnotations must contain at least one item`,
			`spec.auditAnnotations: Required value: validations or auditAnnotations must contain at least one item`,
		}},
		{"a policy's parameters have a kind", &ValidatingAdmissionPolicies, policy("paramKind: {apiVersion: a/b/c, kind: 'X Y'}, validations: [{expression: 'true'}]"), []string{
			`spec.paramKind.apiVersion: Invalid value: "a/b/c": unexpected GroupVersion string: a/b/c`,
			`spec.paramKind.kind: Invalid value: "X Y": may have mixed case, but should otherwise match: a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')`,
		}},
		{"validations compile", &ValidatingAdmissionPolicies, policy(`validations: [{expression: 'object.x', reason: Odd}, {expression: '', message: "a\nb"}, {expression: 'true', messageExpression: '1', message: ' '}]`), []string{
			`spec.validations[0].expression: Invalid value: "object.x": must evaluate to bool but got dyn`,
			`spec.validations[0].reason: Unsupported value: "Odd": supported values: "Forbidden", "Invalid", "RequestEntityTooLarge"`,
			`spec.validations[1].expression: Required value: expression is not specified`,
			`spec.validations[1].message: Invalid value: "a\nb": message must not contain line breaks`,
			`spec.validations[2].messageExpression: Invalid value: "1": must evaluate to string but got int`,
			`spec.validations[2].message: Invalid value: " ": message must be non-empty if specified`,
		}},
		{"variables have names and know those before them", &ValidatingAdmissionPolicies, policy(`variables: [{name: if, expression: '1'}, {name: b, expression: variables.c}, {name: c, expression: ' '}], validations: [{expression: "variables.b == 1"}]`), []string{
			`spec.variables[0].name: Invalid value: "if": must be a valid CEL identifier`,
			`spec.variables[1].expression: Invalid value: "variables.c": compilation failed: ERROR: <input>:1:10: undefined field 'c'`,
			`spec.variables[2].expression: Required value: expression is not specified`,
		}},
		{"audit annotations have keys and values", &ValidatingAdmissionPolicies, policy(`auditAnnotations: [{key: a, valueExpression: '1'}, {key: a, valueExpression: 'null'}, {key: 'b c', valueExpression: ''}]`), []string{
			`spec.auditAnnotations[0].valueExpression: Invalid value: "1": must evaluate to one of [string null_type] but got int`,
			`spec.auditAnnotations[1].key: Duplicate value: "a"`,
			`spec.auditAnnotations[2].key: Invalid value: "p/b c": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`,
			`spec.auditAnnotations[2].valueExpression: Required value: valueExpression is not specified`,
		}},
		{"a mutating policy says when and what", &MutatingAdmissionPolicies, "spec: {matchConstraints: {resourceRules: [{apiGroups: [''], apiVersions: [v1], operations: [DELETE], resources: [pods]}]}}", []string{
			`spec.matchConstraints.resourceRules.operations: Unsupported value: "DELETE": supported values: "*", "CONNECT", "CREATE", "UPDATE"`,
			`spec.mutations: Required value: mutations must contain at least one item`,
			`spec.reinvocationPolicy: Required value`,
		}},
		{"a mutation has a type and fits it", &MutatingAdmissionPolicies, mutating("{}, {patchType: JSONPatch}, {patchType: Other}, {patchType: ApplyConfiguration, applyConfiguration: {expression: 'Object{}'}, jsonPatch: {expression: '[]'}}"), []string{
			`spec.mutations[0].patchType: Required value`,
			`spec.mutations[1].jsonPatch: Required value: must be specified when patchType is JSONPatch`,
			`spec.mutations[2].patchType: Unsupported value: "Other": supported values: "ApplyConfiguration", "JSONPatch"`,
			`spec.mutations[3].jsonPatch: Invalid value: "{jsonPatch}": must not be specified when patchType is ApplyConfiguration`,
		}},
		{"mutations compile", &MutatingAdmissionPolicies, mutating(`{patchType: JSONPatch, jsonPatch: {expression: "'x'"}}, {patchType: ApplyConfiguration, applyConfiguration: {expression: 'Object.spec{}'}}`), []string{
			`spec.mutations[0].jsonPatch.expression: Invalid value: "'x'": must evaluate to list(JSONPatch) but got string`,
			`spec.mutations[1].applyConfiguration.expression: Invalid value: "Object.spec{}": must evaluate to Object but got Object.spec`,
		}},
		{"a binding names its policy and acts", &ValidatingAdmissionPolicyBindings, "spec: {}", []string{
			`spec.policyName: Required value`, `spec.validationActions: Required value: at least one validation action is required`,
		}},
		{"actions exclude each other", &ValidatingAdmissionPolicyBindings, "spec: {policyName: p, validationActions: [Deny, Warn, Warn, Shout]}", []string{
			`spec.validationActions[2]: Duplicate value: "Warn"`,
			`spec.validationActions[3]: Unsupported value: "Shout": supported values: "Audit", "Deny", "Warn"`,
			`spec.validationActions: Invalid value: ["Deny","Warn","Warn","Shout"]: must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)`,
		}},
		{"a reference names or selects", &MutatingAdmissionPolicyBindings, "spec: {policyName: p, paramRef: {name: a, selector: {}}}", []string{
			`spec.paramRef.name: Forbidden: name and selector are mutually exclusive`,
			`spec.paramRef.selector: Forbidden: name and selector are mutually exclusive`,
			`spec.paramRef.parameterNotFoundAction: Required value`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := firstLines(tt.resource.Validate(t.Context(), read(t, tt.resource, tt.manifest)))
			if !slices.Equal(got, tt.want) {
				t.Errorf("got  %s\nwant %s", strings.Join(got, "\n     "), strings.Join(tt.want, "\n     "))
			}
		})
	}
}

// Stored configurations keep what an older server let them have.
func TestUpdatesKeepStoredFaults(t *testing.T) {
	stored := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	for range 2 {
		stored.Webhooks = append(stored.Webhooks, admissionregistrationv1.ValidatingWebhook{
			Name: "a.example.com", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://x")},
			SideEffects: ptr.To(admissionregistrationv1.SideEffectClassSome), AdmissionReviewVersions: []string{"v9"},
			ObjectSelector:  &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpIn, Values: []string{"not valid"}}}},
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "c", Expression: "gone()"}},
		})
	}
	ValidatingWebhookConfigurations.Default(stored)
	next := stored.DeepCopy()
	next.Webhooks[0].TimeoutSeconds = ptr.To[int32](5)
	if errs := ValidatingWebhookConfigurations.ValidateUpdate(t.Context(), next, stored); len(errs) > 0 {
		t.Errorf("an update that adds no fault: %v", errs.ToAggregate())
	}
	fine := read(t, &ValidatingWebhookConfigurations, "webhooks: [{name: a.example.com, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: 'https://x'}}]")
	if errs := ValidatingWebhookConfigurations.ValidateUpdate(t.Context(), next, fine); len(errs) < 5 {
		t.Errorf("an update that adds faults: %v", errs.ToAggregate())
	}
}

func TestDefaults(t *testing.T) {
	c := read(t, &MutatingWebhookConfigurations, "webhooks: [{name: a.b.c, clientConfig: {service: {namespace: n, name: s}}, rules: [{}]}]").(*admissionregistrationv1.MutatingWebhookConfiguration)
	w := c.Webhooks[0]
	if *w.FailurePolicy != "Fail" || *w.MatchPolicy != "Equivalent" || *w.TimeoutSeconds != 10 || *w.ReinvocationPolicy != "Never" ||
		*w.ClientConfig.Service.Port != 443 || *w.Rules[0].Scope != "*" || w.NamespaceSelector == nil || w.ObjectSelector == nil || w.SideEffects != nil {
		t.Errorf("%+v", w)
	}
	p := read(t, &ValidatingAdmissionPolicies, "spec: {matchConstraints: {resourceRules: [{}]}}").(*admissionregistrationv1.ValidatingAdmissionPolicy)
	if m := p.Spec.MatchConstraints; *p.Spec.FailurePolicy != "Fail" || *m.MatchPolicy != "Equivalent" || *m.ResourceRules[0].Scope != "*" || m.NamespaceSelector == nil {
		t.Errorf("%+v", p.Spec)
	}
}
