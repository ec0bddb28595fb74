package review

import (
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"proa/internal/apis"
)

type rule = admissionregistrationv1.NamedRuleWithOperations

// Criteria say which writes somebody wants to see. The zero value matches nothing.
type Criteria struct {
	rules, exclude    []rule
	everything        bool // when there are no rules
	equivalent        bool
	namespace, object labels.Selector
	broken            error // a selector cannot be read
}

// OfWebhook returns the criteria of a webhook.
func OfWebhook(w *admissionregistrationv1.MutatingWebhook) Criteria {
	c := Criteria{equivalent: w.MatchPolicy != nil && *w.MatchPolicy == admissionregistrationv1.Equivalent}
	for i := range w.Rules {
		c.rules = append(c.rules, rule{RuleWithOperations: w.Rules[i]})
	}
	c.selectors(w.NamespaceSelector, w.ObjectSelector)
	return c
}

// OfResources returns the criteria of a policy or binding. Without rules they match all resources.
func OfResources(m *admissionregistrationv1.MatchResources) Criteria {
	c := Criteria{
		rules: m.ResourceRules, exclude: m.ExcludeResourceRules, everything: len(m.ResourceRules) == 0,
		equivalent: m.MatchPolicy != nil && *m.MatchPolicy == admissionregistrationv1.Equivalent,
	}
	c.selectors(m.NamespaceSelector, m.ObjectSelector)
	return c
}

func (c *Criteria) selectors(namespace, object *metav1.LabelSelector) {
	var err error
	if c.namespace, err = metav1.LabelSelectorAsSelector(namespace); err != nil {
		c.broken = err
	}
	if c.object, err = metav1.LabelSelectorAsSelector(object); err != nil {
		c.broken = err
	}
}

// Match says whether a write is wanted and in which version. An error, a
// StatusError, is about a write that the rules want.
func (c *Criteria) Match(r *Request) (Version, bool, error) {
	selected, err := c.selects(r)
	if !selected && err == nil {
		return Version{}, false, nil
	}
	if _, excluded := c.find(c.exclude, r); excluded {
		return Version{}, false, nil
	}
	if c.everything {
		return r.Own, err == nil, err
	}
	v, ok := c.find(c.rules, r)
	if !ok {
		return Version{}, false, nil
	}
	return v, err == nil, err
}

// find returns the version of the write that the first matching rule names: the
// client's own where any rule does.
func (c *Criteria) find(rules []rule, r *Request) (Version, bool) {
	for i := range rules {
		if covers(&rules[i], r, r.Own) {
			return r.Own, true
		}
	}
	if !c.equivalent || len(rules) == 0 {
		return Version{}, false
	}
	others := r.Equivalents()
	for i := range rules {
		for _, v := range others {
			if covers(&rules[i], r, v) {
				return v, true
			}
		}
	}
	return Version{}, false
}

func covers(w *rule, r *Request, v Version) bool {
	return scopeCovers(w.Scope, r) &&
		slices.ContainsFunc(w.Operations, func(op admissionregistrationv1.OperationType) bool {
			return op == admissionregistrationv1.OperationAll || string(op) == string(r.Operation)
		}) &&
		names(w.APIGroups, v.Resource.Group) && names(w.APIVersions, v.Resource.Version) &&
		slices.ContainsFunc(w.Resources, func(pattern string) bool {
			resource, sub, _ := strings.Cut(pattern, "/")
			return (resource == "*" || resource == v.Resource.Resource) && (sub == "*" || sub == r.Subresource)
		}) &&
		(len(w.ResourceNames) == 0 || slices.Contains(w.ResourceNames, r.Name))
}

func names(patterns []string, s string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return p == "*" || p == s })
}

// scopeCovers counts a Namespace as cluster-scoped, although it is in itself.
func scopeCovers(s *admissionregistrationv1.ScopeType, r *Request) bool {
	if s == nil || *s == admissionregistrationv1.AllScopes {
		return true
	}
	cluster := r.Namespace == "" || r.Attributes.Resource.GroupResource() == namespaces
	switch *s {
	case admissionregistrationv1.NamespacedScope:
		return !cluster
	case admissionregistrationv1.ClusterScope:
		return cluster
	}
	return false
}

func (c *Criteria) selects(r *Request) (bool, error) {
	if c.broken != nil {
		return false, apierrors.NewInternalError(c.broken)
	}
	if !c.object.Empty() && !has(c.object, r.Object) && !has(c.object, r.OldObject) {
		return false, nil
	}
	itself := r.Attributes.Resource.Plural == "namespaces"
	if c.namespace.Empty() || r.Namespace == "" && !itself {
		return true, nil
	}
	if itself && r.Subresource == "" && (r.Operation == admissionv1.Create || r.Operation == admissionv1.Update) {
		return has(c.namespace, r.Object), nil // the labels that it will have
	}
	ns, err := r.namespace()
	if err != nil {
		return false, err
	}
	return c.namespace.Matches(labels.Set(ns.Labels)), nil
}

func has(s labels.Selector, obj apis.Object) bool {
	return obj != nil && s.Matches(labels.Set(obj.GetLabels()))
}
