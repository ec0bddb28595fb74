// Package policy runs the admission policies that users wrote in CEL (KEP-3488,
// KEP-3962): ValidatingAdmissionPolicy and MutatingAdmissionPolicy, each through
// its bindings. A policy without a binding does nothing.
package policy

import (
	"errors"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	policyconfig "k8s.io/apiserver/pkg/admission/plugin/policy/config"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"proa/internal/admission"
	"proa/internal/admission/review"
	"proa/internal/apis"
	"proa/internal/store"
)

// Config says what policies know. All but Configurations and Manifests is required.
type Config struct {
	Store      *store.Store
	Catalogue  *apis.Catalogue // of the kinds that parameters may be of
	Authorizer authorizer.Authorizer
	// Types is the schema of the built-in kinds, by which mutating policies merge
	// apply configurations.
	Types func() managedfields.TypeConverter
	// Configurations may name directories of policies in files. Manifests allows
	// them: the gate of that is on.
	Configurations admission.Configurations
	Manifests      bool
}

// New returns the two plugins.
func New(c Config) (*Mutating, *Validating, error) {
	resource := func(plural string) schema.GroupResource {
		return schema.GroupResource{Group: admissionregistrationv1.GroupName, Resource: plural}
	}
	m, v := &Mutating{config: c}, &Validating{config: c}
	m.hooks.policies = review.Compiled[*mutatingPolicy]{Resource: resource("mutatingadmissionpolicies"), Make: compileMutating}
	m.hooks.bindings = review.Compiled[*binding]{Resource: resource("mutatingadmissionpolicybindings"), Make: mutatingBinding}
	v.hooks.policies = review.Compiled[*validatingPolicy]{Resource: resource("validatingadmissionpolicies"), Make: compileValidating}
	v.hooks.bindings = review.Compiled[*binding]{Resource: resource("validatingadmissionpolicybindings"), Make: validatingBinding}
	if err := m.hooks.openFiles(c, m.Name(), policyconfig.LoadMutatingConfig, readMutating); err != nil {
		return nil, nil, err
	}
	if err := v.hooks.openFiles(c, v.Name(), policyconfig.LoadValidatingConfig, readValidating); err != nil {
		return nil, nil, err
	}
	return m, v, nil
}

// policy is what both kinds of policies have.
type policy struct {
	name     string
	failure  *admissionregistrationv1.FailurePolicyType
	params   *admissionregistrationv1.ParamKind
	criteria review.Criteria
	broken   error // it says nothing that could be matched
}

func policyOf(name string, failure *admissionregistrationv1.FailurePolicyType, params *admissionregistrationv1.ParamKind, m *admissionregistrationv1.MatchResources) policy {
	p := policy{name: name, failure: failure, params: params}
	if m == nil {
		p.broken = errors.New("policy contained no match constraints, a required field")
		return p
	}
	p.criteria = review.OfResources(m)
	return p
}

func (p *policy) failsOpen() bool {
	return p.failure != nil && *p.failure == admissionregistrationv1.Ignore
}

// binding is one use of a policy.
type binding struct {
	name, policy string
	params       *admissionregistrationv1.ParamRef
	actions      []admissionregistrationv1.ValidationAction
	criteria     *review.Criteria // nil: all that the policy matches
}

func validatingBinding(obj apis.Object) *binding {
	b := obj.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding)
	return bindingOf(b.Name, b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources, b.Spec.ValidationActions)
}

func mutatingBinding(obj apis.Object) *binding {
	b := obj.(*admissionregistrationv1.MutatingAdmissionPolicyBinding)
	return bindingOf(b.Name, b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources, nil)
}

func bindingOf(name, policy string, ref *admissionregistrationv1.ParamRef, m *admissionregistrationv1.MatchResources, actions []admissionregistrationv1.ValidationAction) *binding {
	b := &binding{name: name, policy: policy, params: ref, actions: actions}
	if m != nil {
		criteria := review.OfResources(m)
		b.criteria = &criteria
	}
	return b
}

// matches says whether a write that the policy matches is one for the binding.
func (b *binding) matches(r *review.Request) (bool, error) {
	if b.criteria == nil {
		return true, nil
	}
	_, ok, err := b.criteria.Match(r)
	return ok, err
}

// paramView finds the kind of a policy's parameters; false when it has none.
func (c *Config) paramView(p *policy) (view apis.View, parameterized bool, err error) {
	if p.params == nil {
		return apis.View{}, false, nil
	}
	gvk := schema.FromAPIVersionAndKind(p.params.APIVersion, p.params.Kind)
	view, ok := c.Catalogue.Kind(gvk)
	if !ok {
		return apis.View{}, false, fmt.Errorf("failed to find resource referenced by paramKind: '%v'", gvk)
	}
	return view, true, nil
}

// params returns the parameters that a policy runs with through a binding, one
// after the other. One nil parameter is a run without any; none is no run.
func (c *Config) params(r *review.Request, p *policy, b *binding) ([]runtime.Object, error) {
	view, parameterized, err := c.paramView(p)
	if err != nil {
		return nil, err
	}
	ref := b.params
	if !parameterized || ref == nil {
		return []runtime.Object{nil}, nil
	}
	namespace := ""
	switch {
	case view.Scope == apis.Cluster && ref.Namespace != "":
		return nil, errors.New("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
	case view.Scope == apis.Namespaced && ref.Namespace != "":
		namespace = ref.Namespace
	case view.Scope == apis.Namespaced:
		if namespace = r.Namespace; namespace == "" {
			return nil, errors.New("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")
		}
	}
	found, err := findParams(r.Snapshot, view, namespace, ref)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 && ref.ParameterNotFoundAction != nil && *ref.ParameterNotFoundAction == admissionregistrationv1.DenyAction {
		return nil, errors.New("no params found for policy binding with `Deny` parameterNotFoundAction")
	}
	return found, nil
}

// runs calls f for every binding that a write is for, with each of its
// parameters. Failed gets what keeps a policy or binding from running.
func runs[P interface{ base() *policy }](c *Config, r *review.Request, all []bound[P],
	failed func(p *policy, b *binding, err error), f func(p P, b *binding, v review.Version, params []runtime.Object) error) error {
	for _, pair := range all {
		p := pair.policy.base()
		version, wanted, err := p.criteria.Match(r)
		if err = errors.Join(p.broken, err); err == nil && wanted {
			_, _, err = c.paramView(p)
		}
		if err != nil {
			failed(p, nil, err)
		}
		if err != nil || !wanted {
			continue
		}
		for _, b := range pair.bindings {
			wanted, err := b.matches(r)
			var params []runtime.Object
			if err == nil && wanted {
				params, err = c.params(r, p, b)
			}
			if err != nil {
				failed(p, b, err)
			}
			if err != nil || len(params) == 0 {
				continue
			}
			if err := f(pair.policy, b, version, params); err != nil {
				return err
			}
		}
	}
	return nil
}

// notConfigured says in upstream's words what keeps a policy or binding from running.
func notConfigured(b *binding, err error) error {
	if b == nil {
		return fmt.Errorf("failed to configure policy: %w", err)
	}
	return fmt.Errorf("failed to configure binding: %w", err)
}

var (
	_ admission.Mutator   = &Mutating{}
	_ admission.Validator = &Validating{}
)
