package admissionregistration

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// setDefault fills an absent value.
func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

func defaultMatching(policy **admissionregistrationv1.MatchPolicyType, namespace, object **metav1.LabelSelector) {
	setDefault(policy, admissionregistrationv1.Equivalent)
	setDefault(namespace, metav1.LabelSelector{})
	setDefault(object, metav1.LabelSelector{})
}

func defaultClient(c *admissionregistrationv1.WebhookClientConfig, rules []admissionregistrationv1.RuleWithOperations) {
	if c.Service != nil {
		setDefault(&c.Service.Port, 443)
	}
	for i := range rules {
		setDefault(&rules[i].Scope, admissionregistrationv1.AllScopes)
	}
}

func defaultMatchResources(m *admissionregistrationv1.MatchResources) {
	if m == nil {
		return
	}
	defaultMatching(&m.MatchPolicy, &m.NamespaceSelector, &m.ObjectSelector)
	for _, rules := range [][]admissionregistrationv1.NamedRuleWithOperations{m.ResourceRules, m.ExcludeResourceRules} {
		for i := range rules {
			setDefault(&rules[i].Scope, admissionregistrationv1.AllScopes)
		}
	}
}
