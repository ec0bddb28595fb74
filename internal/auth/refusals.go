package auth

import (
	"context"
	"errors"
	"strings"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// refusals are what authorizers without an opinion said.
type refusals struct {
	reasons []string
	errs    []error
}

func (r *refusals) add(reason string, err error) {
	if reason != "" {
		r.reasons = append(r.reasons, reason)
	}
	if err != nil {
		r.errs = append(r.errs, err)
	}
}

func (r *refusals) reason() string { return strings.Join(r.reasons, "\n") }

func (r *refusals) err() error {
	if len(r.errs) == 0 {
		return nil
	}
	return utilerrors.NewAggregate(r.errs)
}

// unknownRules is the rule resolver of an authorizer whose rules cannot be
// listed: SelfSubjectRulesReview says that its answer is incomplete.
type unknownRules struct{ why string }

func (u unknownRules) RulesFor(context.Context, user.Info, string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return nil, nil, true, errors.New(u.why)
}
