package registry

import (
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"proa/internal/apis"
)

// selector is what a list or watch asked for, taken apart so that a name or a
// namespace in it costs a lookup and not a scan.
type selector struct {
	namespace string
	name      string // "" : any
	labels    labels.Selector
	fields    []fieldTerm // what is left besides name and namespace
	index     *fieldTerm  // one of fields that the store may have an index of; nil: none
	nothing   bool        // contradicts itself or the path
	narrow    bool        // anything was selected at all
}

// fieldTerm is one requirement on a field.
type fieldTerm struct {
	field string
	of    func(apis.Object) string
	value string
	equal bool
}

func (t *fieldTerm) matches(obj apis.Object) bool { return (t.of(obj) == t.value) == t.equal }

func newSelector(q *Request, opts *metav1.ListOptions) (*selector, error) {
	s := &selector{namespace: q.namespace(), name: q.Name, labels: labels.Everything()}
	if opts.LabelSelector != "" {
		l, err := labels.Parse(opts.LabelSelector)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		s.labels, s.narrow = l, !l.Empty()
	}
	if opts.FieldSelector == "" {
		return s, nil
	}
	f, err := fields.ParseSelector(opts.FieldSelector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return s, s.addFields(q.View.Resource, f)
}

func (s *selector) addFields(res *apis.Resource, f fields.Selector) error {
	s.narrow = s.narrow || !f.Empty()
	for _, req := range f.Requirements() {
		label := req.Field
		if name, ok := res.FieldAliases[label]; ok {
			label = name
		}
		equal := req.Operator != selection.NotEquals
		switch {
		case label == "metadata.name" && equal:
			s.nothing = s.nothing || s.name != "" && s.name != req.Value || req.Value == ""
			s.name = req.Value
		case label == "metadata.namespace" && equal:
			s.nothing = s.nothing || s.namespace != "" && s.namespace != req.Value
			if s.namespace == "" && res.Scope == apis.Namespaced {
				s.namespace = req.Value
			}
			s.nothing = s.nothing || res.Scope == apis.Cluster && req.Value != ""
		case label == "metadata.name":
			s.fields = append(s.fields, fieldTerm{label, apis.Object.GetName, req.Value, false})
		case label == "metadata.namespace":
			s.fields = append(s.fields, fieldTerm{label, apis.Object.GetNamespace, req.Value, false})
		case res.Fields[label] == nil:
			return unknownField(res, req.Field)
		default:
			s.fields = append(s.fields, fieldTerm{label, res.Fields[label], req.Value, equal})
		}
	}
	for i, t := range s.fields {
		if t.equal && slices.Contains(res.Indexed, t.field) {
			s.index = &s.fields[i]
		}
	}
	return nil
}

func unknownField(res *apis.Resource, label string) error {
	if res.Fields == nil {
		return apierrors.NewBadRequest(fmt.Sprintf("%q is not a known field selector: only \"metadata.name\", \"metadata.namespace\"", label))
	}
	return apierrors.NewBadRequest("field label not supported: " + label)
}

func (s *selector) matches(obj apis.Object) bool {
	if !s.narrow && s.name == "" {
		return true
	}
	if s.nothing || s.name != "" && obj.GetName() != s.name {
		return false
	}
	if !s.labels.Empty() && !s.labels.Matches(labels.Set(obj.GetLabels())) {
		return false
	}
	for i := range s.fields {
		if !s.fields[i].matches(obj) {
			return false
		}
	}
	return true
}
